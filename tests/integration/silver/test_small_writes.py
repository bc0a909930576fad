"""Spark writes few rows to a small table with settings that make its plan cheap, and restores its own."""

from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.delta.spark.session import new_session, settings
from pipeline.delta.spark.settings import SMALL_WRITE_SETTINGS
from pipeline.silver.fold.fold import Fold
from pipeline.silver.fold.write import Write
from pipeline.silver.write import writer_choice
from pipeline.silver.write.spark_target import SparkTarget
from tests.support.pipelines import Crash, MakePipeline, with_writer

KEYS = tuple(SMALL_WRITE_SETTINGS)


@pytest.mark.spark
def test_only_a_small_write_has_the_settings(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_pipeline(create_publication="all")
    made.ingest()
    made.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    with_writer(made, "native").catch_up()
    pipeline, found = with_writer(made, "spark"), []
    merge = SparkTarget.commit_merge

    def recorded(target: SparkTarget, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        found.append({key: target.session.spark.conf.get(key) for key in KEYS})
        if len(found) < 3:
            raise Crash
        merge(target, write, fold, aggregates)

    monkeypatch.setattr(SparkTarget, "commit_merge", recorded)
    pipeline.ingest(
        "UPDATE t SET v = v || 'c' WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3)"
    )
    for limit, value in (("SMALL_CHANGES", 2), ("SMALL_BYTES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(writer_choice, limit, value)
            with pytest.raises(Crash):  # before it commits
                pipeline.apply()
    pipeline.assert_follows("t")
    assert [each == SMALL_WRITE_SETTINGS for each in found] == [False, False, True]


@pytest.mark.spark
def test_settings_are_as_before_also_after_a_failure(make_pipeline: MakePipeline) -> None:
    session = new_session(make_pipeline().session)
    session.conf.set(KEYS[1], "7")
    before = [session.conf.get(key) for key in KEYS]

    def fail() -> None:
        with settings(session, {**SMALL_WRITE_SETTINGS, "pgdelta.own": "x"}):
            assert {key: session.conf.get(key) for key in KEYS} == SMALL_WRITE_SETTINGS
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [session.conf.get(key) for key in KEYS] == before
    assert session.conf.get("pgdelta.own", None) is None
