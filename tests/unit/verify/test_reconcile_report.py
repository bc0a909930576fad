"""Verdicts for people and as data: what differs is said in numbers and columns, never in values."""

import io

from rich.console import Console

from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN, Difference, Reconciliation
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.verify.reconcile_report import Reconciled, what_differs

EQUAL_TABLE = Reconciliation(
    TableName("public", "a"), EQUAL, LSN(256), source_rows=3, silver_rows=3, left_out={"v": "VARIANT"}
)
OTHER = Reconciliation(
    TableName("public", "b"),
    DIFFERENT,
    LSN(256),
    source_rows=2000,
    silver_rows=1999,
    missing=2,
    surplus=1,
    changed=1,
    columns=("price",),
    rows=(Difference("changed", '{"id": "a secret key"}', ("price",), 1),),
)
UNKNOWN = Reconciliation(TableName("public", "c"), UNPROVEN, sentence="silver has no table of it yet")


def printed(found: Reconciled) -> str:
    out = io.StringIO()
    found.print(Console(file=out, width=160))
    return out.getvalue()


def test_differences_are_reported_without_keys_and_values() -> None:
    found = Reconciled("shop", "run7", (EQUAL_TABLE, OTHER, UNKNOWN), {OTHER.name: "1 key is copied anew"})
    text = printed(found)
    assert "2 missing, 1 too many, 1 with other values (price)" in text
    assert "not compared: public.a.v: VARIANT" in text
    assert "silver has no table of it yet" in text
    assert "public.b: 2 missing, 1 too many, 1 with other values (price); 1 key is copied anew" in text
    assert "run7" in text
    assert "secret" not in text + str(found.as_json())
    assert (
        what_differs(Reconciliation(TableName("s", "t"), DIFFERENT, missing=1, is_whole=False))
        == "at least 1 missing"
    )


def test_only_equality_is_success() -> None:
    assert Reconciled("shop", "1", (EQUAL_TABLE,)).exit_code(strict=False) == 0
    assert Reconciled("shop", "1", (EQUAL_TABLE, OTHER)).exit_code(strict=False) == 1
    assert Reconciled("shop", "1", (EQUAL_TABLE, UNKNOWN)).exit_code(strict=False) == 1


def test_data_has_positions_as_text() -> None:
    one, other = Reconciled("shop", "1", (OTHER, UNKNOWN)).as_json()["tables"]
    assert (one["lsn"], one["verdict"], one["columns"]) == ("0/100", "different", ["price"])
    assert (other["lsn"], other["verdict"]) == (None, "unproven")


def test_tables_that_only_spark_could_read_have_the_reason() -> None:
    reason = "it has columns of types that only Spark reads"
    found = Reconciled("shop", "run7", (EQUAL_TABLE,), by_spark={EQUAL_TABLE.name: reason})
    assert f"compared by Spark: public.a: {reason}" in printed(found)
