"""Plan what is read of each table under one snapshot: all rows, the rest of a copy, or some keys.

A copy is read in chunks of pages. An interrupted copy is resumed under another snapshot only if every row has
a key and the table still has the same files: rows that moved between the two snapshots are then corrected by
their key and the changes in between. Reads no table and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from pipeline.bronze.copies import CopyRow, abandoned_row
from pipeline.bronze.copy_states import (
    READING,
    Chunk,
    Comparison,
    CopyHistory,
    CopyState,
    Gap,
    SnapshotChunks,
)
from pipeline.bronze.log import Bronze
from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.relations import RelationVersion, relation_version
from pipeline.config.config import Config
from pipeline.key_ranges import KeyRange, describe_unusable
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import Connection
from pipeline.postgres.key_conditions import KeyCondition, accepts_keys, key_condition, orders_by_bytes
from pipeline.postgres.publication import Leaf, PublishedTable, describe_published, list_published
from pipeline.postgres.snapshot.export import SourceSnapshot
from pipeline.progress import CopyProgress
from pipeline.table_copy.candidates import Candidate
from pipeline.table_copy.gap_verdicts import AdoptedRows, adopted_chunks
from pipeline.table_copy.reader_pool import CopyHeader, TableCopy
from pipeline.table_name import TableName

PAGE_BYTES = 8192
MAX_CHUNK_PAGES = 131_072  # 1 GiB
_FEW_CHUNKS = 64


class CopyPlanner:
    """Plans copies under one snapshot; `abandoned` are the rows of copies that cannot be resumed under it."""

    def __init__(
        self,
        bronze: Bronze,
        history: CopyHistory,
        connection: Connection,
        snapshot: SourceSnapshot,
        config: Config,
        protection: ColumnProtection,
    ) -> None:
        """Describe tables over `connection`, a session under the snapshot, which may end after that."""
        self.abandoned: list[CopyRow] = []
        self._bronze = bronze
        self._history = history
        self._connection = connection
        self._snapshot = snapshot
        self._publication = config.source.publication
        self._protection = protection
        self._chunk_bytes = config.source.copying.range_size
        self._next_id = history.next_id()
        self._memberships = list_published(connection, self._publication)

    def plan(
        self,
        name: TableName,
        candidate: Candidate,
        progress: CopyProgress,
        adopted: AdoptedRows | None = None,
    ) -> TableCopy:
        """Return what is to be read of a table; raise SourceError if it cannot be described.

        Rows that are `adopted` are not read from the source.
        """
        table = describe_published(self._connection, self._publication, name)
        catalog = read_relation(self._connection, table.relation)
        protection = self._protection.protect(table.relation, catalog)
        version = relation_version(table.relation, catalog, self._snapshot.lsn, protection=protection)
        if protection is not None:
            table = table.with_columns(protection.kept)
        membership = self._memberships[name].entry if name in self._memberships else None
        planned = self._plan_rest(name, candidate, table, version, membership, resumes=adopted is None)
        if planned is None:
            keys = adopted.rest if adopted else self._key_condition(name, version, candidate)
            table = replace(table, keys=keys)
            chunks = whole_leaves(table.leaves) if keys else plan_chunks(table.leaves, self._chunk_bytes)
            if adopted is not None:
                chunks = (*adopted_chunks(adopted), *(chunks if keys else ()))
            state = CopyState(
                self._next_id,
                name,
                READING,
                relation_id=table.relation.oid,
                membership=membership,
                relation_version=version.id,
                key_ranges=_placed(candidate, version) if keys and adopted is None else (),
            )
            self._next_id += 1
            before = self._bronze.chunk_count(name)
            planned = state, SnapshotChunks(self._snapshot.lsn, self._snapshot.running, before, chunks)
        state, snapshot = planned
        state.requests = tuple(request.id for request in candidate.requests) or state.requests
        progress.chunks = len(snapshot.chunks)
        progress.pages = sum(chunk.end_page - chunk.first_page for chunk in snapshot.chunks)
        progress.landed(0, state.row_count)
        header = CopyHeader(state.id, version, self._snapshot.lsn, self._snapshot.exported_at)
        request_ids = tuple(request.id for request in candidate.requests)
        return TableCopy(state, table, header, snapshot, progress, request_ids, adopted=adopted)

    def compared(self, name: TableName, candidate: Candidate, sentence: str) -> Comparison:
        """Return what is recorded of a table once the comparison under the snapshot is complete."""
        now = self._memberships[name]
        end = self._history.gaps[-1].end if candidate.rewrite is None else candidate.rewrite
        what = f"gap up to {end}" if candidate.rewrite is None else f"rewrite or type change before {end}"
        if candidate.follows_publication:
            what = f"change of the publication before {end}"
        sentence = f"The table was compared with the source after the {what}. {sentence}"
        return Comparison(
            end,
            self._snapshot.lsn,
            now.relation_id,
            now.entry,
            candidate.request_ids,
            sentence,
        )

    def _plan_rest(
        self,
        name: TableName,
        candidate: Candidate,
        table: PublishedTable,
        version: RelationVersion,
        membership: int | None,
        *,
        resumes: bool,
    ) -> tuple[CopyState, SnapshotChunks] | None:
        """Return what an interrupted copy has still to read, if it may be resumed."""
        requests, gaps = [request.id for request in candidate.requests], self._history.gaps
        unfinished, done = self._history.unfinished(name), self._bronze.chunk_count(name)
        for state in unfinished:
            rest = plan_rest(state, table, version.id, done, self._chunk_bytes)
            # the chunks that are counted now are of the newest one
            is_counted = state is unfinished[-1] and not self._bronze.counts_apart(state.id)
            if (
                resumes
                and rest is not None
                and is_counted
                and not is_outdated(state, membership, requests, gaps)
            ):
                lsns = [snapshot.lsn for snapshot in state.snapshots]
                state.row_count = self._bronze.copied_rows(name, state.id, lsns)
                return state, SnapshotChunks(self._snapshot.lsn, self._snapshot.running, done, rest)
            sentence = "The run that read it ended, and it cannot be resumed."
            self.abandoned.append(abandoned_row(state, sentence))
        return None

    def _key_condition(
        self, name: TableName, version: RelationVersion, candidate: Candidate
    ) -> KeyCondition | None:
        """Return the condition for the requested keys; None if all rows are to be copied."""
        names, types = version.key
        if version.protection is not None and version.protection.hashes_key(version.sent):
            return None
        if not candidate.key_ranges or describe_unusable(types, candidate.key_ranges, names):
            return None
        keys = key_condition(names, types, candidate.key_ranges)
        connection = self._connection
        return keys if orders_by_bytes(connection) and accepts_keys(connection, name, keys) else None


def _placed(candidate: Candidate, version: RelationVersion) -> tuple[KeyRange, ...]:
    names, _ = version.key
    return tuple(each.placed(names) for each in candidate.key_ranges)


def plan_chunks(
    leaves: Sequence[Leaf], chunk_bytes: int, first_pages: Mapping[int, int] | None = None
) -> tuple[Chunk, ...]:
    """Return the chunks of all pages of the leaves, or of those from the first pages on.

    A chunk has at least `chunk_bytes`, and more in large tables, so that these do not have very many.
    """
    firsts = first_pages or {}
    total = sum(leaf.pages for leaf in leaves)
    step = max(1, chunk_bytes // PAGE_BYTES, min(total // _FEW_CHUNKS, MAX_CHUNK_PAGES))
    return tuple(
        Chunk(leaf.oid, leaf.filenode, page, min(page + step, leaf.pages))
        for leaf in leaves
        for page in range(firsts.get(leaf.oid, 0), leaf.pages, step)
    )


def whole_leaves(leaves: Sequence[Leaf]) -> tuple[Chunk, ...]:
    """Return one chunk per leaf, for rows that are found by their keys."""
    return tuple(Chunk(leaf.oid, leaf.filenode, 0, leaf.pages) for leaf in leaves)


def is_outdated(
    state: CopyState, membership: int | None, requests: Collection[str], gaps: Sequence[Gap]
) -> bool:
    """Return whether what a copy has read already may be of no use any more.

    Its table may have left the publication meanwhile (it has another entry), a copy may have been requested
    since, or the stream may have lost what changed.
    """
    has_new_requests = not set(requests) <= set(state.requests)
    is_before_gap = bool(gaps) and not gaps[-1].is_before(state.snapshots[0].lsn)
    return state.membership != membership or has_new_requests or is_before_gap


def plan_rest(
    state: CopyState, table: PublishedTable, version: int, done: int, chunk_bytes: int
) -> tuple[Chunk, ...] | None:
    """Return what a copy interrupted after `done` chunks must still read; None if it must restart.

    Pages that were added since are read as well: a row may have moved there.
    """
    if state.key_ranges or not has_key(table) or state.relation_version != version:
        return None
    last = state.snapshots[-1]
    planned = [chunk for snapshot in state.snapshots for chunk in snapshot.chunks]
    filenodes = {leaf.oid: leaf.filenode for leaf in table.leaves}
    if {(chunk.relation_id, chunk.filenode) for chunk in planned} - filenodes.items():
        return None
    ends: dict[int, int] = {}
    for chunk in planned:
        ends[chunk.relation_id] = max(ends.get(chunk.relation_id, 0), chunk.end_page)
    return (
        *last.chunks[max(0, done - last.chunks_before) :],
        *plan_chunks(table.leaves, chunk_bytes, ends),
    )


def has_key(table: PublishedTable) -> bool:
    """Return whether the stream finds the table's rows by a key."""
    relation = table.relation
    return relation.replica_identity != "f" and any(column.is_key for column in relation.columns)
