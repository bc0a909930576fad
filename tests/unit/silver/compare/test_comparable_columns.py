"""Which columns of a table are compared, how, and which are named as left out."""

from datetime import datetime, timezone

import pytest

from pipeline.config.tables import TableRule
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredColumn
from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
from pipeline.postgres.snapshot.comparable_forms import PLAIN, TEXT, Form, HashedKind
from pipeline.protocol.messages import Column, Relation
from pipeline.silver.compare.comparable_columns import (
    ComparableColumns,
    Fields,
    key_columns,
    plan_comparison,
    source_columns,
)
from pipeline.silver.compare.row_hashes import SilverColumn

INT4, NUMERIC, DATE, TEXT_OID, JSONB = 23, 1700, 1082, 25, 3802
COLUMNS = [("id", INT4, True), ("price", NUMERIC, False), ("day", DATE, False), ("note", TEXT_OID, False)]
FIELDS = {
    "id": ("id", "INT"),
    "price": ("price", "DECIMAL(6,2)"),
    "day": ("day", "DATE"),
    "note": ("remark", "STRING"),
    "ours": ("_commit_lsn", "BIGINT"),
}


def facts(number: int, oid: int) -> CatalogColumn:
    return CatalogColumn(
        number, "pg_catalog", "t", "b", oid, -1, None, None, None, "out", None, None, False, False
    )


def plan(
    fields: Fields = FIELDS,
    rule: TableRule | None = None,
    identity: str = "d",
    is_ascii: bool = False,
    columns: list[tuple[str, int, bool]] | None = None,
) -> ComparableColumns:
    columns = columns or COLUMNS
    relation = Relation(
        5, "public", "t", identity, tuple(Column(k, name, oid, -1) for name, oid, k in columns)
    )
    looked_up = tuple(facts(number, oid) for number, (_, oid, _) in enumerate(columns, 1))
    known = [RegisteredColumn(name, name, number, name) for number, (name, _, _) in enumerate(columns, 1)]
    now = datetime.now(timezone.utc)
    return plan_comparison(
        source_columns(relation, CatalogRelation(looked_up, ("id",), now)),
        key_columns(relation),
        known,
        fields,
        rule or TableRule("*.*"),
        is_ascii=is_ascii,
    )


def test_columns_are_found_by_number_under_the_names_of_silver() -> None:
    compared = plan()
    assert compared.shape.columns == (
        ("id", PLAIN),
        ("price", Form(HashedKind.DECIMAL, 6, 2, fits=False)),
        ("day", Form(HashedKind.DATE)),
        ("note", TEXT),
    )
    assert compared.silver[3] == SilverColumn("remark", "STRING")
    assert compared.shape.key == (0,)
    assert compared.skipped == {}


def test_whole_rows_are_found_by_all_that_they_hold() -> None:
    assert plan(identity="f").shape.key == ()
    # a key that is not compared does not identify rows
    assert plan({**FIELDS, "id": ("id", "DATE")}).shape.key == ()


def test_what_cannot_be_compared_is_named() -> None:
    fields = {name: field for name, field in FIELDS.items() if name != "note"} | {
        "price": ("price", "VARIANT")
    }
    compared = plan(fields)
    assert compared.skipped.keys() == {"note", "price"}
    assert "yet" in compared.skipped["note"]
    assert "VARIANT" in compared.skipped["price"]
    assert plan(is_ascii=True).skipped.keys() == {"note"}
    compared.require_any()


def test_where_nothing_is_compared_the_error_says_why() -> None:
    texts = plan({"id": ("id", "STRING")}, is_ascii=True, columns=[("id", TEXT_OID, True)])
    with pytest.raises(LakeError, match="No column can be compared: the database has no encoding of its te"):
        texts.require_any()


def test_policies_of_misfits_are_part_of_the_form() -> None:
    rule = TableRule("*.*", misfits={"day": "text", "price": "clamp"})
    compared = plan({**FIELDS, "aside": ("day__text", "STRING")}, rule)
    assert ("day", Form(HashedKind.DATE, is_misfit=True)) in compared.shape.columns
    assert compared.names == ("id", "price", "day", "day__text", "note")
    assert compared.shape.columns[1] == ("price", Form(HashedKind.DECIMAL, 6, 2, fits=False, clamps=True))
    # a key is never clamped: two could become one
    key = plan({"id": ("id", "DATE")}, TableRule("*.*", misfit="clamp"), columns=[("id", DATE, True)])
    assert key.shape.columns == (("id", Form(HashedKind.DATE)),)
