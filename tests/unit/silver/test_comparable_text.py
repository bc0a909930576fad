"""Pairs of types have a text form that both sides write, or none."""

from __future__ import annotations

import pytest

from pipeline.postgres.snapshot.hashed_rows import TEXT, Form, Kind
from pipeline.silver.comparable_text import form_of
from tests.support.silver.relations import column

MONEY_MODIFIER = ((12 << 16) | 2) + 4  # numeric(12,2)


@pytest.mark.parametrize(
    ("oid", "modifier", "ddl", "form"),
    [
        (23, -1, "INT", TEXT),
        (23, -1, "BIGINT", TEXT),  # silver stays as wide as it was
        (600, -1, "STRING", TEXT),
        (17, -1, "BINARY", TEXT),
        (700, -1, "FLOAT", Form(Kind.REAL)),
        (701, -1, "DOUBLE", Form(Kind.DOUBLE)),
        (1082, -1, "DATE", Form(Kind.DATE)),
        (1114, -1, "TIMESTAMP_NTZ", Form(Kind.TIMESTAMP)),
        (1184, -1, "TIMESTAMP", Form(Kind.TIMESTAMPTZ)),
        (1700, MONEY_MODIFIER, "DECIMAL(12,2)", Form(Kind.DECIMAL, 12, 2)),
        (1700, MONEY_MODIFIER, "DECIMAL(14,3)", Form(Kind.DECIMAL, 14, 3)),
        (1700, MONEY_MODIFIER, "DECIMAL(12,1)", Form(Kind.DECIMAL, 12, 1, fits=False)),
        (1700, -1, "DECIMAL(12,2)", Form(Kind.DECIMAL, 12, 2, fits=False)),
        (23, -1, "DECIMAL(12,2)", Form(Kind.DECIMAL, 12, 2)),
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
    assert form_of(dates, "ARRAY<DATE>") == Form(Kind.DATE, is_array=True)
    assert form_of(dates, "ARRAY<DATE>", clamps=True) == Form(Kind.DATE, clamps=True, is_array=True)
    assert form_of(dates, "STRING") == TEXT
    assert form_of(dates, "DATE") is None
    assert form_of(column("c", 1, 1009, element=25), "ARRAY<STRING>") == Form(Kind.TEXT, is_array=True)


def test_maps_are_those_of_hstore() -> None:
    hstore = column("c", 1, 20_000, output="hstore_out")
    assert form_of(hstore, "MAP<STRING,STRING>") == TEXT
    assert form_of(column("c", 1, 25), "MAP<STRING,STRING>") is None
