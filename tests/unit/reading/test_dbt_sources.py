"""`pgdelta dbt-sources`: what the file says of each table, and that the lake decides it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from pipeline.cli.main import main
from pipeline.delta.schema import SchemaField
from pipeline.errors import ConfigError
from pipeline.metadata.catalog_entries import REGISTERED, CatalogEntries, CatalogEntry, CatalogName
from pipeline.metadata.events import Event
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.reading.dbt_sources import DbtTable, Freshness, describe_sources
from pipeline.table_name import TableName
from tests.support.native_lakes import START, NativeLake

NAME = TableName("public", "t")
STATUS = "file:/lake/_pgdelta/status"
HISTORY = ("_valid_from_lsn", "_is_current")


def silver(*columns: str, key: tuple[str, ...] = (), mode: str = "mirror", **more: Any) -> DbtTable:
    """Return a table whose own columns of pgdelta begin with an underscore."""
    own = tuple(name for name in columns if name.startswith("_"))
    registered = RegisteredTable(
        *NAME,
        "file:/lake/silver/public/t",
        1,
        tuple(RegisteredColumn(n, n, 1, n, 23, -1, n in key) for n in columns if n not in own),
        metadata_columns=own,
        mode=mode,
    )
    fields = tuple(SchemaField(name, "integer") for name in columns)
    given = {"comment": None, "registered": registered, "path": registered.path, **more}
    return DbtTable(CatalogName(*NAME), fields=fields, sources=(NAME,), **given)


def described(table: DbtTable, freshness: Freshness | None = None) -> dict[str, Any]:
    content = describe_sources("p", [table], STATUS, freshness or Freshness())
    found: dict[str, Any] = content["sources"][0]["tables"][0]
    return found


def checks_of(table: DbtTable) -> dict[str, Any]:
    """Return the tests by column; those of the table by the empty name."""
    found = described(table)
    tests = {each["name"]: each["data_tests"] for each in found["columns"] if "data_tests" in each}
    return tests | ({"": found["data_tests"]} if "data_tests" in found else {})


def only(test: str, condition: str) -> dict[str, Any]:
    return {test: {"config": {"where": condition}}}


def test_a_key_is_tested_where_its_mode_promises_it() -> None:
    assert checks_of(silver("id", "v", key=("id",))) == {"id": ["unique", "not_null"]}
    soft = silver("id", "v", "_deleted", key=("id",), mode="soft_delete")
    assert checks_of(soft) == {"id": ["unique", only("not_null", "not _deleted")]}
    for mode in ("history", "history with intermediate versions"):
        history = silver("id", "v", *HISTORY, key=("id",), mode=mode)
        current = [only("unique", "_is_current"), only("not_null", "_is_current")]
        assert checks_of(history) == {"id": current}
    assert checks_of(silver("id", "_op", key=("id",), mode="append")) == {}
    assert checks_of(silver("id", "v")) == {}  # rows are found by all columns


def test_a_key_of_several_columns_is_unique_as_a_whole() -> None:
    unique = {"unique": {"arguments": {"column_name": "(a, B)"}}}
    assert checks_of(silver("a", "B", "c", key=("a", "B"))) == {
        "": [unique],
        "a": ["not_null"],
        "B": ["not_null"],
    }
    history = silver("a", "b", *HISTORY, key=("a", "b"), mode="history")
    where = {"config": {"where": "_is_current"}}
    assert checks_of(history)[""] == [{"unique": {"arguments": {"column_name": "(a, b)"}, **where}}]


@pytest.mark.parametrize("name", ["line no", "order", "ORDER", "1a", "é"])
def test_a_whole_key_that_needs_quotes_has_no_test_of_its_own(name: str) -> None:
    assert checks_of(silver("a", name, key=("a", name))) == {"a": ["not_null"], name: ["not_null"]}


@pytest.mark.parametrize("name", ['a"b', "a`b", "a{b", "a\\b", "a'b"])
def test_a_name_that_dbt_cannot_quote_is_not_tested(name: str) -> None:
    assert checks_of(silver(name, key=(name,))) == {}


def test_the_reserved_words_are_those_of_duckdb() -> None:
    query = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
    for (word,) in duckdb.connect().execute(query).fetchall():
        assert "" not in checks_of(silver("a", word, key=("a", word))), word
    for word in ("id", "user_order", "ordering", "name", "ando"):
        assert "" in checks_of(silver("a", word, key=("a", word))), word


def test_a_table_is_found_by_duckdb_and_by_spark() -> None:
    path = "file:/a lake/it's {1}/silver/public/100%25"
    found = described(silver("id", path=path, comment="{{ x }} {% y"))
    assert found["identifier"] == path
    url = "file:///a%20lake/it%27s%20%7B1%7D/silver/public/100%2525"
    assert found["config"]["meta"] == {"external_location": f"delta_scan('{url}')"}
    assert found["description"] == "{{ '{{' }} x }} {{ '{%' }} y"
    on_s3 = described(silver("id", path="s3://bucket/lake/silver/public/t"))
    assert "'s3://bucket/lake/silver/public/t'" in on_s3["config"]["meta"]["external_location"]


def test_freshness_is_how_far_silver_is_or_the_newest_change() -> None:
    table = silver("id", "_commit_lsn", "_commit_time_")
    query = described(table)["config"]["loaded_at_query"]
    assert query == (
        "select min(commit_time) from {{ source('p_pgdelta', 'status') }} "
        "where schema_name = 'public' and table_name = 't'"
    )
    changed = Freshness("changed")
    assert described(table, changed)["config"]["loaded_at_field"] == "_commit_time_"
    assert described(silver("id"), changed)["config"]["freshness"] is None
    assert set(described(table, Freshness("none"))["config"]) == {"meta"}
    sources = describe_sources("p", [table], STATUS, Freshness(warn_after="90min", error_after="2d"))[
        "sources"
    ]
    assert sources[0]["config"]["freshness"] == {
        "warn_after": {"count": 90, "period": "minute"},
        "error_after": {"count": 2, "period": "day"},
    }
    assert [source["name"] for source in sources] == ["public", "p_pgdelta"]
    odd = describe_sources("Shop.eu-1", [table], STATUS, Freshness())["sources"][-1]["name"]
    assert re.fullmatch(r"shop_eu_1_pgdelta_[0-9a-f]{8}", odd)


@pytest.mark.parametrize("age", ["", "0h", "1", "1 week", "-1h", "1.5h"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    with pytest.raises(ConfigError, match=r"--error-after: .* is no age\. Write"):
        Freshness(error_after=age).limits()


def test_a_table_of_many_sources_is_as_far_as_the_slowest() -> None:
    tenants = tuple(TableName(f"tenant's {n}", "t") for n in "ab")
    found = described(DbtTable(CatalogName("p_shared", "t"), "file:/x", (), None, tenants))
    conditions = [f"hex(schema_name) = '{name.schema.encode().hex().upper()}'" for name in tenants]
    assert found["config"]["loaded_at_query"].endswith(
        f"where {conditions[0]} and table_name = 't' or {conditions[1]} and table_name = 't'"
    )


@pytest.fixture
def lake(tmp_path: Path) -> NativeLake:
    return NativeLake(tmp_path / "lake", 2)


def asked(lake: NativeLake, *arguments: str) -> int:
    return main(["dbt-sources", "--config", f"{lake.root}.yaml", *arguments])


def test_the_file_is_the_same_for_the_same_lake(lake: NativeLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.records.events.record([Event("public", "left", LSN(1), "held", "Table public.left is held.")])
    assert asked(lake) == 0
    printed = capsys.readouterr()
    assert printed.err == "pgdelta: left out: Table public.left is held.\n"
    content = yaml.safe_load(printed.out)
    assert [each["name"] for each in content["sources"][0]["tables"]] == ["t0000", "t0001"]
    assert content["sources"][0]["tables"][0]["columns"][1] == {"name": "name", "data_type": "STRING"}
    file = lake.root.parent / "sources.yml"
    assert asked(lake, "--into", str(file)) == 0
    assert file.read_text() == printed.out
    assert capsys.readouterr().out == f"wrote {file}: 3 tables in 2 sources\n"
    assert asked(lake, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said.pop("unchecked") == []
    assert said.pop("left_out")[0]["sentence"] == "Table public.left is held."
    assert said == {"file": None, **content}


def test_tables_can_be_chosen_and_a_mistake_is_named(
    lake: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(lake, "--table", "public.*1") == 0
    tables = yaml.safe_load(capsys.readouterr().out)["sources"][0]["tables"]
    assert [each["name"] for each in tables] == ["t0001"]
    table = lake.records.tables.read()[lake.names[0]]
    lake.records.tables.register(replace(table, metadata_columns=()))
    assert asked(lake, "--freshness", "changed", "--into", str(lake.root.parent / "x.yml")) == 0
    sentence = "Table public.t0000 has no column _commit_time, so dbt does not check its freshness."
    assert capsys.readouterr().err == f"pgdelta: {sentence}\n"
    for arguments in (
        ("--table", "x.*"),
        ("--table", "x"),
        ("--warn-after", "soon"),
        ("--into", "/no/such/x"),
    ):
        assert asked(lake, *arguments) == 2
    assert "--into: Cannot write /no/such/x" in capsys.readouterr().err


def test_a_source_is_read_by_name_once_all_its_tables_have_one(
    lake: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    def source() -> dict[str, Any]:
        assert asked(lake) == 0
        found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)["sources"][0]
        return found

    entries = [CatalogEntry(*name, *name, "file:/x", REGISTERED, None, START) for name in lake.names]
    CatalogEntries(lake.lake).replace(entries[:1])
    assert source()["schema"] == "delta"
    assert source()["tables"][0]["identifier"] == f"file:{lake.root}/silver/public/t0000"
    CatalogEntries(lake.lake).replace(entries)
    assert "schema" not in source()
    assert all("identifier" not in table for table in source()["tables"])
