"""Which columns of a table are compared, and how: those of the source in a snapshot, each with silver's.

A column is found by its attribute number, as silver follows it through renames. One that cannot be written
alike on both sides is left out, and named with the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.bronze.relations import SourceColumn
from pipeline.config.tables import TableRule
from pipeline.metadata.registry import RegisteredColumn
from pipeline.postgres.catalog import CatalogRelation
from pipeline.postgres.snapshot.comparable_forms import Form
from pipeline.postgres.snapshot.hashed_rows import HashedColumns
from pipeline.protocol.messages import Relation
from pipeline.silver.comparable_text import delimiter_of, form_of
from pipeline.silver.row_hashes import SilverColumn
from pipeline.silver.sidecars import SUFFIX

Fields = Mapping[str, tuple[str, str]]  # silver's columns by the names that data files have: (name, DDL)


@dataclass(frozen=True, slots=True)
class ComparableColumns:
    """The compared columns of both sides, place by place; `left_out` are the others, each with the reason."""

    shape: HashedColumns
    silver: tuple[SilverColumn, ...]
    skipped: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, as the source has them; a sidecar has that of silver."""
        pairs = zip(self.shape.columns, self.silver, strict=True)
        return tuple(ours.name if form.is_misfit else name for (name, form), ours in pairs)


def plan_comparison(
    relation: Relation,
    facts: CatalogRelation,
    known: Sequence[RegisteredColumn],
    fields: Fields,
    rule: TableRule,
    *,
    is_ascii: bool,
) -> ComparableColumns:
    """Return what can be compared; `is_ascii` where the database does not know what its texts are."""
    columns: list[tuple[str, Form]] = []
    silver: list[SilverColumn] = []
    left_out: dict[str, str] = {}
    found = _found(source_columns(relation, facts), known, fields)
    key = [c.name for c in relation.columns if c.is_key and relation.replica_identity != "f"]
    types = dict(fields.values())
    for column, field in found:
        if field is None:
            left_out[column.name] = "silver does not have the column yet"
            continue
        name, ddl = field
        policy = rule.misfit_of(column.name)
        form = form_of(column, ddl, clamps=policy == "clamp" and column.name not in key)
        if form is None:
            left_out[column.name] = f"values of its type and of silver's {ddl} have no form in common"
        elif is_ascii and "STRING" in ddl:
            left_out[column.name] = "the database does not say in which encoding its texts are"
        else:
            columns.append((column.name, form))
            silver.append(SilverColumn(name, ddl, delimiter_of(column)))
            beside = name + SUFFIX
            if form.counts_misfits and types.get(beside) == "STRING" and policy == "text":
                if form.is_array:
                    left_out[beside] = "an array may lose single elements"
                else:
                    columns.append((column.name, replace(form, is_misfit=True)))
                    silver.append(SilverColumn(beside, "STRING"))
    places = [_place(columns, name) for name in key]
    whole = tuple(place for place in places if place is not None)
    # Without all of its key's columns a row is found as a whole.
    shape = HashedColumns(tuple(columns), whole if len(whole) == len(key) else ())
    return ComparableColumns(shape, tuple(silver), left_out)


def source_columns(relation: Relation, facts: CatalogRelation) -> tuple[SourceColumn, ...]:
    """Return the columns of a relation with what the catalog says of them."""
    return tuple(
        SourceColumn(
            name=column.name,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            is_key=column.is_key,
            attribute_number=fact.attribute_number,
            base_oid=fact.base_oid,
            base_modifier=fact.base_modifier,
            element_base_oid=fact.element_base_oid,
            output=fact.output,
        )
        for column, fact in zip(relation.columns, facts.columns, strict=True)
    )


def _found(
    columns: Sequence[SourceColumn], known: Sequence[RegisteredColumn], fields: Fields
) -> list[tuple[SourceColumn, tuple[str, str] | None]]:
    """Return each column with its field in silver; by name where the catalog did not tell numbers."""
    by_number = {c.attribute_number: c for c in known if c.attribute_number}
    by_name = {c.name: c for c in known if not c.attribute_number}
    pairs = []
    for column in columns:
        there = by_number.get(column.attribute_number or 0) or by_name.get(column.name)
        pairs.append((column, fields.get(there.physical_name) if there else None))
    return pairs


def _place(columns: Sequence[tuple[str, Form]], name: str) -> int | None:
    places = (i for i, (column, form) in enumerate(columns) if column == name and not form.is_misfit)
    return next(places, None)
