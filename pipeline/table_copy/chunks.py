"""Which ranges of pages a copy reads, and whether one that was cut off may go on under another snapshot.

Pure. A copy goes on only where every row has a key, and where the table still is what it was: rows that moved
between two snapshots are then put right by their key and the changes in between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.bronze.copy_states import CopyState, Gap, PageRange
from pipeline.postgres.published_tables import Leaf, PublishedTable

PAGE_BYTES = 8192
MOST_RANGE_PAGES = 131_072  # 1 GiB
_FEW_RANGES = 64


def plan_ranges(
    leaves: Sequence[Leaf], range_size: int, first_pages: dict[int, int] | None = None
) -> tuple[PageRange, ...]:
    """Return the ranges of all pages of the leaves, or of those behind the first ones.

    A range has so many bytes at the least, so that large tables do not have very many.
    """
    firsts = first_pages or {}
    total = sum(leaf.pages for leaf in leaves)
    step = max(1, range_size // PAGE_BYTES, min(total // _FEW_RANGES, MOST_RANGE_PAGES))
    return tuple(
        PageRange(leaf.oid, leaf.filenode, page, min(page + step, leaf.pages))
        for leaf in leaves
        for page in range(firsts.get(leaf.oid, 0), leaf.pages, step)
    )


def whole_leaves(leaves: Sequence[Leaf]) -> tuple[PageRange, ...]:
    """Return one range a leaf, of which rows are found by their keys."""
    return tuple(PageRange(leaf.oid, leaf.filenode, 0, leaf.pages) for leaf in leaves)


def is_outdated(
    state: CopyState, membership: int | None, requests: Collection[str], gaps: Sequence[Gap]
) -> bool:
    """Say whether what a copy has read already may be worth nothing by now.

    Its table may have left the publication meanwhile (its entry is another one), somebody may have asked for
    a copy since, or the stream may have lost what changed.
    """
    is_asked_again = not set(requests) <= set(state.requests)
    is_before_gap = bool(gaps) and not gaps[-1].is_before(state.snapshots[0].lsn)
    return state.membership != membership or is_asked_again or is_before_gap


def plan_rest(
    state: CopyState, table: PublishedTable, version: int, done: int, range_size: int
) -> tuple[PageRange, ...] | None:
    """Return what a copy that was cut off after `done` ranges has still to read; None where it may not go on.

    Pages that came since are read as well: a row may have moved there.
    """
    if state.key_ranges or not is_keyed(table) or state.relation_version != version:
        return None
    last = state.snapshots[-1]
    planned = [r for reading in state.snapshots for r in reading.ranges]
    filenodes = {leaf.oid: leaf.filenode for leaf in table.leaves}
    if {(r.relation_id, r.filenode) for r in planned} - filenodes.items():
        return None
    ends: dict[int, int] = {}
    for planned_range in planned:
        end = max(ends.get(planned_range.relation_id, 0), planned_range.end_page)
        ends[planned_range.relation_id] = end
    return (*last.ranges[max(0, done - last.ranges_before) :], *plan_ranges(table.leaves, range_size, ends))


def is_keyed(table: PublishedTable) -> bool:
    """Say whether the stream finds the table's rows by a key."""
    relation = table.relation
    return relation.replica_identity != "f" and any(column.is_key for column in relation.columns)
