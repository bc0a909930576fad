"""Tables in modes that keep rows are built from their copies, whatever names their columns had meanwhile."""

from pathlib import Path

import pytest

from pipeline.config.tables import ColumnRules, RowMode, TableRule
from pipeline.operate.resync import run_resync
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

RENAMED = "ALTER TABLE t RENAME v TO a; ALTER TABLE t RENAME c TO v"
ADDED_AGAIN = "ALTER TABLE t RENAME c TO a; ALTER TABLE t DROP v; ALTER TABLE t ADD v bigint"
MASKED = ColumnRules(mask={"z": "***"})
SHOWN = {"soft_delete": ("_deleted", False), "history": ("_is_current", True)}


@pytest.mark.sample(4)
@pytest.mark.promise("modes")
@pytest.mark.parametrize("rules", [ColumnRules(), MASKED], ids=["plain", "protected"])
@pytest.mark.parametrize("move", [RENAMED, ADDED_AGAIN], ids=["renamed", "added again"])
@pytest.mark.parametrize("mode", ["soft_delete", "history", "append"])
def test_a_table_is_built_from_copies_that_name_its_columns_differently(
    database: Database, tmp_path: Path, mode: RowMode, move: str, rules: ColumnRules
) -> None:
    rule = TableRule("public.*", mode=mode, columns=rules)
    pipeline = NativePipeline.make(database, tmp_path, rule, copy="initial")
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, a int, v text, z text)",
        "INSERT INTO t SELECT i, i, 'v' || i, 'z' FROM generate_series(1, 4) i",
    )
    # The catalog is ahead of the deletes.
    for statements in ("ALTER TABLE t RENAME a TO c; UPDATE t SET c = 9 WHERE id = 2", move):
        pipeline.catch_up(f"BEGIN; DELETE FROM t WHERE id = (SELECT max(id) FROM t); {statements}; COMMIT")
        run_resync(pipeline.config, ["public.t"])
        summary = pipeline.catch_up()
        assert [line for line in summary.lines() if "held" in line] == []
    if mode in SHOWN:
        column, value = SHOWN[mode]
        shown = [row[:-1] for row in pipeline.rows("t", "id", "a", "v", column) if row[-1] == value]
        assert shown == sorted(database.run("SELECT id, a, v FROM t"))
