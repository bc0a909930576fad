"""What silver has of a column's misfits once the configuration gives the column another policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.tables import Misfits, RowMode, TableRule
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

SHOWN = {"soft_delete": ("_deleted",), "history": ("_is_current",), "append": ("_op",)}


@pytest.mark.parametrize("policy", ["clamp", "null"])
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
def test_the_text_of_a_misfit_goes_with_it(
    database: Database, tmp_path: Path, mode: RowMode, policy: Misfits
) -> None:
    rule = TableRule("public.*", mode=mode, misfits={"d": "text"})
    pipeline = NativePipeline.make(database, tmp_path, rule)
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, d date, d2 text, d2__text text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT n, 'infinity', 'a', 'own', repeat('x', 5000) FROM generate_series(1, 5) n",
    )
    pipeline.set_rules(replace(rule, misfits={"d": policy}))
    pipeline.catch_up(
        "UPDATE t SET d = '2024-01-01' WHERE id = 1",
        "UPDATE t SET id = 20, d = '2024-01-02' WHERE id = 2",
        "UPDATE t SET d2 = 'b' WHERE id = 3",
        "INSERT INTO t VALUES (6, '-infinity', 'c', 'own', 'short')",
        "UPDATE t SET d2__text = 'other' WHERE id = 4",
    )
    rows = pipeline.rows("t", "id", "d__text", "d2__text", *SHOWN.get(mode, ()))
    if mode == "append":
        rows = [row for row in rows if row[3] != "I" or row[0] == 6]
    else:
        rows = [row for row in rows if mode == "mirror" or row[3] is (mode == "history")]
    expected = {1: None, 20: None, 3: None, 4: None, 5: "infinity", 6: None}
    if mode == "append":
        del expected[5]
    assert {row[0]: row[1] for row in rows} == expected
    assert {row[2] for row in rows} == {"own", "other"}


def test_rows_that_are_found_as_a_whole_lose_it_too(database: Database, tmp_path: Path) -> None:
    rule = TableRule("public.*", misfits={"d": "text"})
    pipeline = NativePipeline.make(database, tmp_path, rule)
    pipeline.catch_up(
        "CREATE TABLE t (id int, d date)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'infinity'), (2, 'infinity'), (3, 'infinity')",
    )
    pipeline.set_rules(TableRule("public.*"))
    pipeline.catch_up("UPDATE t SET d = '2024-01-01' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    assert pipeline.rows("t", "id", "d__text") == [(1, None), (3, "infinity")]
