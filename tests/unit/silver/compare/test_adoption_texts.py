"""Which columns of a Delta table have the texts of the source, and which table is refused."""

from datetime import datetime, timezone

import pytest

from pipeline.bronze.copy_states import Adoption, CopyRequest
from pipeline.errors import LakeError
from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
from pipeline.protocol.messages import Column, Relation
from pipeline.silver.compare.adoption import plan_texts
from pipeline.silver.types.stream_text import stream_text
from pipeline.table_name import TableName
from tests.support.silver.relations import column

NAME = TableName("public", "t")
PRICE = (10 << 16 | 2) + 4  # numeric(10,2)


@pytest.mark.parametrize(
    ("oid", "modifier", "ddl", "text"),
    [
        (25, -1, "STRING", "v"),
        (2950, -1, "STRING", "v"),
        (2950, -1, "BINARY", None),
        (23, -1, "BIGINT", "CAST(v AS STRING)"),
        (20, -1, "DECIMAL(20,0)", "CAST(v AS STRING)"),
        (20, -1, "DECIMAL(20,2)", None),
        (23, -1, "DOUBLE", None),
        (1700, PRICE, "DECIMAL(38,2)", "CAST(v AS STRING)"),
        (1700, PRICE, "DECIMAL(38,18)", None),
        (1700, PRICE, "BIGINT", None),
        (1700, -1, "DECIMAL(38,18)", None),
        (1700, -1, "DECIMAL(38,0)", "CAST(v AS STRING)"),
        (1114, -1, "TIMESTAMP_NTZ", "CAST(v AS STRING)"),
        (1114, -1, "TIMESTAMP", "CAST(v AS STRING)"),
        (1184, -1, "TIMESTAMP_NTZ", "concat(CAST(v AS STRING), '+00')"),
        (1082, -1, "DATE", "CAST(v AS STRING)"),
        (1082, -1, "TIMESTAMP", None),
        (701, -1, "FLOAT", None),
        (3802, -1, "STRUCT<A:INT>", None),
        (25, -1, "ARRAY<STRING>", None),
        (25, -1, "MAP<STRING,STRING>", None),
    ],
)
def test_the_text_of_a_value(oid: int, modifier: int, ddl: str, text: str | None) -> None:
    assert stream_text(column("c", 1, oid, modifier=modifier), ddl, "v") == text


def test_elements_of_arrays_are_quoted_as_their_texts() -> None:
    times = column("c", 1, 1115, element=1114)
    found = stream_text(times, "ARRAY<TIMESTAMP_NTZ>", "v")
    assert found is not None
    assert "CAST(e AS STRING) RLIKE" in found
    assert stream_text(times, "ARRAY<DATE>", "v") is None
    assert stream_text(times, "TIMESTAMP_NTZ", "v") is None


def plan(fields: dict[str, str], *ignored: str) -> list[str]:
    kinds = [("id", 23, "int4"), ("Price", 1700, "numeric")]
    relation = Relation(5, *NAME, "d", tuple(Column(n == "id", n, oid, -1) for n, oid, _ in kinds))
    looked_up = tuple(
        CatalogColumn(
            number, "pg_catalog", kind, "b", oid, -1, None, None, None, "out", None, None, False, False
        )
        for number, (_, oid, kind) in enumerate(kinds, 1)
    )
    catalog = CatalogRelation(looked_up, ("id",), datetime.now(timezone.utc))
    return plan_texts(NAME, relation, catalog, fields, ignored)


def test_columns_are_found_by_name_in_any_order_and_case() -> None:
    assert plan({"price": "STRING", "id": "BIGINT"}) == ["CAST(`id` AS STRING)", "`price`"]
    assert plan({"x": "INT", "Price": "STRING", "id": "INT"}, "X") == ["CAST(`id` AS STRING)", "`Price`"]


def test_all_reasons_are_named() -> None:
    with pytest.raises(LakeError) as raised:
        plan({"price": "DECIMAL(38,18)", "_x": "STRING", "y": "INT"}, "gone")
    assert str(raised.value) == (
        "The Delta table cannot be adopted for public.t: it has no column gone to ignore; it lacks the "
        "column id; no value of numeric can be read from its column price DECIMAL(38,18); public.t lacks "
        "its columns _x, y (--ignore-column leaves them out). Change its columns, or let the table be copied."
    )
    with pytest.raises(LakeError, match="it lacks the column id"):
        plan({"id": "INT", "Price": "STRING"}, "id")
    with pytest.raises(LakeError, match="it lacks the column Price"):
        plan({"id": "INT", "PRICE": "STRING", "price": "STRING"})


def test_a_request_names_the_delta_table() -> None:
    adoption = Adoption("file:/a b/ü", 7, ("x",))
    assert CopyRequest.of(NAME, adoption.reason).adoption == adoption
    assert CopyRequest.of(NAME, "requested by pgdelta resync").adoption is None
