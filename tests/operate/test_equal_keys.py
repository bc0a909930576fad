"""Keys that are equal to PostgreSQL and not the same: silver has the text that the source has now."""

from __future__ import annotations

import pytest

from tests.operate.pipelines import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

# type → a key, and one that the server takes for the same
KEYS = {
    "float8": ("-0", "0"),
    "numeric": ("1.0", "1.00"),
    "jsonb": ("1.0", "1.00"),
    "float8[]": ("{-0,NaN}", "{0,NaN}"),
}
SCALARS = [type_ for type_ in KEYS if type_ != "float8[]"]


@pytest.mark.parametrize(
    ("types", "together"),
    [
        pytest.param(SCALARS, True, marks=pytest.mark.slow),
        (SCALARS, False),
        pytest.param(["float8[]"], False, marks=pytest.mark.slow),
    ],
    ids=["in one batch", "in two batches", "in an array"],
)
def test_a_key_that_becomes_an_equal_one_is_one_row(
    pipeline: Pipeline, types: list[str], together: bool
) -> None:
    tables = {f"keyed_{i}": KEYS[type_] for i, type_ in enumerate(types)}
    for table, type_ in zip(tables, types, strict=True):
        pipeline.run(f"CREATE TABLE {table} (k {type_} PRIMARY KEY, n int)")
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO {table} VALUES ('{before}', 1)" for table, (before, _) in tables.items()))
    if not together:
        pipeline.catch_up()
    for table, (_, after) in tables.items():
        pipeline.run(f"UPDATE {table} SET k = '{after}'", f"UPDATE {table} SET n = 2")
    pipeline.catch_up()
    pipeline.assert_equal(*tables)
    for table, (before, _) in tables.items():
        pipeline.run(f"DELETE FROM {table}", f"INSERT INTO {table} VALUES ('{before}', 3)")
    pipeline.catch_up()
    pipeline.assert_equal(*tables)
