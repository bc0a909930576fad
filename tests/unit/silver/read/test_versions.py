"""Reads as of one commit, as far as they need no Spark: arguments, names of views, offsets."""

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

import pgdelta
from pipeline.errors import ConfigError, LakeError
from pipeline.protocol.lsn import LSN
from pipeline.silver.read.as_of import TableAsOf, as_of, parse_lsn, parse_time, view_names
from pipeline.silver.read.versions import shows_lsn
from pipeline.table_name import TableName
from tests.support.paths import ROOT

APP = "pgdelta:shop:1"
NO_SESSION = cast(SparkSession, None)


def by_schema(schema: str, table: str) -> str:
    return f"{schema}__{table}"


def test_the_package_needs_no_spark() -> None:
    code = "import sys, pgdelta; assert pgdelta.as_of; print({'pyspark', 'py4j'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


@pytest.mark.parametrize("value", ["16/B374D848", " 16/b374d848 ", 0x16B374D848, LSN(0x16B374D848)])
def test_an_lsn_is_text_or_a_number(value: Any) -> None:
    assert parse_lsn(value) == LSN.parse("16/B374D848")


@pytest.mark.parametrize("value", ["", "16", "16/", "x/1", "1/123456789", "0x16B3", -1, 2**63, True, 1.5])
def test_what_is_no_lsn_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="is not an LSN") as refused:
        pgdelta.as_of(NO_SESSION, "lake", lsn=value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        ("2026-01-31 12:00:00.500+02:00", datetime(2026, 1, 31, 10, 0, 0, 500000, tzinfo=timezone.utc)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=timezone.utc)),
        (datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 12, tzinfo=timezone.utc)),
        (
            datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=9))),
            datetime(2026, 1, 31, 3, tzinfo=timezone.utc),
        ),
    ],
)
def test_a_time_is_text_or_a_datetime_and_in_utc_by_default(value: Any, expected: datetime) -> None:
    assert parse_time(value) == expected


@pytest.mark.parametrize("value", ["", "yesterday", "2026-02-30", 1769860800, b"2026-01-31"])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        as_of(NO_SESSION, "lake", timestamp=value)


def test_an_lsn_and_a_time_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        as_of(NO_SESSION, "lake", lsn="0/1", timestamp="2026-01-31")


def test_a_session_without_a_jvm_is_refused() -> None:
    with pytest.raises(LakeError, match="Spark Connect session has none"):
        as_of(cast(SparkSession, object()), "lake")


def test_views_are_named_by_schema_and_table() -> None:
    names = view_names([TableName("public", "t"), TableName("Sales", "Order items")], by_schema)
    assert names == {
        "public__t": TableName("public", "t"),
        "Sales__Order items": ("Sales", "Order items"),
    }


@pytest.mark.parametrize(
    "tables",
    [
        [("a__b", "c"), ("a", "b__c")],
        [TableName("public", "Orders"), TableName("public", "orders")],
    ],
)
def test_two_views_of_one_name_are_refused(tables: list[TableName]) -> None:
    with pytest.raises(LakeError, match="would both be named"):
        view_names(tables, by_schema)


def test_a_query_quotes_its_path() -> None:
    table = TableAsOf(TableName("public", "a`b"), "file:/lake/silver/public/a`b", 7)
    assert table.query == "SELECT * FROM delta.`file:/lake/silver/public/a``b` VERSION AS OF 7"


@pytest.mark.promise("versions that are gone")
@pytest.mark.parametrize(
    ("offsets", "next_offset", "expected"),
    [
        ({APP: 100}, None, True),
        ({APP: 100}, 101, True),
        ({APP: 60}, 101, True),  # no newer changes
        ({APP: 101}, None, False),
        ({APP: 60}, 100, False),  # the manifest shows a later version
        ({APP: 60}, 80, False),
        ({}, None, True),  # Delta removed the offsets
        ({APP: 90, f"{APP}#1": 90, f"{APP}#2": 80}, 120, True),
        ({APP: 60, f"{APP}#1": 90}, 120, False),  # only a part of a transaction
        ({f"{APP}#1": 90}, 120, False),
        ({APP: 100, f"{APP}#copied/17": 70}, None, True),
        ({f"{APP}#copied/17": 70}, None, False),
        ({APP: 60, f"{APP}#keys": 2**60}, None, True),  # a time, not an LSN
        ({APP: 101, f"{APP}#keys": 2**60}, None, False),
        ({APP: 60, f"{APP}/rebuild": 2**60}, None, True),
        ({APP: 60, "pgdelta:shop:2": 150}, None, False),
        ({APP: 60, "streaming-query": 10**9}, None, True),
    ],
)
def test_offsets_show_whether_a_version_is_that_of_a_commit(
    offsets: dict[str, LSN], next_offset: int | None, expected: bool
) -> None:
    assert shows_lsn(offsets, LSN(100), next_offset) is expected
