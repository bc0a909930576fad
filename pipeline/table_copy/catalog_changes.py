"""Compare two states of the source's catalog: what became of tables, partitions and the publication. Pure.

A table or partition with another file node is a suspect: it was truncated, or it was rewritten, maybe with
the same rows, which only its rows and the stream can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.metadata.catalog import CatalogState, Root, SourcePartition, SourceType, TableFile
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class RootChanges:
    """What became of one root's partitions, by OID: gone, detached and attached again, joined, or suspects.

    One that is gone, or that may have joined with rows, is given without those below it.
    """

    gone: tuple[int, ...]
    returned: tuple[int, ...]
    joined: tuple[int, ...]
    suspects: tuple[int, ...]


def is_publication_changed(before: CatalogState, now: CatalogState) -> bool:
    """Return whether the publication's row was written again, maybe of one that was created again."""
    return (before.publication_id, before.publication_xmin) != (now.publication_id, now.publication_xmin)


def compare_roots(before: Root, now: Root) -> RootChanges:
    """Return what became of a root; the order is that of the partitions' OIDs."""
    lost = before.partitions.keys() - now.partitions.keys()
    gone = [oid for oid in lost if before.partitions[oid].parent_id not in lost]
    returned = [
        oid
        for oid, partition in before.partitions.items()
        if (found := now.partitions.get(oid)) is not None
        and (found.attached_by, found.parent_id) != (partition.attached_by, partition.parent_id)
    ]
    new = now.partitions.keys() - before.partitions.keys()
    joined = [
        oid for oid in new if not now.partitions[oid].is_born and now.partitions[oid].parent_id not in new
    ]
    suspects = [
        oid
        for oid, partition in now.partitions.items()
        if oid in before.partitions and partition.filenode != before.partitions[oid].filenode
    ]
    return RootChanges(*(tuple(sorted(each)) for each in (gone, returned, joined, suspects)))


def leaves_below(root: Root, relation_id: int) -> Iterator[int]:
    """Yield the OIDs of a partition's leaves, or its own if it is one."""
    children = [oid for oid, partition in root.partitions.items() if partition.parent_id == relation_id]
    if not children:
        yield relation_id
    for child in children:
        yield from leaves_below(root, child)


def without_bounds(state: CatalogState, hidden: Mapping[int, Collection[str] | None]) -> CatalogState:
    """Return a state without the bounds of partitions by hidden columns of their root, None for all.

    Bounds are values of the source: those of a protected column are recorded nowhere.
    """

    def shown(root: Root, names: Collection[str] | None) -> Root:
        partitions = {
            oid: each
            if names is not None and not any(c.name in names for r in each.ranges or () for c in r.columns)
            else replace(each, ranges=None)
            for oid, each in root.partitions.items()
        }
        return Root(root.name, partitions)

    roots = {oid: shown(root, hidden[oid]) if oid in hidden else root for oid, root in state.roots.items()}
    return replace(state, roots=roots)


def without_filenodes(now: Root, before: Root, undecided: Collection[int]) -> Root:
    """Return a root with the earlier file nodes of partitions that are not decided yet."""
    kept: dict[int, SourcePartition] = {
        oid: before.partitions[oid] if oid in undecided else partition
        for oid, partition in now.partitions.items()
    }
    return Root(now.name, kept)


def with_other_files(before: Mapping[int, TableFile], now: Mapping[int, TableFile]) -> dict[int, TableFile]:
    """Return the tables that have another file node, by OID."""
    return {
        oid: table for oid, table in now.items() if oid in before and table.filenode != before[oid].filenode
    }


def list_altered_types(before: CatalogState, now: CatalogState) -> dict[int, list[TableName]]:
    """Return the types that give stored values another text now, by the OID of each table that has them."""
    found: dict[int, list[TableName]] = {}
    for oid, each in sorted(now.types.items()):
        if _is_altered(each, before.types.get(oid), before.oldest_xid):
            for table in each.tables & now.tables.keys():
                found.setdefault(table, []).append(each.name)
    return found


def _is_altered(now: SourceType, before: SourceType | None, oldest_xid: int) -> bool:
    if before is None:  # the first table that has it may be older than its change
        return 0 < oldest_xid <= now.altered_by  # 0 is that of an unknown state
    parts = {n: mark for n, mark in now.parts.items() if n in before.parts or not now.is_enum}
    return parts != before.parts


def without_expressions(
    before: Mapping[int, TableFile], now: Mapping[int, TableFile]
) -> dict[int, frozenset[int]]:
    """Return the numbers of columns that are not generated any more, by the OID of their table."""
    found = {oid: before[oid].generated - table.generated for oid, table in now.items() if oid in before}
    return {oid: numbers for oid, numbers in found.items() if numbers}


def kept_columns(names: Sequence[str]) -> str:
    """Return a sentence about columns that left a table's column list, none if no column did."""
    if not names:
        return ""
    return (
        f" Columns that are not published any more: {', '.join(names)}. Silver keeps their values, also in"
        " rows that are updated; rows that are inserted or copied from now on have NULL there."
    )
