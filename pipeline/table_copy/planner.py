"""What is read of each table that is wanted, under one snapshot: all of it, the rest, or some keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import READING, CopyRequest, CopyState, SnapshotRanges
from pipeline.bronze.log import Bronze
from pipeline.bronze.relation_versions import RelationVersion, relation_version
from pipeline.config.config import Config
from pipeline.key_ranges import KeyRange, find_fault
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import Connection
from pipeline.postgres.key_conditions import KeyCondition, accepts_keys, key_condition, orders_by_bytes
from pipeline.postgres.published_tables import PublishedTable, describe_published, list_published
from pipeline.postgres.snapshot.export import Snapshot
from pipeline.progress import CopyProgress
from pipeline.table_copy.chunks import is_outdated, plan_ranges, plan_rest, whole_leaves
from pipeline.table_copy.reader_pool import TableCopy, abandoned_row
from pipeline.table_copy.rows import CopyHeader
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Candidate:
    """Why a table is copied: what was asked for; without key ranges it is the whole table."""

    requests: tuple[CopyRequest, ...] = ()
    key_ranges: tuple[KeyRange, ...] = ()

    @classmethod
    def of(cls, requests: Sequence[CopyRequest], *, is_whole: bool) -> Candidate:
        """Return what fulfils all requests."""
        is_whole = is_whole or not all(request.key_ranges for request in requests)
        ranges = dict.fromkeys(each for request in requests for each in request.key_ranges)
        return cls(tuple(requests), () if is_whole else tuple(ranges))


class CopyPlanner:
    """Starts copies under one snapshot; `abandoned` are the rows of what cannot go on under it."""

    def __init__(
        self,
        bronze: Bronze,
        copies: CopyHistory,
        connection: Connection,
        snapshot: Snapshot,
        config: Config,
    ) -> None:
        """Describe tables over `connection`, a session under the snapshot; it may end after that."""
        self.abandoned: list[dict[str, object]] = []
        self._bronze = bronze
        self._copies = copies
        self._connection = connection
        self._snapshot = snapshot
        self._publication = config.source.publication
        self._range_size = config.source.copying.range_size
        self._next_id = copies.next_id()
        self._memberships = list_published(connection, self._publication)

    def start(self, name: TableName, want: Candidate, progress: CopyProgress) -> TableCopy:
        """Return what is to be read of a table; raise SourceError where it cannot be described."""
        table = describe_published(self._connection, self._publication, name)
        facts = read_relation(self._connection, table.relation)
        version = relation_version(table.relation, facts, self._snapshot.lsn)
        membership = self._memberships[name].entry if name in self._memberships else None
        found = self._rest(name, want, table, version, membership)
        if found is None:
            keys = self._keys(name, version, want)
            ranges_of_keys = want.key_ranges if keys else ()
            state = CopyState(self._next_id, name, READING, membership=membership, key_ranges=ranges_of_keys)
            self._next_id += 1
            table = replace(table, keys=keys)
            ranges = whole_leaves(table.leaves) if keys else plan_ranges(table.leaves, self._range_size)
            found = state, SnapshotRanges(self._snapshot.lsn, self._snapshot.running, 0, ranges)
        state, reading = found
        state.requests = tuple(r.id for r in want.requests) or state.requests
        progress.ranges = len(reading.ranges)
        progress.pages = sum(pages.end_page - pages.first_page for pages in reading.ranges)
        progress.landed(0, state.row_count)
        place = CopyHeader(state.id, version, self._snapshot.lsn, self._snapshot.exported_at)
        return TableCopy(state, table, place, reading, progress)

    def _rest(
        self,
        name: TableName,
        want: Candidate,
        table: PublishedTable,
        version: RelationVersion,
        membership: int | None,
    ) -> tuple[CopyState, SnapshotRanges] | None:
        """Return what is left of a copy that was cut off, where it may go on."""
        requests, gaps = [request.id for request in want.requests], self._copies.gaps
        for state in self._copies.unfinished(name):
            done = int(self._bronze.changes.offset(self._bronze.copy_txn(state.id)) or 0)
            rest = plan_rest(state, table, version.id, done, self._range_size)
            if rest is not None and not is_outdated(state, membership, requests, gaps):
                state.row_count = self._bronze.copied_rows(state.id)
                return state, SnapshotRanges(self._snapshot.lsn, self._snapshot.running, done, rest)
            sentence = "the run that read it ended, and it has to begin anew"
            self.abandoned.append(abandoned_row(state, sentence))
        return None

    def _keys(self, name: TableName, version: RelationVersion, want: Candidate) -> KeyCondition | None:
        """Return the condition for the wanted keys; None where the whole table is to be copied."""
        names, types = version.key
        if not want.key_ranges or find_fault(types, want.key_ranges):
            return None
        keys = key_condition(names, types, want.key_ranges)
        is_told = orders_by_bytes(self._connection) and accepts_keys(self._connection, name, keys)
        return keys if is_told else None
