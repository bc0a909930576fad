"""A merge by Spark does not read files that cannot have a changed key: they may be unreadable meanwhile."""

from pathlib import Path

import pytest

from pipeline.delta.table import LakeTable
from pipeline.silver.fold import key_bounds
from tests.support.files import unreadable
from tests.support.pipelines import MakePipeline, Pipeline, succeeded, with_writer

pytestmark = pytest.mark.spark

# a key of each of three files, and one that the last file has too
KEYS = {
    "whole": ("int", "1", "500", "-2147483648", "-2147483647"),
    "exact": ("numeric(15, 4)", "1", "2", "12345678901.5678", "1e10"),
    "words": ("text", "a", "b", "naïve ''quoted'' $ \\ 😀" + "c" * 150, "naïv"),
    "days": ("date", "2020-01-01", "2021-01-01", "9999-12-31", "9999-12-30"),
    "times": (
        *("timestamptz", "2020-01-01 00:00:00.000001Z", "2021-01-01Z"),
        *("2022-01-01 12:00:00.0005+05:30", "2022-01-01Z"),
    ),
    "local": (
        *("timestamp", "2020-01-01 00:00:00.000001", "2021-01-01"),
        *("2022-01-01 12:00:00.0005", "2022-01-01"),
    ),
}


def files(pipeline: Pipeline, table: str) -> set[Path]:
    return set(pipeline.path("silver", "public", table).glob("*.parquet"))


@pytest.mark.slow
def test_files_without_changed_keys_are_not_read(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "spark")
    pipeline.ingest()
    for table, (kind, *_) in KEYS.items():
        pipeline.run(
            f'CREATE TABLE "{table}" (other float8, k {kind}, v text, big text, PRIMARY KEY (k, other))',
            f'ALTER TABLE "{table}" ALTER big SET STORAGE EXTERNAL',
        )
    for batch in range(2):
        for table, (_, *keys) in KEYS.items():
            pipeline.run(f"INSERT INTO \"{table}\" VALUES ('NaN', '{keys[batch]}', 'old')")
        pipeline.catch_up()
    skipped = {path for table in KEYS for path in files(pipeline, table)}
    for table, (_, *keys) in KEYS.items():
        pipeline.run(
            f"INSERT INTO \"{table}\" SELECT 0, '{keys[2]}', 'old', repeat('x', 3000)",
            f"INSERT INTO \"{table}\" VALUES (1, '{keys[3]}', 'old')",
        )
    pipeline.catch_up()
    with unreadable(skipped):
        for table, (_, *keys) in KEYS.items():
            pipeline.run(
                f"UPDATE \"{table}\" SET v = 'new' WHERE k = '{keys[2]}'",
                f"DELETE FROM \"{table}\" WHERE k = '{keys[3]}'",
                f"INSERT INTO \"{table}\" VALUES (2, '{keys[2]}', 'added')",
            )
        succeeded(pipeline.catch_up())
    pipeline.assert_equal(*KEYS)
    for table in KEYS:
        kept = skipped & files(pipeline, table)
        assert len(kept) == 2, table


@pytest.mark.slow
def test_few_keys_that_are_far_apart_do_not_include_what_lies_between(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "spark")
    pipeline.ingest()
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    names: list[set[Path]] = []
    for first in (1, 1001, 2001):
        before = {path for each in names for path in each}
        pipeline.catch_up(f"INSERT INTO t SELECT g, 'old' FROM generate_series({first}, {first + 999}) g")
        names.append(files(pipeline, "t") - before)
    with unreadable(names[1]):
        pipeline.catch_up("UPDATE t SET v = 'new' WHERE id IN (1, 7, 3000)", "DELETE FROM t WHERE id = 2500")
    pipeline.assert_equal("t")
    monkeypatch.setattr(key_bounds, "MAX_KEYS", 10)  # of more, only the least and the greatest are known
    with unreadable(names[1]):
        pipeline.catch_up("UPDATE t SET v = 'newer' WHERE id BETWEEN 2 AND 1000")
    pipeline.assert_equal("t")


@pytest.mark.slow
def test_rows_whose_keys_no_file_can_have_are_appended(make_pipeline: MakePipeline) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all"), "spark")
    pipeline.ingest()
    pipeline.run(
        "CREATE TABLE t (at timestamptz, id int, v text, big text, PRIMARY KEY (at, id))",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE renamed (a int PRIMARY KEY, v text)",
    )
    pipeline.run("INSERT INTO t SELECT '2024-01-01Z', g, 'old' FROM generate_series(1, 50) g")
    pipeline.catch_up("INSERT INTO renamed SELECT g, 'old' FROM generate_series(1, 50) g")
    pipeline.run("ALTER TABLE renamed RENAME a TO b", "ALTER TABLE renamed ADD a int")
    pipeline.catch_up("UPDATE renamed SET a = 1000 + b")
    old = files(pipeline, "t")
    with unreadable(old | files(pipeline, "renamed")):
        pipeline.run(
            "INSERT INTO t SELECT '2024-01-02Z', g, 'new', repeat('x', 3000) FROM generate_series(1, 50) g",
            "UPDATE t SET v = 'newer' WHERE id = 7 AND at = '2024-01-02Z'",
            "DELETE FROM t WHERE id = 8 AND at = '2024-01-02Z'",
            "INSERT INTO renamed (b, a) VALUES (60, 1)",
        )
        assert pipeline.catch_up().exit_code(strict=True) == 0
    assert [operation(pipeline, name) for name in ("t", "renamed")] == ["WRITE", "WRITE"]
    pipeline.catch_up("UPDATE t SET v = 'x' WHERE id = 10", "UPDATE renamed SET v = 'new' WHERE b = 60")
    assert [operation(pipeline, name) for name in ("t", "renamed")] == ["MERGE", "MERGE"]
    pipeline.assert_equal("t", "renamed")


def operation(pipeline: Pipeline, table: str) -> str:
    """Return what the newest commit with a write says of itself."""
    commits = LakeTable(str(pipeline.path("silver", "public", table))).newest_commits()
    return str(next(commits)["operation"])
