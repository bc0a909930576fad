"""Pair each source column with its silver column, and choose a common text form to compare them in.

Pure. A column is found by its attribute number, as silver follows it through renames. One without a common
form on both sides is skipped, with the reason.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.tables import TableRule
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.postgres.catalog import CatalogRelation
from pipeline.postgres.snapshot.comparable_forms import Form
from pipeline.postgres.snapshot.hashed_rows import HashedColumns
from pipeline.protected_columns import ProtectedColumn
from pipeline.protocol.messages import Relation
from pipeline.silver.compare.row_hashes import SilverColumn
from pipeline.silver.schema.column_mapping import SUFFIX
from pipeline.silver.types.comparable_text import form_of

Fields = Mapping[str, tuple[str, str]]  # silver's columns by the names that data files have: (name, DDL)


@dataclass(frozen=True, slots=True)
class ComparableColumns:
    """The compared columns of both sides, in the same order; `skipped` has the reason for each other one."""

    shape: HashedColumns
    silver: tuple[SilverColumn, ...]
    skipped: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns as the source has them; a sidecar has its name in silver."""
        pairs = zip(self.shape.columns, self.silver, strict=True)
        return tuple(silver.name if form.is_misfit else name for (name, form), silver in pairs)

    def require_any(self) -> None:
        """Raise LakeError, which says why, if no column is compared."""
        if not self.silver:
            reasons = "; ".join(dict.fromkeys(self.skipped.values())) or "the table has none"
            raise LakeError(f"No column can be compared: {reasons}.")


def plan_comparison(
    source: Sequence[SourceColumn],
    key: Sequence[str],
    registered: Sequence[RegisteredColumn],
    fields: Fields,
    rule: TableRule,
    *,
    is_ascii: bool,
    protected: Sequence[ProtectedColumn] = (),
    partition_by: Collection[str] = (),
) -> ComparableColumns:
    """Return what can be compared of the source's columns; `key` has the names of the key's.

    `is_ascii` if the database has no encoding of its texts.
    `partition_by` are partition columns by their names in silver. `protected` are the columns whose values
    silver does not have: they are left out.
    """
    columns: list[tuple[str, Form]] = []
    silver: list[SilverColumn] = []
    skipped: dict[str, str] = {}
    pairs = _with_fields(source, registered, fields)
    types = dict(fields.values())
    rules = {number: each.rule for each in protected if (number := each.attribute_number) is not None}
    rules_by_name = {each.name: each.rule for each in protected if each.attribute_number is None}
    for column, field in pairs:
        found = rules.get(column.attribute_number or 0) or rules_by_name.get(column.name)
        if found is not None:
            skipped[column.name] = f"its values are not in the lake (tables[].columns: {found.split()[0]})"
        elif field is None:
            skipped[column.name] = "silver does not have the column yet"
        if found is not None or field is None:
            continue
        name, ddl = field
        policy = rule.misfit_of(column.name)
        clamps = policy == "clamp" and column.name not in key
        form = form_of(column, ddl, clamps=clamps, is_partition=name in partition_by)
        if form is None:
            skipped[column.name] = f"values of its type and of silver's {ddl} have no form in common"
        elif is_ascii and "STRING" in ddl:
            skipped[column.name] = "the database has no encoding of its texts"
        else:
            columns.append((column.name, form))
            silver.append(SilverColumn(name, ddl, column.array_delimiter))
            sidecar = name + SUFFIX
            if form.counts_misfits and types.get(sidecar) == "STRING" and policy == "text":
                if form.is_array:
                    skipped[sidecar] = "an array may lose single elements"
                else:
                    columns.append((column.name, replace(form, is_misfit=True)))
                    silver.append(SilverColumn(sidecar, "STRING"))
    indexes = [_index(columns, name) for name in key]
    compared = tuple(index for index in indexes if index is not None)
    # If not all columns of the key are compared, a row is found by all its columns.
    shape = HashedColumns(tuple(columns), compared if len(compared) == len(key) else ())
    return ComparableColumns(shape, tuple(silver), skipped)


def shown_relation(registered: RegisteredTable, versions: Iterable[SourceRelation]) -> SourceRelation | None:
    """Return the version of a source table whose columns silver shows, which may be an earlier one again.

    Without one it is the newest, None if there are no versions.
    """
    shown = _shapes(column for column in registered.columns if column.type_oid is not None)
    return max(versions, key=lambda each: (_shapes(each.columns) == shown, each.lsn), default=None)


def _shapes(columns: Iterable[RegisteredColumn | SourceColumn]) -> set[tuple[object, ...]]:
    return {(each.attribute_number, each.name, each.type_oid, each.type_modifier) for each in columns}


def key_columns(relation: Relation) -> list[str]:
    """Return the names of the columns that identify a row; empty if only all columns do."""
    return [c.name for c in relation.columns if c.is_key and relation.replica_identity != "f"]


def source_columns(relation: Relation, catalog: CatalogRelation) -> tuple[SourceColumn, ...]:
    """Return the columns of a relation with what the catalog has of them."""
    return tuple(
        SourceColumn(
            name=column.name,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            is_key=column.is_key,
            attribute_number=found.attribute_number,
            base_oid=found.base_oid,
            base_modifier=found.base_modifier,
            element_base_oid=found.element_base_oid,
            output=found.output,
            delimiter=found.delimiter,
        )
        for column, found in zip(relation.columns, catalog.columns, strict=True)
    )


def _with_fields(
    columns: Sequence[SourceColumn], registered: Sequence[RegisteredColumn], fields: Fields
) -> list[tuple[SourceColumn, tuple[str, str] | None]]:
    """Return each column with its field in silver; by name if its attribute number is unknown."""
    by_number = {c.attribute_number: c for c in registered if c.attribute_number}
    by_name = {c.name: c for c in registered if not c.attribute_number}
    pairs = []
    for column in columns:
        found = by_number.get(column.attribute_number or 0) or by_name.get(column.name)
        pairs.append((column, fields.get(found.physical_name) if found else None))
    return pairs


def _index(columns: Sequence[tuple[str, Form]], name: str) -> int | None:
    indexes = (i for i, (column, form) in enumerate(columns) if column == name and not form.is_misfit)
    return next(indexes, None)
