"""Conditions on lake, source and slot under which ingest starts: one list for ingest and `pgdelta check`.

A condition is a function that raises the reason for a refusal. `CONTINUING` are those of a lake that has an
offset, in the order in which they are decided. `StartCheck` makes a line of each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.delta.lake_format import require_known_format
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES, SlotBusyError, SlotGapError, SourceError
from pipeline.ingest.continuity import (
    may_skip_prepared,
    refuse_begun_move,
    refuse_skipped_prepared,
    refuse_unknown_prepared,
)
from pipeline.ingest.repeated_transactions import check_repeated
from pipeline.postgres.checks.table_checks import Check, refused
from pipeline.postgres.connection import Connection, ServerIdentity, connect, identify
from pipeline.postgres.replication.slot import Slot, ensure_slot, read_slot
from pipeline.postgres.replication.slot_lock import BUSY_SECONDS, lock_slot
from pipeline.postgres.replication.slot_mark import SlotMark, is_mark_due
from pipeline.postgres.same_source import check_server, check_slot
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.catalog_watch import is_created_again

# source.lost_slot → what ingest does about a gap
_CLOSING = {"compare": "copies what differs", "resync": "copies all tables"}


@dataclass(frozen=True)
class Continuation:
    """A lake complete up to an offset, and the source that is to go on from there."""

    config: Config
    connection: Connection
    writer: BronzeWriter
    recorded: dict[str, Any]
    identity: ServerIdentity
    offset: LSN
    stop: threading.Event

    @cached_property
    def slot(self) -> Slot:
        """The slot as it is when a condition first needs it; raises SourceError if it cannot be read."""
        return ensure_slot(self.connection, self.config, may_create=False)[0]


def _require_same_transactions(start: Continuation) -> None:
    check_repeated(start.config, start.writer.bronze, start.slot, start.identity, start.offset, start.stop)


Condition = Callable[[Continuation], None]
CONTINUING: Mapping[str, Condition] = {
    "same source": lambda start: check_server(start.config, start.recorded, start.identity, start.offset),
    "slot and bronze": lambda start: check_slot(start.slot, start.offset),
    "move": lambda start: refuse_begun_move(start.writer.bronze.copies.read(), start.offset),
    "prepared transactions": lambda start: start.writer.check_prepared(start.recorded),
    "same transactions": _require_same_transactions,
}


def require_continuity(start: Continuation) -> None:
    """Raise the first reason why the source cannot continue from the offset: GapError or SourceError."""
    for require in CONTINUING.values():
        require(start)


def require_own_slot(
    connection: Connection, config: Config, recorded: Mapping[str, Any]
) -> tuple[SlotMark | None, bool]:
    """Return the mark of the lake on the publication, and whether it is due; raise SourceError.

    None is the mark of a lake that was made before there were marks.
    """
    if "lake" not in recorded:
        return None, False
    mark = SlotMark(config.source.slot, recorded["lake"], config.storage.root)
    return mark, is_mark_due(connection, config.source.publication, mark)


def new_lake() -> dict[str, Any]:
    """Return what the first commit of a lake records of it."""
    return {"lake": uuid4().hex}


class StartCheck:
    """The lake of a configuration, and how it fits its source; changes neither."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._bronze = Bronze(Lake(config.storage, verifies=False), config.pipeline)
        self._captured: BronzeOffset | None = None
        self._fault: Check | None = None
        if self._bronze.lake.working_root is None:
            self._fault = Check(
                "offset of bronze", True, "Only Spark reads the lake. A start reads its offset."
            )
            return
        try:
            require_known_format(self._bronze.lake)
            self._bronze.require_tables()
            self._captured = self._bronze.captured_offset()
            if any(rule.columns for rule in config.tables):
                self._bronze.require_protection()
        except Exception as error:
            self._fault = refused("offset of bronze", error)

    @property
    def is_first(self) -> bool:
        """Whether bronze has no offset yet, so that a start may create the slot."""
        return self._captured is None

    def checks(self) -> Iterator[Check]:
        """Yield a check of the lake, and one of each condition of a start."""
        if self._fault is not None:
            yield self._fault
            return
        try:
            connection = connect(self._config.source.conninfo)
        except SourceError:  # a check of the source has it
            return
        with connection:
            try:
                recorded = new_lake() if self._captured is None else self._bronze.metadata()
                require_own_slot(connection, self._config, recorded)
            except Exception as error:
                yield refused("reader of the slot", error)
                return
            conditions = CONTINUING
            try:
                lock_slot(connection, self._config.source.slot, busy_timeout=0)
            except SlotBusyError as busy:  # another ingest moves slot and bronze meanwhile
                yield _reader(busy.reason)
                conditions = {"same source": CONTINUING["same source"]}
            except SourceError as error:
                yield refused("reader of the slot", error)
                return
            if self._captured is not None:
                yield from self._continuing(connection, recorded, self._captured.lsn, conditions)
            elif conditions is CONTINUING:
                yield from self._first(connection)

    def _first(self, connection: Connection) -> Iterator[Check]:
        """Yield who reads a slot that exists already, and a failure if it may send less than is needed."""
        slot = read_slot(connection, self._config.source.slot)
        if slot is not None and slot.is_active:
            yield _reader(f"PID {slot.active_pid}")
        try:
            refuse_skipped_prepared(connection, slot)
        except Exception as error:
            yield refused("prepared transactions", error)

    def _continuing(
        self,
        connection: Connection,
        recorded: dict[str, Any],
        offset: LSN,
        conditions: Mapping[str, Condition],
    ) -> Iterator[Check]:
        config = self._config
        slot = read_slot(connection, config.source.slot)
        if slot is not None and not slot.two_phase:  # a reader with two_phase would change it permanently
            protocol = replace(config.source.protocol, two_phase=False)
            config = replace(config, source=replace(config.source, protocol=protocol))
        try:
            writer, identity = BronzeWriter(self._bronze, {}), identify(connection)
        except Exception as error:
            yield refused("same source", error)
            return
        start = Continuation(config, connection, writer, recorded, identity, offset, threading.Event())
        for name, require in conditions.items():
            try:
                require(start)
            except SlotBusyError as busy:
                yield _reader(busy.reason)
                return
            except SlotGapError as gap:
                yield self._gap(name, connection, writer, gap)
                return
            except Exception as error:
                yield refused(name, error)
                return
        if conditions is CONTINUING:
            yield from self._publication_created_again(connection)
            yield Check("offset of bronze", True, f"The source continues from bronze, which is at {offset}.")

    def _publication_created_again(self, connection: Connection) -> Iterator[Check]:
        """Yield what ingest may find if the publication is not the one that it last recorded."""
        source = self._config.source
        if is_created_again(self._bronze, connection, source.publication):
            advice = "Run ingest, and follow its sentence if it fails."
            if source.lost_slot != "stop":
                advice = f"Then ingest records a gap and {_CLOSING[source.lost_slot]}."
            sentence = (
                f"The publication {source.publication} was created again. Changes of the time without it,"
            )
            yield Check("publication and slot", True, f"{sentence} if any, cannot be decoded.", advice)

    def _gap(self, name: str, connection: Connection, writer: BronzeWriter, gap: SlotGapError) -> Check:
        """Return the check of a gap, which ingest closes if the configuration says so."""
        source = self._config.source
        if source.lost_slot == "stop":
            return refused(name, gap)
        slot = read_slot(connection, source.slot)
        try:
            if may_skip_prepared(slot):
                refuse_unknown_prepared(connection, source.slot, writer.prepared.open())
        except Exception as error:
            return refused(name, error)
        sentence = str(gap).partition(". ")[0]
        return Check(name, True, f"{sentence}.", f"Ingest records a gap and {_CLOSING[source.lost_slot]}.")


def _reader(session: str) -> Check:
    """Return the check of a slot that is in use, which is no fault of a running pipeline."""
    return Check(
        "reader of the slot",
        True,
        f"The slot is in use ({session}), so what it sends is not compared with bronze.",
        f"Another ingest or run waits {BUSY_SECONDS:.0f} seconds for its end, and is refused then.",
    )


def report_new_name(recorded: Mapping[str, Any], identity: ServerIdentity) -> None:
    """Send a notice if the database has another name than bronze records."""
    if recorded.get("database", identity.database) != identity.database:
        NOTICES.info(
            "The database %s is now named %s. Ingest continues with it.",
            *(recorded["database"], identity.database),
        )
