"""Settle partitions that came, went or were emptied under their root, which no message says.

What is in silver by the bounds of such a partition becomes what the source has there: a copy of that range
reads the rows of an attached partition, and none of one that is gone. It is a copy under a snapshot like any
other, so rows that a later transaction writes into the same range stay. A partition was attached empty if its
rows are those that the stream brought. Without usable bounds the table is settled as a rewritten one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.key_ranges import KeyRange
from pipeline.metadata.catalog import CatalogState, Root, SourcePartition
from pipeline.metadata.events import INFO, Event
from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.postgres.watched_tables import count_by_xid, list_with_pages
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import compare_roots, leaves_below
from pipeline.table_copy.rewrites import Rewrites, count_changes
from pipeline.table_name import TableName

_MAX_SENTENCES = 5
_MAX_RANGES = 1000  # of one copy
_XID_MASK, _XIDS_AHEAD = 0xFFFFFFFF, 1 << 31
_GONE = "Partition {} was dropped, detached or made unlogged."
_RETURNED = "Partition {} was detached and attached again."
_ATTACHED = "Partition {} was attached and may have had rows."
_EMPTIED = "Partition {} was truncated, or rewritten: no earlier row is left."
_BY_BOUNDS = "Silver's rows within these bounds become those of the source."
_KEPT = "Silver keeps its rows, also those that the source does not have ({})."
_COPIED = "All rows of the table are copied (dropped_partitions: resync)."


@dataclass(slots=True)
class PartitionOutcome:
    """What follows for one root: events, requests, and a sentence if it is to be settled as rewritten.

    `undecided` are the partitions that are not decided yet, by OID.
    """

    events: list[Event] = field(default_factory=list)
    requests: list[CopyRequest] = field(default_factory=list)
    rewritten: str | None = None
    undecided: set[int] = field(default_factory=set)


class PartitionChanges:
    """Settles the partitions that differ between two states of the catalog, for one run of ingest."""

    def __init__(self, config: Config, bronze: Bronze, state: CaptureState, rewrites: Rewrites) -> None:
        self._config = config
        self._bronze = bronze
        self._state = state
        self._rewrites = rewrites

    def settle(
        self, connection: Connection, old: Root, root: Root, before: CatalogState, now: CatalogState
    ) -> PartitionOutcome:
        """Return what follows from the changes of a root's partitions."""
        found, rule = PartitionOutcome(), self._config.rule_for(root.name)
        changes = compare_roots(old, root)
        suspects = {oid: root.partitions[oid] for oid in changes.suspects}
        emptied, found.undecided = self._rewrites.unproven(connection, root.name, suspects, before, now)
        filled = self._filled(connection, root, changes.joined, before)
        if rule is None:
            return found
        gone = _sentences(_GONE, old, changes.gone)
        cut = _sentences(_EMPTIED, root, sorted(emptied))
        arrived = _sentences(_RETURNED, root, changes.returned) | _sentences(_ATTACHED, root, filled)
        # ALTER TABLE of the root rewrites all partitions
        is_rewritten = bool(emptied) and emptied.issuperset(_leaves(old))
        if (why := _why_gone_stay(rule)) and gone:
            found.events.append(Event(*root.name, now.lsn, INFO, f"{_join(gone)} {_KEPT.format(why)}"))
            gone = {}
        if (why := _why_emptied_stay(rule)) and cut and not is_rewritten:
            found.events.append(Event(*root.name, now.lsn, INFO, f"{_join(cut)} {_KEPT.format(why)}"))
            cut = {}
        if gone and rule.dropped_partitions == "resync":
            found.events.append(Event(*root.name, now.lsn, "evolved", f"{_join(gone)} {_COPIED}"))
            found.requests.append(CopyRequest.of(root.name, f"Partitions were dropped before {now.lsn}."))
        elif sentences := {**gone, **arrived, **cut}:
            ranges = [_ranges_of(old, oid) for oid in (*gone, *changes.returned)]
            ranges += [_ranges_of(root, oid) for oid in (*arrived, *cut)]
            usable = None if is_rewritten else _usable(ranges)
            self._settle_range(found, rule, root.name, now.lsn, _join(sentences), usable)
        return found

    def _settle_range(
        self,
        found: PartitionOutcome,
        rule: TableRule,
        name: TableName,
        lsn: LSN,
        sentence: str,
        ranges: Sequence[KeyRange] | None,
    ) -> None:
        """Add what makes silver equal to the source within ranges; None if they are not known."""
        by_key = rule.mode == "mirror" and not rule.keeps_past and self._config.source.copy != "never"
        if not by_key or ranges is None:
            found.rewritten = sentence
            return
        found.events.append(Event(*name, lsn, "evolved", f"{sentence} {_BY_BOUNDS}"))
        if ranges:
            found.requests.append(CopyRequest.of(name, f"Partitions changed before {lsn}.", ranges))

    def _filled(
        self, connection: Connection, root: Root, joined: Iterable[int], before: CatalogState
    ) -> list[int]:
        """Return the partitions that joined and may have had rows before."""
        leaves = {oid: list(leaves_below(root, oid)) for oid in joined}
        with_pages = list_with_pages(connection, {leaf for each in leaves.values() for leaf in each})
        filled = [oid for oid, each in leaves.items() if not with_pages.isdisjoint(each)]
        return [
            oid
            for oid in filled
            if leaves[oid] != [oid] or not self._was_empty(connection, root, root.partitions[oid], before)
        ]

    def _was_empty(
        self, connection: Connection, root: Root, partition: SourcePartition, before: CatalogState
    ) -> bool:
        """Return whether it is proved that a partition was attached without rows.

        To attach it, a transaction locked it. So every other one wrote to it before or after that, but not
        both. A transaction that began after the one that attached it, which no other could write beside
        (`is_alone`), wrote after it. The stream then has all its rows, unless it wrote them elsewhere.
        """
        if not partition.is_alone:
            return False
        rows = count_by_xid(connection, partition.name)
        if rows is None or not all(_is_later(xid, partition.attached_by) for xid in rows):
            return False
        if not rows:
            return True
        lsn = read_flush_lsn(connection)
        self._state.require(lsn)
        if not self._state.wait_past(LSN(lsn - 1)):
            return False
        changes = count_changes(self._bronze, root.name, rows, before.lsn, ("I", "U"))
        return all(count <= changes.get(xid, 0) for xid, count in rows.items())


def _is_later(xid: int, other: int) -> bool:
    return 0 < ((xid - other) & _XID_MASK) < _XIDS_AHEAD


def _leaves(root: Root) -> list[int]:
    parents = {each.parent_id for each in root.partitions.values()}
    return [oid for oid in root.partitions if oid not in parents]


def _ranges_of(root: Root, relation_id: int) -> tuple[KeyRange, ...] | None:
    """Return ranges with all rows of a partition: within its bounds and those of its parents."""
    found: tuple[KeyRange, ...] | None = None
    while (partition := root.partitions.get(relation_id)) is not None:
        own, relation_id = partition.ranges, partition.parent_id
        if own is not None and (found is None or len(own) * len(found) <= _MAX_RANGES):
            found = own if found is None else tuple(_within(a, b) for a, b in product(own, found))
    return found


def _within(outer: KeyRange, inner: KeyRange) -> KeyRange:
    """Return the keys in both ranges, or all of the inner one in columns that both have."""
    names = {each.name for each in inner.columns}
    return KeyRange((), (), (*inner.columns, *(c for c in outer.columns if c.name not in names)))


def _usable(ranges: Iterable[tuple[KeyRange, ...] | None]) -> list[KeyRange] | None:
    """Return all ranges, None if some are not known or there are too many."""
    found: dict[KeyRange, None] = {}
    for each in ranges:
        if each is None:
            return None
        found |= dict.fromkeys(each)
    return list(found) if len(found) <= _MAX_RANGES else None


def _why_gone_stay(rule: TableRule) -> str | None:
    if rule.mode == "append":
        return "mode: append"
    if rule.ignores_deletes:
        return "on_delete: ignore"
    return "dropped_partitions: keep" if rule.dropped_partitions == "keep" else None


def _why_emptied_stay(rule: TableRule) -> str | None:
    if rule.mode == "append":
        return "mode: append"
    return "on_truncate: ignore" if rule.mode == "mirror" and rule.on_truncate == "ignore" else None


def _sentences(sentence: str, root: Root, relation_ids: Iterable[int]) -> dict[int, str]:
    """Return a sentence about each of some partitions, by OID."""
    return {oid: sentence.format(root.partitions[oid].name) for oid in relation_ids}


def _join(sentences: Mapping[int, str]) -> str:
    found = list(sentences.values())
    more = len(found) - _MAX_SENTENCES
    return " ".join(found[:_MAX_SENTENCES]) + (f" The same of {more} more partitions." if more > 0 else "")
