"""Compare tables with the source after a gap or a rewrite: which keys differ, so that only they are copied.

A silver table is compared as it is at the beginning of the gap, where it is held, with the source as of a
snapshot after the gap. Rows that changed since then, in the gap or later, differ. The keys of these are
copied under the same snapshot; every other row of silver is already what the source has there. A table that
was rewritten is held once silver has all changes from before: those that follow keep equal rows equal. A
table is copied completely if apply could not bring it to the gap, its columns changed meanwhile, some of them
cannot be compared, its key does not identify the rows, or its mode does not allow a copy of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack

from pipeline.bronze.copy_states import COMPLETE, Adoption, CopyHistory, Gap
from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.errors import LakeError, report_error
from pipeline.key_ranges import KeyRange, cover_keys
from pipeline.metadata.manifests import Manifest, Manifests
from pipeline.metadata.registry import RegisteredTable, TableRegistry
from pipeline.postgres.connection import identify
from pipeline.postgres.snapshot.comparable_forms import HashedKind
from pipeline.postgres.snapshot.export import SnapshotKeeper, SnapshotLost
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.compare.comparable_columns import ComparableColumns, source_columns
from pipeline.silver.compare.compared_rows import fields_of, rows_of
from pipeline.silver.compare.differing_rows import Differences, find_differences
from pipeline.silver.compare.row_hashes import SilverHashes
from pipeline.silver.compare.source_rows import SourceRead, SourceReads
from pipeline.silver.fold.modes import kept_as, why_not_comparable
from pipeline.table_copy.gap_verdicts import AdoptedRows, GapVerdict
from pipeline.table_name import TableName

MAX_KEY_RANGES = 1000  # of one copy
_MAX_HASH_RANGES = 1024  # that are divided to find the rows that differ


class GapComparer:
    """Compares tables that are held at a gap or after a rewrite; Spark starts for one that only it reads."""

    def __init__(self, config: Config, bronze: Bronze) -> None:
        self._config = config
        self._bronze = bronze
        self._lake = bronze.lake

    def waiting(self, names: Mapping[TableName, LSN | None], history: CopyHistory) -> dict[TableName, str]:
        """Return the tables that apply has yet to apply up to the gap or rewrite, each with a sentence.

        Once apply has passed a gap, it applies no table up to it any more.
        """
        if not names:
            return {}
        registered, manifest = TableRegistry(self._lake).read(), Manifests(self._lake).last()
        shown = manifest.lsn if manifest else INVALID
        found: dict[TableName, str] = {}
        for name, rewrite in names.items():
            applied = _applied(name, registered, manifest)
            start = history.gaps[-1].start if rewrite is None else rewrite
            is_due = shown <= start and not _has_earlier_gap(history, applied)
            if applied < start and (rewrite is not None or is_due):
                place = f"the gap at {start}" if rewrite is None else str(start)
                found[name] = (
                    f"Not yet, because silver is not complete up to {place}. The first ingest after apply "
                    "has brought it there compares it."
                )
        return found

    def compare(
        self, keeper: SnapshotKeeper, names: Mapping[TableName, LSN | None], history: CopyHistory
    ) -> dict[TableName, GapVerdict]:
        """Return what is to be copied of each table under the keeper's snapshot."""
        registered, manifest = TableRegistry(self._lake).read(), Manifests(self._lake).last()
        relations = self._bronze.source_relations().values()
        found: dict[TableName, GapVerdict] = {}
        tables: dict[TableName, RegisteredTable] = {}
        for name, rewrite in sorted(names.items()):
            gap = history.gaps[-1] if rewrite is None else None
            reason = self._why_whole(name, registered, manifest, history, gap)
            if reason is None:
                tables[name] = registered[name]
            else:
                found[name] = GapVerdict.whole(reason)
        is_ascii = identify(keeper.connection).encoding == "SQL_ASCII"
        with ExitStack() as stack:
            reads = stack.enter_context(
                SourceReads(self._config, self._lake, keeper.snapshot, is_ascii=is_ascii)
            )
            reads.start(tables)
            for name, table in tables.items():
                try:
                    before = _relation_at(name, relations, _applied(name, registered, manifest))
                    found[name] = self._compare(reads, reads.read(name), table, before)
                except SnapshotLost:
                    raise
                except Exception as error:  # a complete copy is right in any case
                    found[name] = GapVerdict.whole(report_error(error))
        return found

    def adopt(
        self, keeper: SnapshotKeeper, name: TableName, adoption: Adoption
    ) -> tuple[str, AdoptedRows | None]:
        """Return what a comparison with a Delta table found, and its rows that are equal to the source."""
        from pipeline.silver.compare.adoption import adopt_rows

        return adopt_rows(self._config, self._lake, keeper, name, adoption)

    def _why_whole(
        self,
        name: TableName,
        registered: Mapping[TableName, RegisteredTable],
        manifest: Manifest | None,
        history: CopyHistory,
        gap: Gap | None,
    ) -> str | None:
        """Return why a table is copied without a comparison, None if it is compared."""
        table, rule, last = registered.get(name), self._config.rule_for(name), history.last(name)
        if table is None or rule is None or table.successor is not None:
            return "Silver has no complete table of it."
        if gap is not None and _applied(name, registered, manifest) != gap.start:
            return "Silver is not at the beginning of the gap."
        if last is not None and (last.state != COMPLETE or last.id > (table.copy_id or 0)):
            return "Silver has not started from its last copy."
        if reason := why_not_comparable(rule):
            return reason
        if table.mode != kept_as(rule):
            return "Its mode was changed."
        return None

    def _compare(
        self, reads: SourceReads, read: SourceRead, table: RegisteredTable, before: SourceRelation | None
    ) -> GapVerdict:
        rule = self._config.rule_for(table.name)
        assert rule is not None
        if before is None or not _continues(before, source_columns(read.relation, read.catalog)):
            return GapVerdict.whole("Its columns changed meanwhile.")
        if (before.oid, before.replica_identity) != (read.relation.oid, read.relation.replica_identity):
            return GapVerdict.whole("It was created again, or its replica identity changed, meanwhile.")
        silver = self._lake.table_at(table.path)
        version = silver.snapshot()
        compared = reads.plan(read, table.columns, fields_of(version), version.partition_columns)
        if compared.skipped or not compared.silver:
            names = ", ".join(sorted(compared.skipped)) or "it has none"
            return GapVerdict.whole(f"Not all of its columns can be compared: {names}.")
        present = rows_of(silver, version, table, self._config.silver.writer)
        rows = SilverHashes(present, compared.silver, compared.shape.key)
        found = find_differences(reads.side(read, compared.shape), rows, max_ranges=_MAX_HASH_RANGES)
        if silver.version() != version.version:
            raise LakeError("Its silver table was written while it was compared.")
        if found.is_equal:
            return GapVerdict.equal(found.source_rows)
        return _partial(found, compared, before, rule)


def _partial(
    found: Differences, compared: ComparableColumns, relation: SourceRelation, rule: TableRule
) -> GapVerdict:
    """Return a verdict on a table that differs."""
    forms = [compared.shape.columns[index][1] for index in compared.shape.key]
    if rule.mode != "mirror":
        return GapVerdict.whole(f"It differs, and mode {rule.mode} needs a complete copy.")
    if not forms or any(
        form.kind in (HashedKind.REAL, HashedKind.DOUBLE) for form in forms
    ):  # those are bits
        return GapVerdict.whole("It differs, and has no key by which rows can be copied.")
    if not found.is_whole:
        return GapVerdict.whole("Too many of its rows differ.")
    keys = {tuple(text for text in row.key if text is not None) for row in found.rows}
    ranges: tuple[KeyRange, ...] = ()
    if all(len(key) == len(forms) for key in keys):
        ranges = cover_keys(keys, relation.key_types, MAX_KEY_RANGES)
    if not ranges:
        return GapVerdict.whole("Too many of its rows differ.")
    return GapVerdict.partial(found.source_rows, len(keys), ranges)


def _applied(
    name: TableName, registered: Mapping[TableName, RegisteredTable], manifest: Manifest | None
) -> LSN:
    """Return the LSN that a silver table shows, INVALID if it is in no manifest."""
    if manifest is None or name not in registered or name not in manifest.by_name:
        return INVALID
    return manifest.behind.get(name, manifest.lsn)


def _has_earlier_gap(history: CopyHistory, applied: LSN) -> bool:
    """Return whether a table is held at a gap before the last one, or silver has none of it."""
    return applied == INVALID or any(applied <= gap.start for gap in history.gaps[:-1])


def _relation_at(name: TableName, relations: Collection[SourceRelation], lsn: LSN) -> SourceRelation | None:
    """Return the relation version that a table had at an LSN, None if bronze has none."""
    found = [relation for relation in relations if relation.name == name and relation.lsn <= lsn]
    return max(found, key=lambda relation: relation.lsn, default=None)


def _continues(before: SourceRelation, columns: tuple[SourceColumn, ...]) -> bool:
    """Return whether columns are those of a relation version, or less: silver keeps what is not sent."""
    numbers = {column.attribute_number for column in columns}
    kept = [column for column in before.columns if column.attribute_number in numbers]
    has_same_key = [c.name for c in before.columns if c.is_key] == [c.name for c in columns if c.is_key]
    return has_same_key and _shape(kept) == _shape(columns)


def _shape(columns: Iterable[SourceColumn]) -> list[tuple[object, ...]]:
    return [
        (c.name, c.attribute_number, c.is_key, c.type, c.type_oid, c.element_base_oid, c.output)
        for c in columns
    ]
