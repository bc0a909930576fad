"""A column that replaced another one under its name since a row was written is not taken for that one."""

from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

LIVES = {
    "added": ("ALTER TABLE t ADD c text", "INSERT INTO t VALUES (20, 'a', 'b', 'old')"),
    "renamed": ("ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (20, 'a', 'old')"),
}


@pytest.mark.promise("uncertain columns")
@pytest.mark.parametrize("life", LIVES)
def test_a_column_that_was_added_again_before_it_was_read_is_an_event(
    database: Database, tmp_path: Path, life: str
) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.*"), copy="initial")
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "INSERT INTO t VALUES (1, 'a', 'b')"
    )
    pipeline.catch_up(
        *LIVES[life],
        "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD c text",
        "INSERT INTO t (id, c) VALUES (21, 'new')",
    )
    found = [sentence for kind, sentence in pipeline.events("t") if kind == "diverged"]
    assert [sentence.partition(".")[0] for sentence in found] == [
        "Column c appeared while the catalog was ahead of the stream"
    ]
    assert dict(pipeline.rows("t", "id", "c"))[21] == "new"
    events = len(pipeline.events("t"))
    pipeline.catch_up("ALTER TABLE t DROP a", "ALTER TABLE t ADD d text", "INSERT INTO t VALUES (22)")
    assert {kind for kind, _ in pipeline.events("t")[events:]} == {"evolved"}
