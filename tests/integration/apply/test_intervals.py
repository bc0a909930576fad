"""`min_interval`: a continuous run writes a table again only after its interval; a single run writes all."""

import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.bronze.log import Bronze
from pipeline.config.tables import TableRule
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from pipeline.report.status_page import BEHIND
from pipeline.silver.decision import Step
from pipeline.table_name import TableName
from tests.support.pipelines import Pipeline

SLOW, FAST = TableName("public", "slow"), TableName("public", "fast")


def change(pipeline: Pipeline) -> None:
    pipeline.ingest(*(f"INSERT INTO {table} SELECT count(*) FROM {table}" for table in ("slow", "fast")))


def apply_all(applier: Applier) -> None:
    """Apply what is due, tables included whose write takes longer than their batch waits."""
    applier.apply_pending()
    while applier.pool.busy:
        applier.pool.wait()
        applier.apply_pending()


def test_a_table_waits_for_its_interval_and_holds_back_no_other(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = (TableRule("public.slow", min_interval=3600), TableRule("*.*"))
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=rules))
    pipeline.ingest("CREATE TABLE slow (id int PRIMARY KEY)", "CREATE TABLE fast (id int PRIMARY KEY)")
    applier = Applier(pipeline.spark, pipeline.config)
    applier.run_continuously()
    change(pipeline)
    apply_all(applier)
    pipeline.assert_equal("slow", "fast")
    manifest = applier.manifest
    assert manifest is not None
    assert not manifest.behind
    version = pipeline.version("slow")

    surveyed: list[set[TableName]] = []
    survey_tables = Bronze.survey_tables

    def record_survey(bronze: Bronze, starts: Mapping[TableName, LSN], end_lsn: LSN) -> Any:
        surveyed.append(set(starts))
        return survey_tables(bronze, starts, end_lsn)

    monkeypatch.setattr(Bronze, "survey_tables", record_survey)
    for _ in range(4):
        change(pipeline)
        apply_all(applier)
        assert applier.planner.decisions[SLOW].step is Step.POSTPONE
        assert applier.manifest is not None
        assert applier.manifest.behind == {SLOW: manifest.lsn}
        assert pipeline.version("slow") == version
        pipeline.assert_equal("fast")
    states = {table.name: table.state for table in read_status(pipeline.config).tables}
    assert states[SLOW] == BEHIND
    newest = pipeline.frame("_pgdelta", "manifests").count()
    apply_all(applier)  # bronze has nothing new
    assert pipeline.frame("_pgdelta", "manifests").count() == newest

    # the second batch found it behind; the others, and the one below, read its changes in new files only
    assert surveyed == [{SLOW}]
    change(pipeline)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
    monkeypatch.setattr("pipeline.apply.planner.time", later)
    apply_all(applier)
    assert applier.manifest is not None
    assert not applier.manifest.behind
    assert surveyed == [{SLOW}]
    assert pipeline.version("slow") == version + 1
    pipeline.assert_equal("slow", "fast")


def test_a_single_run_waits_for_no_interval(pipeline: Pipeline) -> None:
    rules = (TableRule("public.slow", min_interval=3600), TableRule("*.*"))
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=rules))
    pipeline.ingest("CREATE TABLE slow (id int PRIMARY KEY)", "CREATE TABLE fast (id int PRIMARY KEY)")
    for _ in range(2):
        change(pipeline)
        assert pipeline.apply().exit_code(strict=True) == 0
        pipeline.assert_equal("slow", "fast")
