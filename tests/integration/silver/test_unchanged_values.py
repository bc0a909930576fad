"""Rows of mode `append` have values that the source did not send, by both writers and however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.silver.write.native_files import read_file
from pipeline.table_name import TableName
from tests.support.comparable.silver import silver_path
from tests.support.modes.oracle import assert_equals_model
from tests.support.pipelines import succeeded
from tests.support.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = TableName("public", "documents")
TABLE = (
    "CREATE TABLE documents (id int PRIMARY KEY, n int, body text, notes text[])",
    "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL, ALTER notes SET STORAGE EXTERNAL",
)
Row = tuple[int | None, str, str | None, int | None, list[str] | None]  # id, _op, body, notes, _unchanged


def body(letter: str) -> str:
    """Return SQL for a text that is kept out of line."""
    return f"repeat('{letter}', 3000)"


def notes(letter: str, count: int) -> str:
    """Return SQL for an array that is kept out of line."""
    return f"array_fill(repeat('{letter}', 200), ARRAY[{count}])"


def begin(
    database: Database, root: Path, spark: SparkSession | None = None, *statements: str, **rule: Any
) -> Config:
    """Create the table and run statements, which are before the first change of the stream."""
    database.run(*TABLE, *statements)
    config = database.config(root=str(root))
    silver = replace(config.silver, writer="auto" if spark is None else "spark")
    config = replace(config, silver=silver, tables=(TableRule("public.*", mode="append", **rule),))
    run_ingest(config)
    return config


def apply(config: Config, spark: SparkSession | None = None) -> None:
    run_ingest(config)
    succeeded(Applier(spark, config).apply_pending())


def rows_of(config: Config) -> list[Row]:
    """Return the rows in the order of changes; of a body its first letter, of notes their number."""
    table = LakeTable(silver_path(config.storage.root, *NAME))
    found = table.rows().sort_by([("_commit_lsn", "ascending"), ("_ordinal", "ascending")]).to_pylist()
    return [
        (
            row["id"],
            row["_op"],
            row["body"] and row["body"][0],
            row["notes"] and len(row["notes"]),
            row["_unchanged"],
        )
        for row in found
    ]


def run(database: Database, config: Config, batches: Sequence[Sequence[str]], spark: Any = None) -> list[Row]:
    """Apply each batch of statements by itself; return the rows, which are those of the model."""
    for statements in batches:
        database.run(*statements)
        apply(config, spark)
    with database.connect() as source:
        assert assert_equals_model(source, config.storage.root, config.pipeline, "append", NAME)
    return rows_of(config)


STATEMENTS = (
    f"INSERT INTO documents VALUES (1, 0, {body('a')}, {notes('x', 20)}), (2, 0, {body('b')}, NULL)",
    "UPDATE documents SET n = 1",
    f"UPDATE documents SET body = {body('c')} WHERE id = 1",
    "UPDATE documents SET id = id + 10",
    f"UPDATE documents SET notes = {notes('y', 30)} WHERE id = 11",
    "UPDATE documents SET n = 2",
    "UPDATE documents SET id = 21 - id",  # 11 → 10, 12 → 9
    "DELETE FROM documents WHERE id = 9",
    f"INSERT INTO documents VALUES (9, 0, {body('d')}, NULL)",
    "UPDATE documents SET n = 3 WHERE id IN (9, 10)",
)
WANTED: list[Row] = [
    (1, "I", "a", 20, None),
    (2, "I", "b", None, None),
    (1, "U", "a", 20, None),
    (2, "U", "b", None, None),
    (1, "U", "c", 20, None),
    (11, "U", "c", 20, None),
    (12, "U", "b", None, None),
    (11, "U", "c", 30, None),
    (11, "U", "c", 30, None),
    (12, "U", "b", None, None),
    (10, "U", "c", 30, None),
    (9, "U", "b", None, None),
    (9, "D", None, None, None),
    (9, "I", "d", None, None),
    (9, "U", "d", None, None),
    (10, "U", "c", 30, None),
]


def in_any_order(rows: Sequence[Row]) -> list[str]:
    """Return rows to be compared as a multiset: the order within one statement is the server's."""
    return sorted(map(str, rows))


@pytest.mark.promise("unchanged TOAST")
@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 4, 10])
def test_values_follow_the_row_also_across_key_changes(database: Database, tmp_path: Path, size: int) -> None:
    config = begin(database, tmp_path)
    batches = [STATEMENTS[i : i + size] for i in range(0, len(STATEMENTS), size)]
    assert in_any_order(run(database, config, batches)) == in_any_order(WANTED)


@pytest.mark.slow
def test_spark_fills_the_same_values(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    config = begin(database, tmp_path, spark)
    found = run(database, config, [STATEMENTS[:4], STATEMENTS[4:]], spark)
    assert in_any_order(found) == in_any_order(WANTED)


@pytest.mark.promise("unchanged TOAST")
@pytest.mark.usefixtures("without_spark")
def test_a_value_that_nothing_has_is_named(database: Database, tmp_path: Path) -> None:
    config = begin(database, tmp_path, None, f"INSERT INTO documents VALUES (1, 0, {body('a')}, NULL)")
    found = run(
        database,
        config,
        [
            ["UPDATE documents SET n = 1", "UPDATE documents SET id = 2"],
            ["UPDATE documents SET n = 2", f"UPDATE documents SET body = {body('b')}"],
            ["UPDATE documents SET n = 3"],
        ],
    )
    assert found == [
        (1, "U", None, None, ["body"]),
        (2, "U", None, None, ["body"]),
        (2, "U", None, None, ["body"]),
        (2, "U", "b", None, None),
        (2, "U", "b", None, None),
    ]


@pytest.mark.usefixtures("without_spark")
def test_only_files_that_may_have_the_row_are_read(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = begin(database, tmp_path)
    for number in range(3):  # one file each; the keys lie in between one another
        database.run(
            f"INSERT INTO documents SELECT 3 * i + {number}, 0, {body('a')}, NULL"
            " FROM generate_series(0, 9) i"
        )
        apply(config)
    database.run("UPDATE documents SET n = 1 WHERE id = 3 * 3 + 1")
    apply(config)
    read: list[tuple[str, ...]] = []

    def count(path: str, schema: Any, partition: Any) -> Any:
        read.append(tuple(schema.names))
        return read_file(path, schema, partition)

    monkeypatch.setattr("pipeline.silver.write.table_version.read_file", count)
    database.run(
        "UPDATE documents SET n = 2 WHERE id = 3 * 3 + 1",
        "INSERT INTO documents SELECT 1000 + i, 0, repeat('n', 3000), NULL FROM generate_series(1, 3) i",
        "UPDATE documents SET n = 1 WHERE id > 1000",  # their rows are in the same batch
    )
    apply(config)
    key = ("id", "_op", "_commit_lsn", "_ordinal")
    # the newest file has the row; its values are read by themselves
    assert read == [key, ("body", "_op", "_commit_lsn", "_ordinal")]
    assert not [row for row in rows_of(config) if row[4] is not None]
