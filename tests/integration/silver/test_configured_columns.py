"""What the rule of a column does where the source's values meet the limits of its silver type."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.tables import RowMode, TableRule
from pipeline.delta.table import LakeTable
from pipeline.operate.resync import run_resync
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    ("policy", "older"), [("null", None), ("text", None), ("clamp", date(9999, 12, 31)), ("error", None)]
)
def test_a_default_that_does_not_fit_is_an_event(
    database: Database, tmp_path: Path, policy: Any, older: date | None
) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.t", misfits={"d": policy}))
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    pipeline.catch_up("ALTER TABLE t ADD d date DEFAULT 'infinity'", "INSERT INTO t VALUES (3, '2024-01-01')")
    [(kind, sentence)] = [each for each in pipeline.events("t") if each[0] in ("resync", "refused")]
    assert "column d was added with a default that its silver type cannot hold" in sentence.lower()
    if policy == "error":
        assert kind == "refused"
        assert pipeline.rows("t", "id") == [(1,), (2,)]
        pipeline.set_rules(TableRule("public.t", misfits={"d": "null"}))
        pipeline.catch_up()
    else:
        assert kind == "resync"
    assert pipeline.rows("t", "id", "d") == [(1, older), (2, older), (3, date(2024, 1, 1))]
    run_resync(pipeline.config, ["public.t"])
    pipeline.catch_up()
    if policy == "text":
        assert pipeline.rows("t", "id", "d__text") == [(1, "infinity"), (2, "infinity"), (3, None)]
    recorded = LakeTable(f"{pipeline.config.storage.root}/_pgdelta/misfits").rows(["key"]).to_pylist()
    assert {row["key"] for row in recorded} == {'{"id":"1"}', '{"id":"2"}'}


def test_a_default_that_fits_and_one_of_a_table_without_rows_are_no_event(
    database: Database, tmp_path: Path
) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.t", misfits={"e": "error"}))
    pipeline.catch_up("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    pipeline.catch_up("ALTER TABLE t ADD d date DEFAULT '2024-01-01'", "DELETE FROM t")
    pipeline.catch_up("ALTER TABLE t ADD e date DEFAULT 'infinity'", "INSERT INTO t VALUES (2, NULL, NULL)")
    assert not [each for each in pipeline.events("t") if each[0] in ("resync", "refused", "held")]
    assert pipeline.rows("t", "id", "d", "e") == [(2, None, None)]


@pytest.mark.parametrize("mode", ["mirror", "history"])
@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("TIMESTAMP", "2024-01-01 10:00:00+00", "2024-01-01 12:00:00+02"),
        ("INT", "1", "01"),
        ("BINARY", "\\xab", "\\xAB"),
    ],
)
def test_a_type_in_which_different_keys_are_equal_holds_the_table(
    database: Database, tmp_path: Path, kind: str, one: str, other: str, mode: RowMode
) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.t", types={"k": kind}, mode=mode))
    pipeline.catch_up("CREATE TABLE t (k text PRIMARY KEY, v text)", f"INSERT INTO t VALUES ('{one}', 'a')")
    pipeline.catch_up(f"INSERT INTO t VALUES ('{other}', 'b')")
    [(_, sentence)] = [each for each in pipeline.events("t") if each[0] == "held"]
    assert f"has {kind} for column k of the key, in which different keys may be equal" in sentence
    pipeline.set_rules(TableRule("public.t", mode=mode))
    pipeline.catch_up()
    assert pipeline.rows("t", "k", "v") == sorted([(one, "a"), (other, "b")])


@pytest.mark.parametrize(
    ("of_source", "kind", "value"),
    [
        ("int", "DECIMAL(20,0)", "7"),
        ("numeric", "DECIMAL(20,2)", "7.00"),
        ("date", "TIMESTAMP_NTZ", "2024-01-01"),
        ("uuid", "STRING", "7b1d7f50-7b1d-7f50-7b1d-7f507b1d7f50"),
    ],
)
def test_a_type_that_keeps_keys_apart_is_used(
    database: Database, tmp_path: Path, of_source: str, kind: str, value: str
) -> None:
    pipeline = NativePipeline.make(database, tmp_path, TableRule("public.t", types={"k": kind}))
    pipeline.catch_up(f"CREATE TABLE t (k {of_source} PRIMARY KEY)", f"INSERT INTO t VALUES ('{value}')")
    assert len(pipeline.rows("t", "k")) == 1
    assert not [each for each in pipeline.events("t") if each[0] == "held"]
