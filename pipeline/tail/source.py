"""Which slot `pgdelta tail` looks at, and the stream that shows it without moving it.

A slot of the configuration or the command line is read from where it stands, by a replication session or by
looks with SQL; a temporary one is made for the session. Nothing makes a slot two-phase that is not: pgoutput
is never asked for it, because even a look would change the slot for good; a slot that is so already sends
prepared transactions unasked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from pipeline.config.config import Protocol, Source, holds_secret
from pipeline.errors import ConfigError, SlotBusyError, SourceError
from pipeline.postgres.connection import Connection, is_synchronous_standby
from pipeline.postgres.replication.change_stream import ChangeStream
from pipeline.postgres.replication.options import Negotiated, negotiate
from pipeline.postgres.replication.slot import read_slot, require_publication, require_slot
from pipeline.postgres.replication.sql_follow import start_sql_follow
from pipeline.postgres.replication.sql_stream import start_sql_stream
from pipeline.postgres.replication.temporary_slot import start_temporary_slot
from pipeline.postgres.replication.walsender import start_walsender
from pipeline.table_name import TableGlob
from pipeline.tail.request import TailOptions

APPLICATION_NAME = "pgdelta tail"
_BUSY_SECONDS = 2.0  # a reader that just ended may hold the slot a moment longer
_PATIENCE = 2.0

Say = Callable[[str], None]


def resolve(request: TailOptions) -> Source:
    """Return the source to look at; refuse what the command line cannot mean, with a ConfigError."""
    _check_combinations(request)
    if request.conninfo is not None and holds_secret(request.conninfo):
        raise ConfigError(
            "--conninfo: every user of this machine can read a password on the command line; take it out and"
            " use PGPASSWORD or PGPASSFILE"
        )
    config = request.config
    slot = request.slot or (config.source.slot if config else "")
    publication = request.publication or (config.source.publication if config else slot)
    if not slot and not request.temporary:
        raise ConfigError("no slot to look at: give --config FILE, or --slot NAME, or --temporary")
    if not publication:
        raise ConfigError("no publication to look at: give --config FILE, or --publication NAME")
    base = config.source if config else Source(conninfo="", publication=publication, slot=slot)
    return replace(
        base,
        conninfo=base.conninfo if request.conninfo is None else request.conninfo,
        slot=slot,
        publication=publication,
        route="walsender" if request.temporary else request.route or base.route,
        protocol=_protocol(request, base.protocol),
    )


def start_stream(
    request: TailOptions, source: Source, catalog: Connection, stop: threading.Event, say: Say
) -> ChangeStream | None:
    """Return the running stream, None where it was to stop before there was one; say what it is."""
    server_version = catalog.info.server_version
    protocol = source.protocol
    if not request.temporary:
        protocol = replace(protocol, two_phase=False)
    negotiated = negotiate(server_version, protocol, source.route)
    options = replace(negotiated, two_phase=False).options(source.publication)
    if source.route == "walsender" and is_synchronous_standby(catalog, APPLICATION_NAME):
        raise SourceError(
            "The server's synchronous_standby_names takes in every walsender, so that commits would wait for"
            " this command, which acknowledges nothing: look with --route sql, or name the standbys there."
        )
    if request.temporary:
        return _start_temporary(source, catalog, negotiated, stop, say)
    slot = require_slot(catalog, source.slot, source.publication)
    read = negotiated if not slot.two_phase else replace(negotiated, two_phase=True)
    try:
        stream: ChangeStream
        if source.route == "walsender":
            stream = start_walsender(
                source.conninfo,
                source.slot,
                source.publication,
                options=options,
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
    except SlotBusyError:
        raise explain_busy(catalog, source.slot) from None
    promise = "ACKNOWLEDGES WHAT IT SHOWS" if request.acknowledge else "acknowledges nothing"
    holds = "; a pipeline cannot read the slot meanwhile" if source.route == "walsender" else ""
    place = f"the slot {source.slot} from {stream.received_lsn} by {source.route}"
    say(f"{place}, {read}; {promise}{holds}")
    return stream


def explain_busy(catalog: Connection, name: str) -> SourceError:
    """Return the sentence for a slot that another session reads."""
    slot = read_slot(catalog, name)
    process = f" (process {slot.active_pid})" if slot is not None and slot.active_pid else ""
    return SlotBusyError(
        f"The slot {name} is being read by another session{process}, and only one can: add --temporary, which"
        " makes a slot of its own and shows what is committed from now on."
    )


def _start_temporary(
    source: Source, catalog: Connection, negotiated: Negotiated, stop: threading.Event, say: Say
) -> ChangeStream | None:
    require_publication(catalog, source.publication)
    began = time.monotonic()
    has_said = False

    def should_stop() -> bool:
        nonlocal has_said
        if not has_said and time.monotonic() - began > _PATIENCE:
            has_said = True
            say("waiting for the transactions that are open now to end: a slot begins after them")
        return stop.is_set()

    stream = start_temporary_slot(
        source.conninfo,
        options=negotiated.options(source.publication),
        two_phase=negotiated.two_phase,
        should_stop=should_stop,
        application_name=APPLICATION_NAME,
    )
    if stream is not None:
        say(f"a temporary slot from {stream.received_lsn}, {negotiated}; it ends with this command")
    return stream


def _protocol(request: TailOptions, written: Protocol) -> Protocol:
    """Return what to ask for: what the command line says takes the place of all that it contradicts."""
    version, streaming = request.protocol_version, request.streaming
    found = written
    if version is not None or streaming is not None:
        names = written.written - {"version", "streaming"}
        found = replace(found, version=version or "auto", streaming=streaming or "auto", written=names)
    if request.committed_only:
        # Of a stream it is not known whether it will be committed; without one the server waits for it.
        found = replace(found, streaming="off")
    return replace(found, two_phase=found.two_phase or request.two_phase)


def _check_combinations(request: TailOptions) -> None:
    if request.temporary:
        if request.slot is not None:
            raise ConfigError("--temporary makes a slot of its own: leave --slot out")
        if request.route == "sql":
            raise ConfigError("--temporary needs a replication connection: leave --route sql out")
        if request.acknowledge:
            raise ConfigError("a temporary slot ends with the command: leave --acknowledge out")
        if not request.follow:
            raise ConfigError("--temporary shows what is committed from now on: leave --no-follow out")
    elif request.two_phase:
        raise ConfigError("--two-phase would change the slot for good: it goes with --temporary only")
    if request.committed_only and request.streaming not in (None, "off"):
        raise ConfigError("--transactions shows what is committed: leave --streaming out")
    if request.acknowledge:
        if request.tables or request.committed_only:
            raise ConfigError(
                "--acknowledge lets the slot forget everything up to the last transaction: leave --table and"
                " --transactions out, which do not show everything"
            )
        _check_bronze(request)
    for glob in request.tables:
        if not TableGlob(glob).is_valid:
            raise ConfigError(
                f"--table {glob}: write schema.table, with a part that holds a dot in double quotes"
            )


def _check_bronze(request: TailOptions) -> None:
    """Raise ConfigError where the pipeline of the configuration has begun to fill bronze from this slot."""
    config = request.config
    if config is None or request.slot not in (None, config.source.slot):
        return
    root = urlparse(config.storage.root)
    if root.scheme not in ("", "file"):
        raise ConfigError(
            f"--acknowledge is refused: whether bronze at {config.storage.root} needs what the slot would"
            " forget cannot be told from here; leave the flag out"
        )
    folder = Path(unquote(root.path) if root.scheme else config.storage.root)
    if (folder / "bronze" / "changes" / "_delta_log").exists():
        raise ConfigError(
            f"--acknowledge is refused: the pipeline {config.pipeline} fills bronze at {config.storage.root}"
            f" from the slot {config.source.slot}: what the slot forgets would be missing there; leave the"
            " flag out"
        )
