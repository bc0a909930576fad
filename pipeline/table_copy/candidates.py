"""Find the tables that need a copy: tables that joined the publication, and requested ones.

Each poll first keeps the pipeline's own publication in line, and records which tables are no longer
published. What a transaction wrote to a table before the table joined is not in the stream, and a snapshot
does not see it while the transaction is open. The copy of a new table therefore starts once all transactions
have ended that were writing to it when it was first published. A table that the stream has under an old name
waits for the rename. An event is recorded once for a table that left the publication and returned, and for
one that cannot be copied.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.copies import compared_row, dropped_row
from pipeline.bronze.copy_states import (
    Adoption,
    Comparison,
    CopyHistory,
    CopyRequest,
    CopyState,
    rewritten_before,
)
from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.writer import BronzeWriter
from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.key_ranges import KeyRange
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import Connection, connect, read_flush_lsn
from pipeline.postgres.open_transactions import keeps_stale_entries, write_wal_past_now
from pipeline.postgres.publication import Membership, describe_published, list_existing, list_published
from pipeline.postgres.publication_edits import PublicationEdits
from pipeline.postgres.snapshot.export import COPY_SESSIONS
from pipeline.postgres.watched_tables import list_existing_columns
from pipeline.progress import CopyProgress, IngestSummary
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_copy.attempts import CopyAttempts
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import kept_columns
from pipeline.table_copy.catalog_watch import CatalogWatch
from pipeline.table_copy.comment_watch import CommentWatch
from pipeline.table_copy.new_tables import PATIENCE, RUN_PATIENCE, NewTable, NewTables
from pipeline.table_copy.protected_tables import record_protected
from pipeline.table_copy.publication_upkeep import PublicationUpkeep
from pipeline.table_copy.shape_watch import ShapeWatch
from pipeline.table_name import TableName

_KEPT = "The publication has another entry for the table, and no change was missed."
_COMPARED = (
    "The table left the publication and came back, or its row filter or column list changed. Changes of that"
    " time may be missing until it is compared with the source, and what differs is copied."
)
_REPUBLISHED = (
    "The table left the publication and came back, or its row filter changed. Changes of that time are "
    "missing until its resync, which starts automatically, is complete."
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that needs a copy: the requests for it; all rows if it has no key ranges.

    One that `compares` is compared with silver first: after a gap, or after rows changed without a message
    before the LSN of `rewrite`.
    """

    requests: tuple[CopyRequest, ...] = ()
    key_ranges: tuple[KeyRange, ...] = ()
    compares: bool = False
    rewrite: LSN | None = None

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The ids of the requests."""
        return tuple(request.id for request in self.requests)

    @property
    def follows_publication(self) -> bool:
        """Whether all requests follow a change of the publication."""
        return bool(self.requests) and all(request.entry is not None for request in self.requests)

    @property
    def adoption(self) -> Adoption | None:
        """The Delta table to adopt, if the newest request is for that."""
        return self.requests[-1].adoption if self.requests and not self.compares else None

    @classmethod
    def of(cls, requests: Sequence[CopyRequest], *, is_whole: bool) -> Candidate:
        """Return what answers all requests."""
        is_whole = is_whole or not all(request.key_ranges for request in requests)
        ranges = dict.fromkeys(each for request in requests for each in request.key_ranges)
        return cls(tuple(requests), () if is_whole else tuple(ranges))


class CopyCandidates:
    """Polls the source, over a session of its own that is opened again if it is lost.

    Its fields are the watches of one poll, bound by their order, and what each poll leaves for the next.
    """

    def __init__(
        self,
        config: Config,
        writer: BronzeWriter,
        summary: IngestSummary,
        state: CaptureState,
        protection: ColumnProtection,
        *,
        is_continuous: bool,
    ) -> None:
        self._config = config
        self._writer = writer
        self._bronze = writer.bronze
        self._summary = summary
        self._state = state
        self._is_continuous = is_continuous
        self._connection: Connection | None = None
        self._upkeep = PublicationUpkeep(config, writer.bronze.lake, summary)
        self._edits = PublicationEdits(config)
        self._catalog = CatalogWatch(config, writer.bronze, state, self._edits, self._writers_end, protection)
        self._comments = CommentWatch(config, writer.bronze.lake)
        self._protection = protection
        self._shapes = ShapeWatch(config, writer, state, protection, is_continuous=is_continuous)
        patience = PATIENCE if is_continuous else RUN_PATIENCE
        self._new_tables = NewTables(patience)
        self._written_tables = NewTables(patience)  # at an edit of the publication
        self._published: Mapping[TableName, Membership] = {}  # at the last poll
        self._late: set[TableName] = set()  # they have waited for long to be compared
        self._republished: set[TableName] = set()  # an event is recorded for them
        self._failures: Mapping[TableName, str] = {}  # events are recorded for them
        self.attempts = CopyAttempts()
        self.is_waiting = False  # for transactions that write to new tables, or for a next attempt
        self.writers_end_lsn = INVALID  # all transactions that were waited for have ended before

    def close(self) -> None:
        """End the sessions."""
        self._edits.close()
        if self._connection is not None:
            self._connection.close()

    @property
    def has_lost_session(self) -> bool:
        """Return whether the session was lost: the next poll opens another."""
        return self._connection is not None and self._connection.closed

    def poll(self) -> dict[TableName, Candidate]:
        """Return the tables that need a copy; record which are not published any more."""
        copies = self._bronze.copies
        # Before the publication is read: a table that joins meanwhile is not missing in it.
        names = self._bronze.table_names() | copies.read().states.keys()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._config.source.conninfo, application_name=COPY_SESSIONS)
        connection = self._connection
        published = self._poll_publication(connection, names)
        polled_lsn = read_flush_lsn(connection)
        published = {name: now for name, now in published.items() if name not in self._upkeep.refused}
        under_old_name = self._renew_names(published, polled_lsn)
        undecided = self._settle_republished(connection, under_old_name, polled_lsn)
        history = copies.read()
        candidates: dict[TableName, Candidate] = {}
        missing: set[TableName] = set()
        if self._config.source.copy == "initial":
            candidates = self._without_copy(published, under_old_name, history)
            missing = {name for name in names - published.keys() if not history.is_dropped(name)}
        for name, requests in history.open_requests.items():
            if name in undecided:
                continue
            member = published.get(name)
            compared = self._comparison(name, member, requests, history) if member else None
            if compared is not None:
                candidates[name] = replace(compared, compares=name not in under_old_name)
            elif member is None:
                missing.add(name)
            elif name in candidates or not _awaits_move(name, requests, history):
                candidates[name] = Candidate.of(requests, is_whole=name in candidates)
        if missing:
            self._record_missing(connection, missing, history, polled_lsn)
        candidates = self._followed(candidates)
        self.attempts.keep(candidates)
        self._new_tables.keep(published)
        waiting = self._wait_for_writers(connection, {n: published[n] for n in candidates}, history)
        waiting |= {n for n, each in candidates.items() if not self.attempts.is_due(n, each.request_ids)}
        self.is_waiting = bool(waiting or undecided - failures_of(self._summary).keys())
        self.is_waiting |= self._written_tables.is_waiting_briefly
        ready = {name: candidate for name, candidate in candidates.items() if name not in waiting}
        if ready:
            self._edits.release()  # what follows may take long
        return ready

    def _poll_publication(
        self, connection: Connection, names: Collection[TableName]
    ) -> Mapping[TableName, Membership]:
        """Return the published tables; record what the catalog shows of them, `names` of bronze's."""
        self._upkeep.poll(connection)
        if self._is_continuous:
            self._edits.hold()
        publication = self._config.source.publication
        published = list_published(connection, publication)
        record_protected(connection, publication, self._writer, self._protection, published)
        self._published = published
        # before a copy of what changes begins
        self._catalog.poll(connection, published.keys() & set(names))
        self._comments.poll(connection, published, self._bronze.copies.read().moves)
        self._shapes.poll(connection, published)
        return published

    def _without_copy(
        self,
        published: Mapping[TableName, Membership],
        under_old_name: Collection[TableName],
        history: CopyHistory,
    ) -> dict[TableName, Candidate]:
        """Return the published tables that have no complete copy of their membership."""
        found: dict[TableName, Candidate] = {}
        for name, now in published.items():
            if name not in under_old_name:
                if self._is_compared(name, now, history):
                    continue
                if history.is_complete(name, now.relation_id, now.entry):
                    continue
            found[name] = Candidate()
            self._record_republished(name, now, history)
        return found

    def _record_missing(
        self, connection: Connection, missing: Collection[TableName], history: CopyHistory, polled_lsn: LSN
    ) -> None:
        """Record the tables of bronze, or of requests, that are not published any more."""
        self._state.require(polled_lsn)
        for name in missing:
            self._summary.copies.pop(name, None)
        existing = list_existing(connection, missing)
        self._writer.record_copies(
            [
                dropped_row(history, name, polled_lsn, self._why_missing(name, polled_lsn, existing))
                for name in sorted(missing)
            ]
        )

    def _followed(self, candidates: Mapping[TableName, Candidate]) -> dict[TableName, Candidate]:
        """Return those that a rule matches, without what failed in a run that ends by itself."""
        skipped = set() if self._is_continuous else failures_of(self._summary).keys()
        return {
            name: candidate
            for name, candidate in sorted(candidates.items())
            if self._config.rule_for(name) is not None and name not in skipped
        }

    def record_failures(self, lsn: LSN) -> bool:
        """Record why tables cannot be copied unless their newest event does; return whether any cannot."""
        failures = failures_of(self._summary)
        new = {name: sentence for name, sentence in failures.items() if self._failures.get(name) != sentence}
        self._failures = failures
        if new:
            records = Records(self._bronze.lake)
            records.ensure()
            last = records.events.newest().tables
            events = [
                Event(*name, lsn, "held", name.introduce(why, "The table cannot be copied: "))
                for name, why in new.items()
            ]
            recorded = {name: last[name].sentence for name in new if name in last}
            records.events.record([e for e in events if recorded.get(e.name) != e.sentence])
        return bool(failures)

    def _comparison(
        self, name: TableName, now: Membership, requests: Sequence[CopyRequest], history: CopyHistory
    ) -> Candidate | None:
        """Return the comparison of a table, None if that is not all it needs.

        Silver is at a gap before it is at a rewrite that came later, so the gap is closed first.
        """
        if not all(each.compares for each in requests):
            return None
        last = history.last(name)
        gap = history.open_gap(name, last.copy if last else None)
        if gap is None:
            rewrite = rewritten_before(requests)
            is_same = history.is_complete(name, now.relation_id, now.entry)
            if rewrite is None or not (is_same or self._is_compared(name, now, history)):
                return None
            return Candidate(tuple(requests), compares=True, rewrite=rewrite)
        after_gap = tuple(each for each in requests if each.closes_gap or (each.rewrite or gap.end) < gap.end)
        is_copied = self._config.source.copy == "never" or not history.is_dropped(name)
        is_same = history.membership(name)[0] == now.relation_id
        closes_gap = any(each.closes_gap for each in after_gap)
        if self._config.source.lost_slot == "resync" or not closes_gap or not is_copied:
            return None
        is_comparable = last is None or is_same or history.is_moved(name, now.relation_id)
        return Candidate(after_gap, compares=True) if is_comparable else None

    def _why_missing(self, name: TableName, lsn: LSN, existing: Collection[TableName]) -> str:
        """Return why a table is not followed, as of a poll."""
        if reason := self._upkeep.refused.get(name):
            return f"{name} is not followed (found at {lsn}). {reason}"
        if name in existing:
            return f"{name} is not published by {self._config.source.publication} (found at {lsn})."
        return f"{name} does not exist at the source any more (found at {lsn})."

    def _record_republished(self, name: TableName, now: Membership, history: CopyHistory) -> None:
        """Record an event if silver shows a table that has another entry in the publication now."""
        if history.is_moved(name, now.relation_id):
            return
        copied_at = history.republished_since(name, now.relation_id, now.entry)
        if copied_at is not None and name not in self._republished:
            records = Records(self._bronze.lake)
            if name in records.tables.read():
                records.events.record([Event(*name, copied_at, "resync", _REPUBLISHED)])
            self._republished.add(name)

    def _wait_for_writers(
        self, connection: Connection, published: Mapping[TableName, Membership], history: CopyHistory
    ) -> set[TableName]:
        """Return the tables that some transaction was writing to when they joined, and still is."""
        joined = {
            n: now
            for n, now in published.items()
            if is_new(now, history.states.get(n, ())) and history.membership(n)[1] != now.entry
        }
        found, is_over = self._poll_writers(connection, self._new_tables, joined)
        waiting = {name for name, table in found.items() if table.is_waiting}
        for name in waiting:
            self._summary.copies[name] = CopyProgress(failure=found[name].sentence(time.monotonic()))
        return waiting if is_over else set(published)

    def _poll_writers(
        self, connection: Connection, tables: NewTables, joined: Mapping[TableName, Membership]
    ) -> tuple[dict[TableName, NewTable], bool]:
        """Return the state of tables that joined, and whether the stream's session knows those ready."""
        found = tables.poll(connection, joined)
        waiting = {name for name, table in found.items() if table.is_waiting}
        if ready := [t for name, t in found.items() if name not in waiting and not t.is_in_session]:
            self.writers_end_lsn = write_wal_past_now(connection, self._state.stop_copies.is_set)
            self._state.require(self.writers_end_lsn)
            # A server that keeps stale entries does not send the table to a session that began before.
            is_stale = keeps_stale_entries(connection.info.server_version)
            if is_stale and not self._state.request_session(self.writers_end_lsn):
                return found, False
            for table in ready:
                table.is_in_session = True
        return found, True

    def _writers_end(self, connection: Connection, names: Collection[TableName], xmin: int) -> LSN | None:
        """Return an LSN after all transactions that may have written before an edit of the publication.

        The edit gave the publication an xmin. Returns None while such transactions are open.
        """
        joined = {n: Membership(self._published[n].relation_id, xmin) for n in names if n in self._published}
        found, is_over = self._poll_writers(connection, self._written_tables, joined)
        has_ended = is_over and not any(table.is_waiting for table in found.values())
        return max(self.writers_end_lsn, read_flush_lsn(connection)) if has_ended else None

    def _settle_republished(
        self, connection: Connection, under_old_name: Collection[TableName], polled_lsn: LSN
    ) -> set[TableName]:
        """Settle tables with another entry in the publication; return those that are not decided yet.

        An entry that is proved to be the former one's successor is recorded. Other tables are compared,
        once the transactions have ended that were writing to them when the entry was first seen.
        """
        history = self._bronze.copies.read()
        changed = {
            name: now
            for name, now in self._published.items()
            if name not in under_old_name and self._is_comparable(name, now, history)
        }
        kept = [
            compared_row(name, Comparison(INVALID, polled_lsn, now.relation_id, now.entry, (), _KEPT))
            for name, now in changed.items()
            if self._edits.keeps_entry(history.membership(name)[1], now.entry)
        ]
        if kept:
            self._state.require(polled_lsn)
            self._writer.record_copies(kept)
            history = self._bronze.copies.read()
        new = {
            name: now
            for name, now in changed.items()
            if history.membership(name)[1] != now.entry and not self._is_compared(name, now, history)
        }
        found, is_over = self._poll_writers(connection, self._new_tables, new)
        undecided = {name for name, table in found.items() if not is_over or table.is_waiting}
        self._report_late({n: why for n, t in found.items() if (why := t.sentence(time.monotonic()))})
        if ready := sorted(new.keys() - undecided):
            lsn = max(polled_lsn, self.writers_end_lsn)
            self._state.require(lsn)
            records = Records(self._bronze.lake)
            records.ensure()
            records.events.record(
                [
                    Event(*n, lsn, "evolved", f"{_COMPARED}{kept_columns(self._unsent(connection, n))}")
                    for n in ready
                ]
            )
            self._bronze.copies.request(
                [CopyRequest.after_publication(name, lsn, new[name].entry) for name in ready]
            )
        return undecided

    def _unsent(self, connection: Connection, name: TableName) -> list[str]:
        """Return the columns that bronze has of a table, and that exist and are not published any more."""
        found = [each for each in self._bronze.source_relations().values() if each.name == name]
        try:
            relation = describe_published(connection, self._config.source.publication, name).relation
            catalog = read_relation(connection, relation)
            existing = list_existing_columns(connection, relation.oid)
        except SourceError:  # locked, or gone meanwhile
            return []
        known = max(found, key=lambda each: each.lsn, default=None)
        if known is None or catalog is None:
            return []
        unsent = existing - {column.attribute_number for column in catalog.columns}
        return [column.name for column in known.columns if column.attribute_number in unsent]

    def _is_comparable(self, name: TableName, now: Membership, history: CopyHistory) -> bool:
        """Return whether a table that silver has got another entry, and is to be compared."""
        last = history.last(name)
        return (
            self._config.source.copy == "initial"
            and self._config.rule_for(name) is not None
            and self._catalog.policy(name) == "compare"
            and history.republished_since(name, now.relation_id, now.entry) is not None
            and history.open_gap(name, last.copy if last else None) is None
            and not history.is_moved(name, now.relation_id)
        )

    def _report_late(self, sentences: Mapping[TableName, str]) -> None:
        """Show the tables that have waited for long to be compared, and no others any more."""
        for name in self._late - sentences.keys():
            self._summary.copies.pop(name, None)
        self._late = set(sentences)
        self._summary.copies |= {name: CopyProgress(failure=why) for name, why in sentences.items()}

    def _is_compared(self, name: TableName, now: Membership, history: CopyHistory) -> bool:
        """Return whether a comparison is requested that follows the change to a table's entry of now."""
        requests = history.open_requests.get(name, ())
        return any(request.entry == now.entry for request in requests) and (
            history.republished_since(name, now.relation_id, now.entry) is not None
        )

    def _renew_names(self, published: Mapping[TableName, Membership], polled_lsn: LSN) -> set[TableName]:
        """Return the tables that the stream had under an old name, once a new session has begun.

        What was committed under the old name is in no copy that was made before.
        """
        rule_for, before = self._config.rule_for, self._state.renamed(published)
        if not any(rule_for(name) for name in before):
            return set()
        self._state.require(polled_lsn)
        self._state.wait_past(LSN(polled_lsn - 1))  # capture may not have read yet that it was renamed
        now = self._state.renamed(published)
        under_old_name = {
            name
            for name, streamed in before.items()
            if rule_for(name)
            and now.get(name) == streamed
            and self._state.may_request_session(published[name].relation_id, name, streamed)
        }
        if under_old_name and self._state.request_session(polled_lsn):
            return under_old_name
        return set()


def _awaits_move(name: TableName, requests: Sequence[CopyRequest], history: CopyHistory) -> bool:
    """Return whether a comparison was requested before its gap is recorded, by a move that has not ended."""
    last = history.last(name)
    is_open = history.open_gap(name, last.copy if last else None) is not None
    return not is_open and all(request.closes_gap for request in requests)


def is_new(now: Membership, states: Sequence[CopyState]) -> bool:
    """Return whether a table has no copy under its publication entry; FOR ALL TABLES has no entries."""
    return now.entry != 0 and all(state.membership != now.entry for state in states)


def failures_of(summary: IngestSummary) -> dict[TableName, str]:
    """Return why tables cannot be copied, as a run shows it."""
    return {name: copy.failure for name, copy in summary.copies.items() if copy.failure}
