"""The key in misfits says whose value it was: rows with different keys are told apart."""

from __future__ import annotations

import pytest

from tests.operate.pipelines import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

KEYS = {
    "text": ["a", "", "NULL"],
    "bytea": ["\\xff", "\\xfe"],
    "text[]": ['{a,"b, c"}', "{a,b,c}", "{a,NULL}"],
}


@pytest.mark.parametrize(
    "type_",
    ["text", *(pytest.param(type_, marks=pytest.mark.slow) for type_ in ("bytea", "text[]"))],
)
def test_misfits_of_different_rows_have_different_keys(pipeline: Pipeline, type_: str) -> None:
    pipeline.run(f"CREATE TABLE keyed (k {type_} PRIMARY KEY, day date)")
    pipeline.ingest()
    pipeline.run(*(f"INSERT INTO keyed VALUES ('{key}', 'infinity')" for key in KEYS[type_]))
    pipeline.catch_up()
    recorded = [row.key for row in pipeline.frame("_pgdelta", "misfits").collect()]
    assert len(recorded) == len(set(recorded)) == len(KEYS[type_])
