"""A schema is renamed, which up to PostgreSQL 15 no message says: its tables go on under their new names."""

import time
from typing import Any

import pytest

from pipeline.postgres.replication.walsender import Walsender
from pipeline.table_copy.planner import CopyPlanner
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.pipelines import MakePipeline
from tests.support.servers import Database, MakeServer


@pytest.mark.promise("tables join and leave")
@pytest.mark.parametrize(
    "major", [pytest.param(10, marks=pytest.mark.slow), 15, pytest.param(16, marks=pytest.mark.slow)]
)
def test_what_comes_under_the_old_name_is_copied_under_the_new_one(
    make_pipeline: MakePipeline, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, major: int
) -> None:
    database = Database.of(make_server(major=major))
    database.run("CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY, v text)")
    pipeline = make_pipeline("s.*", "s2.*", database=database, copy="initial", create_publication="all")
    pipeline.catch_up("INSERT INTO s.t VALUES (1, 'before the slot')")
    pipeline.run(
        "INSERT INTO s.t VALUES (2, 'before')",
        "ALTER SCHEMA s RENAME TO s2",
        "INSERT INTO s2.t VALUES (3, '')",
    )
    plan = CopyPlanner.plan
    inserted: list[int] = []

    def insert_and_plan(self: CopyPlanner, *arguments: Any) -> Any:
        # behind the snapshot, in the session that has described s.t
        inserted.append(100 + len(inserted))
        pipeline.run(f"INSERT INTO s2.t VALUES ({inserted[-1]}, 'after')", "DELETE FROM s2.t WHERE id = 3")
        return plan(self, *arguments)

    read = Walsender.read

    def read_after_the_snapshot(self: Walsender, timeout: float) -> list[bytes]:
        if inserted:
            return read(self, timeout)
        time.sleep(timeout)
        return []

    monkeypatch.setattr(CopyPlanner, "plan", insert_and_plan)
    monkeypatch.setattr(Walsender, "read", read_after_the_snapshot)
    pipeline.catch_up()
    assert len(inserted) == (2 if major < 16 else 1)
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, [TableName("s2", "t")])
    pipeline.catch_up("INSERT INTO s2.t VALUES (200, 'later')")
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, [TableName("s2", "t")])
