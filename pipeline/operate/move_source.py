"""Let a pipeline follow its database to another server: an upgrade, blue/green, or a failover without slot.

The configuration names the new server. The old one, if it is still there, is captured to its end. One commit
of bronze then records the new server, with a gap from the old offset to the LSN of the new slot. After the
gap each table is compared with the new server, and only what differs is copied
(`silver/compare/gap_comparison`). So silver equals the new server even if the old one lost or kept something.
Each step is recorded in bronze, and a command that ended early continues with the next one (`STEPS`).
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.apply import job as applying
from pipeline.bronze.copies import compared_row, gap_row, moved_row
from pipeline.bronze.copy_states import Comparison, CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.source_moves import MovedTable, has_numbers_of, match_columns
from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.delta.locks import refuse_while_apply_runs
from pipeline.delta.table import Lake
from pipeline.errors import GapError, RestoredSourceError, SlotWaitStopped, SourceError
from pipeline.ingest import job as ingesting
from pipeline.ingest.continuity import followed_tables, may_skip_prepared, refuse_unknown_prepared
from pipeline.ingest.repeated_transactions import check_repeated
from pipeline.operate.run import RunSummary, run_both
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import (
    Connection,
    ServerIdentity,
    connect,
    identify,
    is_in_recovery,
    read_segment_size,
    read_timeline_ends,
)
from pipeline.postgres.open_transactions import write_wal_past_now
from pipeline.postgres.publication import describe_published, ensure_publication, list_published
from pipeline.postgres.replication.slot import drop_slot, read_slot, renew_slot
from pipeline.postgres.replication.slot_lock import lock_slot
from pipeline.postgres.same_source import check_server, is_published_since
from pipeline.postgres.watched_tables import read_watched_tables
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Relation
from pipeline.table_copy.catalog_watch import record_fork
from pipeline.table_name import TableName
from pipeline.units import format_size

_PAUSE = 2.0  # seconds in which nothing may arrive from the old server
_MAX_SWITCHES = 64  # of a WAL segment, that a person may be asked for
_KEEPS_SLOTS_SINCE = 170000  # pg_upgrade, of the old server
_KEPT_SLOT = "The slot was kept by pg_upgrade, so nothing was committed between the servers."


@dataclass(slots=True)
class MoveSummary:
    """What a move did: from which server to which, over which LSNs, and the run that closed the gap."""

    pipeline: str
    steps: list[MoveStep] = field(default_factory=list)
    old_system: str = ""
    new_system: str = ""
    start: LSN = INVALID
    end: LSN = INVALID
    run: RunSummary | None = None

    def lines(self) -> list[str]:
        lines = self.run.lines() if self.run else []
        if MoveStep.SWITCH in self.steps:
            lines.append(
                f"move-source {self.pipeline}: from system {self.old_system} at {self.start} to system "
                f"{self.new_system} at {self.end}"
            )
        elif not self.steps:
            lines.append(f"move-source {self.pipeline}: bronze already follows system {self.new_system}")
        else:
            lines.append(f"move-source {self.pipeline}: continued with system {self.new_system}")
        return lines

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "steps": [step.name.lower() for step in self.steps],
            "from_system": self.old_system or None,
            "to_system": self.new_system,
            "from_lsn": str(self.start) if self.start else None,
            "to_lsn": str(self.end) if self.end else None,
            "run": self.run and self.run.as_json(),
        }

    def exit_code(self, strict: bool) -> int:
        """Return that of the run that closed the gap."""
        return self.run.exit_code(strict) if self.run else 0


def run_move_source(
    config: Config,
    *,
    old: str | None = None,
    compares: bool = False,
    stop: threading.Event | None = None,
) -> MoveSummary:
    """Move the pipeline to the server that the configuration names; `old` is the conninfo of the one before.

    With `compares`, tables are compared also if pg_upgrade kept the slot, or if bronze follows the new server
    already.
    """
    stop = stop or threading.Event()
    lake = Lake.for_writing(config.storage, application=f"pgdelta move-source {config.pipeline}")
    refuse_while_apply_runs(lake)
    bronze = Bronze(lake, config.pipeline)
    bronze.require_offset()
    move = SourceMove(config, bronze, old, compares=compares, stop=stop)
    while (step := move.next_step()) is not MoveStep.DONE and not stop.is_set():
        if step is MoveStep.SWITCH and step in move.summary.steps:
            raise GapError(
                f"The slot {config.source.slot} of the new server was moved or dropped by another program."
                " Let no other one use it, and run again."
            )
        move.carry_out(step)
    return move.summary


class MoveStep(enum.Enum):
    """What `pgdelta move-source` does next."""

    DRAIN = "capture the rest of the old server"
    SWITCH = "follow the new server"
    COMPARE = "compare, and copy what differs"
    DONE = "nothing to do"


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """The facts that decide the next step."""

    is_switched: bool
    """Whether bronze records the new server."""
    has_old: bool
    """Whether the conninfo of the old server is given."""
    is_drained: bool
    """Whether this run captured the rest of the old server."""
    has_open_comparisons: bool
    """Whether requested comparisons of tables are open; they are requested after the drain."""


STEPS: tuple[tuple[Callable[[MoveFacts], bool], MoveStep], ...] = (
    (lambda facts: not facts.is_switched and facts.has_open_comparisons, MoveStep.SWITCH),
    (lambda facts: not facts.is_switched and facts.has_old and not facts.is_drained, MoveStep.DRAIN),
    (lambda facts: not facts.is_switched, MoveStep.SWITCH),
    (lambda facts: facts.has_open_comparisons, MoveStep.COMPARE),
    (lambda facts: True, MoveStep.DONE),
)
"""The first condition that holds decides."""


def next_step(facts: MoveFacts) -> MoveStep:
    """Return the next step of a move."""
    return next(step for holds, step in STEPS if holds(facts))


class SourceMove:
    """The steps of one move. Each can be repeated."""

    def __init__(
        self,
        config: Config,
        bronze: Bronze,
        old: str | None,
        *,
        compares: bool,
        stop: threading.Event,
    ) -> None:
        self._config, self._bronze, self._old = config, bronze, old
        self._compares, self._stop = compares, stop
        self._is_drained = self._is_restored = False
        with connect(config.source.conninfo) as connection:
            self._identity = identify(connection)
        self.summary = MoveSummary(config.pipeline, new_system=self._identity.system_identifier)

    def next_step(self) -> MoveStep:
        """Return what bronze says is to be done next."""
        is_due = self._compares and MoveStep.SWITCH not in self.summary.steps
        is_switched = not is_due and self._is_same_system and self._continues()
        waiting = self._bronze.copies.read().open_requests.values()
        is_open = any(request.closes_gap for requests in waiting for request in requests)
        done = MoveStep.COMPARE in self.summary.steps
        return next_step(MoveFacts(is_switched, bool(self._old), self._is_drained, is_open and not done))

    @property
    def _is_same_system(self) -> bool:
        """Whether bronze's newest commit records the system and the database of the new server."""
        recorded = self._bronze.metadata()
        return "system_identifier" in recorded and self._identity.is_of(recorded)

    def _continues(self) -> bool:
        """Return whether the server had what bronze has, and has a slot that continues from its offset."""
        captured = self._bronze.captured_offset()
        with connect(self._config.source.conninfo) as connection:
            now = identify(connection)  # its WAL goes on
            slot = read_slot(connection, self._config.source.slot)
        try:
            check_server(self._config, self._bronze.metadata(), now, captured.lsn if captured else INVALID)
        except GapError:
            return False
        if slot is None or slot.is_lost or captured is None or slot.confirmed_flush_lsn > captured.lsn:
            return False
        try:
            check_repeated(self._config, self._bronze, slot, now, captured.lsn, self._stop)
        except (RestoredSourceError, SlotWaitStopped) as failure:
            self._is_restored = isinstance(failure, RestoredSourceError)
            return False
        return True

    def carry_out(self, step: MoveStep) -> None:
        """Carry out one step."""
        if step is MoveStep.DRAIN:
            self._drain()
        elif step is MoveStep.SWITCH:
            self._switch()
        else:
            self._compare()
        self.summary.steps.append(step)

    def _drain(self) -> None:
        """Capture the old server up to the end of its WAL; refuse if it still commits after that."""
        assert self._old is not None
        copying = replace(self._config.source.copying, conninfo="")
        source = replace(self._config.source, conninfo=self._old, copying=copying)
        config = replace(self._config, source=source)
        ingesting.run_ingest(config, stop=self._stop)
        self._stop.wait(_PAUSE)
        later = ingesting.run_ingest(config, stop=self._stop)
        if later.changes:
            raise SourceError(
                f"The old server still commits to published tables ({later.changes} changes within "
                f"{_PAUSE:.0f} s, up to {later.captured_offset}). Stop its writers, then run again."
            )
        self._is_drained = True

    def _switch(self) -> None:
        """Record the new server in bronze: the gap, the tables that are compared, and the offset after it."""
        config, bronze = self._config, self._bronze
        captured = bronze.require_offset()
        recorded = bronze.metadata()
        with connect(config.source.conninfo) as connection:
            lock_slot(connection, config.source.slot, should_stop=self._stop.is_set)
            now = identify(connection)
            if is_in_recovery(connection):  # it has no publication and no slot of its own
                raise SourceError("The server of source.conninfo is a standby. Promote it, then run again.")
            _refuse_earlier_wal(connection, now, captured.lsn, is_same_system=self._is_same_system)
            ensure_publication(connection, config)
            seen = read_watched_tables(connection, config.source.publication)
            names = followed_tables(connection, config)
            self._refuse_missing(names)
            is_kept = self._is_slot_kept(connection, names)
            if not is_kept:  # before a slot is created, which looks like one that was kept
                requests = [CopyRequest.after_gap(name, captured.lsn) for name in names]
                bronze.copies.request(requests)
            if self._is_restored:
                drop_slot(connection, config.source.slot)
                self._is_restored = False
            before = read_slot(connection, config.source.slot)
            slot = renew_slot(connection, config, self._stop.is_set)
            end = LSN(max(captured.lsn + 1, slot.confirmed_flush_lsn))
            write_wal_past_now(connection, self._stop.is_set)  # else the server's WAL may end before it
            moved = self._match_tables(connection, names, end)
            source = {"slot": config.source.slot, **now.facts}
            if "lake" in recorded:
                source["lake"] = recorded["lake"]
            writer = BronzeWriter(bronze, source)
            is_ahead = not is_kept and may_skip_prepared(before)
            survivors = self._survivors(connection, now, writer) if is_ahead else set()
            sentence = (
                f"The source moved from system {recorded.get('system_identifier')} to system "
                f"{now.system_identifier}."
            )
            rows = [
                gap_row(captured.lsn, end, sentence, is_fork=True),
                *(moved_row(table) for table in moved),
            ]
            if is_kept:
                published = list_published(connection, config.source.publication)
                rows += [
                    compared_row(
                        name,
                        Comparison(
                            end,
                            captured.lsn,
                            published[name].relation_id,
                            published[name].entry,
                            sentence=_KEPT_SLOT,
                        ),
                    )
                    for name in names
                ]
            writer.record_copies(rows)
            writer.prepared.forget(writer.prepared.open() - survivors)
            record_fork(bronze, seen, config.source.publication, end)
            writer.land_gap(captured.lsn, end, sentence, moved_from=recorded.get("system_identifier"))
            writer.force_logs()
        summary = self.summary
        summary.old_system, summary.start, summary.end = str(recorded["system_identifier"]), captured.lsn, end

    def _survivors(
        self, connection: Connection, now: ServerIdentity, writer: BronzeWriter
    ) -> set[tuple[str, int]]:
        """Return the prepared transactions of bronze that the new server has too, by gid and xid.

        A slot that existed already may send their end alone: raises GapError if there are others. A promoted
        server has those that were prepared before its timeline began.
        """
        known = set[tuple[str, int]]()
        if self._is_same_system:
            recorded = self._bronze.metadata().get("timeline", now.timeline)
            ends = read_timeline_ends(self._config.source.conninfo, now.timeline)
            end = None if recorded == now.timeline else ends.get(recorded, INVALID)
            known = writer.prepared.open(end)
        return refuse_unknown_prepared(connection, self._config.source.slot, known)

    def _compare(self) -> None:
        """Apply up to the gap, compare and copy, and apply what was copied."""
        applying.run_apply(self._config, stop=self._stop)
        self.summary.run = run_both(self._config, stop=self._stop)

    def _is_slot_kept(self, connection: Connection, names: Collection[TableName]) -> bool:
        """Return whether pg_upgrade kept the slot, which it does only if the slot had read everything.

        It keeps those of servers from 17 on; bronze may not know which one the old server was. The new one is
        another system with the same oids and attribute numbers, and with the publication as it was before the
        slot. A slot that an earlier run of this command created is younger than its requests.
        """
        requests = self._bronze.copies.read().open_requests.values()
        if self._compares or any(request.closes_gap for found in requests for request in found):
            return False
        source, recorded = self._config.source, self._bronze.metadata().get("server_version", 0)
        slot = read_slot(connection, source.slot)
        if self._is_same_system or slot is None or slot.is_lost or recorded < _KEEPS_SLOTS_SINCE:
            return False
        if not is_published_since(connection, source.publication, source.slot):
            return False
        moved = self._match_tables(connection, names, INVALID)
        return len(moved) == len(names) and all(table.is_same for table in moved)

    def _refuse_missing(self, names: Collection[TableName]) -> None:
        """Raise GapError if the new server does not publish a table that bronze still follows."""
        history = self._bronze.copies.read()
        known = {name for name in self._bronze.table_names() if self._config.rule_for(name)}
        known = {name for name in known if not history.is_dropped(name)}
        if missing := sorted(known - set(names)):
            raise GapError(
                f"The new server does not publish {', '.join(map(str, missing[:5]))} (missing tables:"
                f" {len(missing)}). Create them there with their rows, add them to the publication "
                f"{self._config.source.publication}, and run again."
            )

    def _match_tables(
        self, connection: Connection, names: Collection[TableName], end: LSN
    ) -> list[MovedTable]:
        """Return the tables that the new server has with the columns that bronze has, by name.

        If it has none, those are returned whose oids and numbers would be taken for others of the lake.
        """
        newest: dict[TableName, SourceRelation] = {}
        for relation in self._bronze.source_relations().values():
            if relation.name not in newest or newest[relation.name].lsn <= relation.lsn:
                newest[relation.name] = relation
        moves = self._bronze.copies.read().moves
        found, others = [], []
        for name in names:
            before = newest.get(name)
            if before is None:
                continue
            sent = describe_published(connection, self._config.source.publication, name).relation
            catalog = read_relation(connection, sent)
            numbers: Mapping[int, int] | None = match_columns(before, catalog, sent) if catalog else None
            if numbers is None:
                self._refuse_plain(before, sent)
                if catalog and not has_numbers_of(before, catalog, sent):
                    others.append(moves.begun(name, end, sent.oid))
            else:
                found.append(MovedTable(name, end, sent.oid, before.oid, numbers))
        return found or others

    def _refuse_plain(self, before: SourceRelation, sent: Relation) -> None:
        """Raise GapError if a table has other columns, and one of them may be a protected one without a rule.

        Their attribute numbers do not show which column of the lake each is.
        """
        protected = {column.name for column in before.protected if column.name is not None}
        names = {column.name for column in sent.columns}
        suspected = names & protected
        if protected - names:  # one of the new names may be that of a protected column
            suspected |= names - {column.name for column in before.columns}
        protection = ColumnProtection(self._config)
        rules = protection.rules_of(before.name)
        plain = [name for name in sorted(suspected) if rules is None or not protection.rule_of(rules, name)]
        if plain:
            raise GapError(
                f"Table {before.name} has other columns on the new server, and {', '.join(plain)} may have"
                " values that are left out, hashed or masked. Name such columns in tables[].columns, or"
                " create the table there with the same columns, then run again."
            )


def _refuse_earlier_wal(
    connection: Connection, now: ServerIdentity, offset: LSN, *, is_same_system: bool
) -> None:
    """Raise GapError if LSNs of the new server would not follow those of bronze."""
    if now.wal_flush_lsn >= offset:
        return
    size = read_segment_size(connection)
    fact = (
        f"The new server's WAL ends at {now.wal_flush_lsn}, before bronze's offset {offset}, and changes are"
        " in the order of their LSNs."
    )
    if is_same_system and offset - now.wal_flush_lsn <= _MAX_SWITCHES * size:  # a promoted standby
        raise GapError(
            f"{fact} Wait until it has passed the offset, then run again. Each SELECT txid_current(),"
            f" pg_switch_wal() on the server takes it {format_size(size)} further."
        )
    raise GapError(
        f"{fact} Stop the new server, run pg_resetwal -l"
        f" {wal_file_after(offset, size, now.timeline)} -D with its data directory, start it, and run again."
    )


def wal_file_after(offset: LSN, segment_bytes: int, timeline: int) -> str:
    """Return the name of a WAL file that begins after an LSN; segments have a size in bytes."""
    segment = offset // segment_bytes + 2
    per_file = 2**32 // segment_bytes
    return f"{timeline:08X}{segment // per_file:08X}{segment % per_file:08X}"
