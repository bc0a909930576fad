"""Which chunks a copy reads, and whether an interrupted copy may be resumed under another snapshot.

Pure. A copy is resumed only if every row has a key and the table still is what it was: rows that moved
between two snapshots are then put right by their key and the changes in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pipeline.bronze.copy_states import Chunk, CopyState, Gap
from pipeline.postgres.published_tables import Leaf, PublishedTable

PAGE_BYTES = 8192
MOST_CHUNK_PAGES = 131_072  # 1 GiB
_FEW_CHUNKS = 64


def plan_chunks(
    leaves: Sequence[Leaf], chunk_bytes: int, first_pages: Mapping[int, int] | None = None
) -> tuple[Chunk, ...]:
    """Return the chunks of all pages of the leaves, or of those from the first pages on.

    A chunk has at least `chunk_bytes`, and more in large tables, so that these do not have very many.
    """
    firsts = first_pages or {}
    total = sum(leaf.pages for leaf in leaves)
    step = max(1, chunk_bytes // PAGE_BYTES, min(total // _FEW_CHUNKS, MOST_CHUNK_PAGES))
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
    """Return whether what a copy has read already may be worth nothing by now.

    Its table may have left the publication meanwhile (it has another entry), a copy may have been requested
    since, or the stream may have lost what changed.
    """
    has_new_requests = not set(requests) <= set(state.requests)
    is_before_gap = bool(gaps) and not gaps[-1].is_before(state.snapshots[0].lsn)
    return state.membership != membership or has_new_requests or is_before_gap


def plan_rest(
    state: CopyState, table: PublishedTable, version: int, done: int, chunk_bytes: int
) -> tuple[Chunk, ...] | None:
    """Return what a copy interrupted after `done` chunks has still to read; None if it has to restart.

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
