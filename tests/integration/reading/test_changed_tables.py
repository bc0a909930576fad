"""Which tables changed since a manifest, and how many of their rows: what a scheduler starts readers by."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.tables import TableRule
from pipeline.delta.merge import merge_groups, plain_layout, plan_table
from pipeline.delta.merge_plan import MergeLimits
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.operate.pause import pause_tables, resume_tables
from pipeline.reading.as_of import read_silver
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database


def changed(pipeline: NativePipeline, since: str, *globs: str) -> tuple[dict[str, Any], str]:
    """Return the changed tables with their rows, and the cursor of the answer."""
    answer = read_silver(pipeline.config, lsn=None, timestamp=None, globs=globs, since=since).as_json()
    tables = {each["table"]: each["rows_changed"] for each in answer["tables"] if each["changed"]}
    return tables, answer["cursor"]


@pytest.mark.promise("changed tables")
def test_a_cursor_says_which_tables_changed_and_by_how_many_rows(tmp_path: Path, database: Database) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*"), copy="initial")
    assert changed(pipeline, "0/0") == ({}, "0/0")
    pipeline.catch_up(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in "abc"),
        *(f"INSERT INTO {name} SELECT g, 'v' FROM generate_series(1, 10) g" for name in "abc"),
    )
    found, first = changed(pipeline, "0/0")
    assert found == {"a": 10, "b": 10, "c": 10}
    assert changed(pipeline, first) == ({}, first)

    pipeline.catch_up(
        "UPDATE a SET v = 'w' WHERE id < 3", "DELETE FROM a WHERE id = 9", "INSERT INTO b VALUES (11)"
    )
    pipeline.catch_up("INSERT INTO b VALUES (12)", "UPDATE b SET v = v WHERE id = 1")
    found, second = changed(pipeline, first)
    assert found == {"a": 3, "b": 3}
    assert changed(pipeline, first, "public.b")[0] == {"b": 3}
    assert changed(pipeline, first.partition("@")[0])[0] == {"a": 3, "b": 3}

    table = Lake(pipeline.config.storage).table("silver", "public", "b")
    before = table.snapshot()
    merge_groups(table, before, plan_table(before, MergeLimits(2, 1 << 20, 1 << 20)), plain_layout(before))
    assert table.snapshot().version > before.version
    pipeline.catch_up("INSERT INTO a VALUES (19)")
    found, second = changed(pipeline, second)
    assert found == {"a": 1}
    pipeline.catch_up("TRUNCATE b", "INSERT INTO b VALUES (1)")
    found, second = changed(pipeline, second)
    assert found == {"b": None}
    # a manifest of the same LSN shows what a paused table caught up with
    pause_tables(pipeline.config, ["public.c"])
    pipeline.catch_up("TRUNCATE c", "INSERT INTO a VALUES (20)")
    found, third = changed(pipeline, second)
    assert found == {"a": 1}
    resume_tables(pipeline.config, ["public.c"])
    pipeline.catch_up()
    found, fourth = changed(pipeline, third)
    assert found == {"c": None}
    assert changed(pipeline, fourth)[0] == {}


def test_a_cursor_that_is_none_is_refused(tmp_path: Path, database: Database) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*"), copy="initial")
    pipeline.catch_up("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    for text in ("yesterday", "0/1@noon"):
        with pytest.raises(ConfigError):
            changed(pipeline, text)
