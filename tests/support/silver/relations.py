"""Relation versions for tests, written short."""

from collections.abc import Sequence

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.bronze.table_input import SequenceKey, Survey

TEXT, INT4, INT8, FLOAT8, NUMERIC = 25, 23, 20, 701, 1700


def column(
    name: str,
    number: int | None,
    type_oid: int = TEXT,
    *,
    is_key: bool = False,
    modifier: int = -1,
    base_oid: int | None = None,
    element: int | None = None,
    default: str | None = None,
    output: str | None = None,
) -> SourceColumn:
    return SourceColumn(
        name=name,
        type_oid=type_oid,
        type_modifier=modifier,
        is_key=is_key,
        attribute_number=number,
        base_oid=type_oid if base_oid is None else base_oid,
        base_modifier=modifier,
        element_base_oid=element,
        missing_value=default,
        output=output,
    )


def relation(*columns: SourceColumn, version: int = 1, oid: int = 500, identity: str = "d") -> SourceRelation:
    return SourceRelation(version, oid, "public", "t", identity, columns)


def survey(
    version: int,
    first: SequenceKey,
    last: SequenceKey,
    *,
    truncate: SequenceKey | None = None,
    updates: int = 0,
    unsent: Sequence[int] = (),
    key_tuples: int = 0,
    without_old_row: int = 0,
) -> Survey:
    return Survey(
        version,
        first,
        last,
        truncate,
        updates=updates,
        key_tuples=key_tuples,
        without_old_row=without_old_row,
        unchanged_toast=frozenset(unsent),
    )
