"""Pairs of types have a text form that both sides write, or none."""

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pipeline.delta.schema import TableSchema
from pipeline.engine import DUCKDB
from pipeline.postgres.snapshot.comparable_forms import PLAIN, TEXT, Form, HashedKind
from pipeline.silver.types.comparable_text import form_of, text_sql
from tests.support.silver.relations import column

MONEY_MODIFIER = ((12 << 16) | 2) + 4  # numeric(12,2)


@pytest.mark.parametrize(
    ("oid", "modifier", "ddl", "form"),
    [
        (23, -1, "INT", PLAIN),
        (23, -1, "BIGINT", PLAIN),  # silver stays as wide as it was
        (600, -1, "STRING", TEXT),
        (17, -1, "BINARY", PLAIN),
        (700, -1, "FLOAT", Form(HashedKind.REAL)),
        (701, -1, "DOUBLE", Form(HashedKind.DOUBLE)),
        (1082, -1, "DATE", Form(HashedKind.DATE)),
        (1114, -1, "TIMESTAMP_NTZ", Form(HashedKind.TIMESTAMP)),
        (1184, -1, "TIMESTAMP", Form(HashedKind.TIMESTAMPTZ)),
        (1700, MONEY_MODIFIER, "DECIMAL(12,2)", Form(HashedKind.DECIMAL, 12, 2, is_exact=True)),
        (1700, MONEY_MODIFIER, "DECIMAL(14,3)", Form(HashedKind.DECIMAL, 14, 3)),
        (1700, MONEY_MODIFIER, "DECIMAL(12,1)", Form(HashedKind.DECIMAL, 12, 1, fits=False)),
        (1700, -1, "DECIMAL(12,2)", Form(HashedKind.DECIMAL, 12, 2, fits=False)),
        (23, -1, "DECIMAL(12,2)", Form(HashedKind.DECIMAL, 12, 2)),
        (1082, -1, "TIMESTAMP_NTZ", None),
        (1700, -1, "DOUBLE", None),
        (25, -1, "INT", None),
        (3802, -1, "VARIANT", None),
        (23, -1, "ARRAY<INT>", None),
    ],
)
def test_scalars(oid: int, modifier: int, ddl: str, form: Form | None) -> None:
    assert form_of(column("c", 1, oid, modifier=modifier), ddl) == form


def test_elements_of_arrays_have_the_forms_of_their_types() -> None:
    dates = column("c", 1, 1182, element=1082)
    assert form_of(dates, "ARRAY<DATE>") == Form(HashedKind.DATE, is_array=True)
    assert form_of(dates, "ARRAY<DATE>", clamps=True) == Form(HashedKind.DATE, clamps=True, is_array=True)
    assert form_of(dates, "STRING") == TEXT
    assert form_of(dates, "DATE") is None
    assert form_of(column("c", 1, 1009, element=25), "ARRAY<STRING>") == Form(HashedKind.TEXT, is_array=True)


def test_maps_are_those_of_hstore() -> None:
    hstore = column("c", 1, 20_000, output="hstore_out")
    assert form_of(hstore, "MAP<STRING,STRING>") == TEXT
    assert form_of(column("c", 1, 25), "MAP<STRING,STRING>") is None


UTC = timezone.utc
FIRST, LAST = (1, 1, 1), (9999, 12, 31, 23, 59, 59, 999_999)


@pytest.mark.parametrize(
    ("ddl", "values", "texts"),
    [
        ("STRING", ["", "é"], ["", "é"]),
        ("BOOLEAN", [True, False], ["t", "f"]),
        ("SMALLINT", [-32768], ["-32768"]),
        ("BINARY", [b"", b"\x00\xff"], [r"\x", r"\x00ff"]),
        ("FLOAT", [-0.0, 0.1, float("nan")], ["80000000", "3dcccccd", "NaN"]),
        ("DOUBLE", [5e-324, float("-inf")], ["0000000000000001", "fff0000000000000"]),
        ("DECIMAL(2,2)", [Decimal("-0.05"), Decimal(0)], ["-0.05", "0.00"]),
        ("DECIMAL(38,0)", [Decimal("9" * 38)], ["9" * 38]),
        ("DECIMAL(12,7)", [Decimal("0.0000001")], ["0.0000001"]),
        ("DATE", [date(*FIRST), date(9999, 12, 31)], ["0001-01-01", "9999-12-31"]),
        (
            "TIMESTAMP",
            [datetime(*FIRST, tzinfo=UTC), datetime(1582, 10, 10, 0, 0, 0, 100, UTC)],
            ["0001-01-01 00:00:00+00", "1582-10-10 00:00:00.0001+00"],
        ),
        (
            "TIMESTAMP_NTZ",
            [datetime(*LAST), datetime(2024, 1, 1)],
            ["9999-12-31 23:59:59.999999", "2024-01-01 00:00:00"],
        ),
        (
            "ARRAY<STRING>",
            [[], ["a,b", None, "", "nUll", 'q"\\', "\v"]],
            ["{}", r'''{"a,b",NULL,"","nUll","q\"\\","''' + '\v"}'],
        ),
        ("ARRAY<BINARY>", [[b"", None]], [r'{"\\x",NULL}']),
        ("ARRAY<DECIMAL(1,1)>", [[Decimal("0.5")]], ["{0.5}"]),
        ("MAP<STRING,STRING>", [[], [("a", 'b"'), ("c", None)]], ["", r'"a"=>"b\"", "c"=>NULL']),
        ("ARRAY<MAP<STRING,STRING>>", [[[("a", "b")], None]], [r'{"\"a\"=>\"b\"",NULL}']),
    ],
)
@pytest.mark.parametrize("name", ["c", "e", "p"])
def test_duckdb_writes_values_as_the_server_does(
    name: str, ddl: str, values: list[Any], texts: list[str]
) -> None:
    (field,) = TableSchema.of_ddl(f"{name} {ddl}").arrow
    rows = pa.table([pa.array([*values, None], field.type)], [name])
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("silver", rows)
        found = connection.execute(f"SELECT {text_sql(ddl, name, engine=DUCKDB)} FROM silver").fetchall()
    assert [text for (text,) in found] == [*texts, None]
