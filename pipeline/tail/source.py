"""Find the slot that `pgdelta tail` shows, and start the stream that reads it without moving it.

A slot of the configuration or the command line is read from its confirmed LSN, by a replication session or by
SQL polls; a temporary slot is created for the session. The option two_phase is never sent for an existing
slot, because even a peek would change the slot permanently; a two-phase slot sends prepared transactions
without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlparse

from pipeline.config.config import Config, Protocol, Source
from pipeline.config.scalars import holds_secret
from pipeline.errors import ConfigError, SlotBusyError, SlotWaitStopped, SourceError
from pipeline.postgres.connection import Connection, is_synchronous_standby
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.options import Negotiated, negotiate
from pipeline.postgres.replication.slot import read_slot, require_publication, require_slot
from pipeline.postgres.replication.sql_follow import start_sql_follow
from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.postgres.replication.temporary_slot import start_temporary_slot
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableGlob


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """The options of the command line; None is what was not given."""

    config: Config | None = None
    conninfo: str | None = None
    slot: str | None = None
    publication: str | None = None
    route: Literal["walsender", "sql"] | None = None
    protocol_version: Literal[1, 2, 3, 4] | None = None
    streaming: Literal["off", "on", "parallel"] | None = None
    two_phase: bool = False
    temporary: bool = False
    acknowledge: bool = False
    follow: bool = True
    limit: int | None = None
    until_lsn: LSN | None = None
    tables: tuple[str, ...] = ()
    committed_only: bool = False
    as_json: bool = False
    has_values: bool = True
    value_length: int = 60


APPLICATION_NAME = "pgdelta tail"
_BUSY_SECONDS = 2.0  # a reader that has just ended may hold the slot for a moment

Report = Callable[[str], None]
"""Prints a sentence about the stream to stderr."""


def resolve(request: TailOptions) -> Source:
    """Return the source to read; raise ConfigError for options that contradict each other."""
    _check_combinations(request)
    if request.conninfo is not None and holds_secret(request.conninfo):
        raise ConfigError(
            "--conninfo has a password, which every user of this machine can read. Remove it, and set"
            " PGPASSWORD or PGPASSFILE."
        )
    config = request.config
    slot = request.slot or (config.source.slot if config else "")
    publication = request.publication or (config.source.publication if config else slot)
    if not slot and not request.temporary:
        raise ConfigError("No slot is named. Add --config FILE, --slot NAME or --temporary.")
    if not publication:
        raise ConfigError("No publication is named. Add --config FILE or --publication NAME.")
    base = config.source if config else Source(conninfo="", publication=publication, slot=slot)
    if request.conninfo is not None:  # another server, which the program has no password for
        base = replace(base, conninfo=request.conninfo, password_command=())
    return replace(
        base,
        slot=slot,
        publication=publication,
        route="walsender" if request.temporary else request.route or base.route,
        protocol=_override_protocol(request, base.protocol),
    )


def start_stream(
    request: TailOptions, source: Source, catalog: Connection, stop: threading.Event, report: Report
) -> ChangeStream | None:
    """Return the running stream, None if `stop` was set before it started; report what it reads."""
    server_version = catalog.info.server_version
    protocol = source.protocol
    if not request.temporary:
        protocol = replace(protocol, two_phase=False)
    negotiated = negotiate(server_version, protocol, source.route)
    options = replace(negotiated, two_phase=False).options(source.publication)
    if source.route == "walsender" and is_synchronous_standby(catalog, APPLICATION_NAME):
        raise SourceError(
            "The server's synchronous_standby_names includes every walsender, so that commits would wait for"
            " this command, which acknowledges nothing. Add --route sql, or list the standbys there by name."
        )
    if request.temporary:
        return _start_temporary(source, catalog, negotiated, stop, report)
    slot = require_slot(catalog, source.slot, source.publication)
    if slot.two_phase:
        negotiated = replace(negotiated, two_phase=True)
    try:
        stream: ChangeStream
        if source.route == "walsender":
            stream = start_walsender(
                source.conninfo,
                source.slot,
                source.publication,
                options=options,
                shared=catalog,
                busy_timeout=_BUSY_SECONDS,
                should_stop=stop.is_set,
                application_name=APPLICATION_NAME,
            )
        else:
            start = start_sql_stream if request.acknowledge else start_sql_follow
            stream = start(
                source.conninfo,
                source.slot,
                source.publication,
                options=options,
                busy_timeout=_BUSY_SECONDS,
            )
    except SlotWaitStopped:
        return None
    except SlotBusyError:
        raise busy_error(catalog, source.slot) from None
    effect = "ACKNOWLEDGES WHAT IT SHOWS" if request.acknowledge else "acknowledges nothing"
    exclusion = "; the pipeline cannot read the slot meanwhile" if source.route == "walsender" else ""
    start_text = f"the slot {source.slot} from {stream.received_lsn} by {source.route}"
    report(f"{start_text}, {negotiated}; {effect}{exclusion}")
    return stream


def busy_error(catalog: Connection, name: str) -> SourceError:
    """Return the error for a slot that another session reads."""
    slot = read_slot(catalog, name)
    process = f" (process {slot.active_pid})" if slot is not None and slot.active_pid else ""
    return SlotBusyError(
        f"Another session{process} reads the slot {name}, and only one can. Add --temporary to show what is"
        " committed from now on through a slot of its own."
    )


def _start_temporary(
    source: Source, catalog: Connection, negotiated: Negotiated, stop: threading.Event, report: Report
) -> ChangeStream | None:
    require_publication(catalog, source.publication)
    stream = start_temporary_slot(
        source.conninfo,
        options=negotiated.options(source.publication),
        two_phase=negotiated.two_phase,
        should_stop=stop.is_set,
        report=report,
        application_name=APPLICATION_NAME,
    )
    if stream is not None:
        report(f"a temporary slot from {stream.received_lsn}, {negotiated}; it ends with this command")
    return stream


def _override_protocol(request: TailOptions, written: Protocol) -> Protocol:
    """Return the protocol options, in which those of the command line replace all that they contradict."""
    version, streaming = request.protocol_version, request.streaming
    found = written
    if version is not None or streaming is not None:
        names = written.written - {"version", "streaming"}
        found = replace(found, version=version or "auto", streaming=streaming or "auto", written=names)
    if request.committed_only:
        # A stream may still be rolled back; without streaming, the server sends committed transactions only.
        found = replace(found, streaming="off")
    return replace(found, two_phase=found.two_phase or request.two_phase)


def _check_combinations(request: TailOptions) -> None:
    if request.temporary:
        if request.slot is not None:
            raise ConfigError("--temporary creates a slot of its own. Remove --slot.")
        if request.route == "sql":
            raise ConfigError("--temporary needs a replication connection. Remove --route sql.")
        if request.acknowledge:
            raise ConfigError("A temporary slot ends with the command. Remove --acknowledge.")
        if not request.follow:
            raise ConfigError("--temporary shows what is committed from now on. Remove --no-follow.")
    elif request.two_phase:
        raise ConfigError("--two-phase would change the slot permanently. Add --temporary, or remove it.")
    if request.committed_only and request.streaming not in (None, "off"):
        raise ConfigError("--transactions shows committed transactions only. Remove --streaming.")
    if request.acknowledge:
        if request.tables or request.committed_only:
            raise ConfigError(
                "--acknowledge discards everything up to the last transaction, but --table and"
                " --transactions do not show everything. Remove them."
            )
        _check_bronze(request)
    for glob in request.tables:
        if not TableGlob(glob).is_valid:
            raise ConfigError(f"--table {glob} is not schema.table. Put a part with a dot in double quotes.")


def _check_bronze(request: TailOptions) -> None:
    """Raise ConfigError if the pipeline of the configuration fills, or may fill, bronze from this slot."""
    config = request.config
    if config is None or request.slot not in (None, config.source.slot):
        return
    root = urlparse(config.storage.root)
    if root.scheme not in ("", "file"):
        raise ConfigError(
            f"--acknowledge is refused: bronze at {config.storage.root} may need the changes, which cannot be"
            " checked from here. Remove it."
        )
    folder = Path(unquote(root.path) if root.scheme else config.storage.root)
    if (folder / "bronze" / "changes" / "_delta_log").exists():
        raise ConfigError(
            f"--acknowledge is refused: the pipeline {config.pipeline} fills bronze at {config.storage.root}"
            f" from the slot {config.source.slot}, and the acknowledged changes would be missing there."
            " Remove it."
        )
