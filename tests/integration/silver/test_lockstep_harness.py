"""Scenarios in lock step: one that fails names itself alone, and the others pass."""

from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from pipeline.postgres.embedded import EmbeddedServer
from tests.support.lockstep import ALONE, CAPTURED, STOPPED, Group, Lane, Steps

pytestmark = pytest.mark.postgres


def passes(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    yield CAPTURED
    assert not lane.silver("t").exists()
    lane.run("INSERT INTO t VALUES (2)")
    yield
    lane.assert_equal("t")
    assert lane.rows("t", "id") == [(1,), (2,)]
    lane.run("DELETE FROM t WHERE id = 1")
    yield
    lane.assert_equal("t")


def fails_before_the_jobs(lane: Lane) -> Steps:
    lane.run("SELECT nonsense")
    yield


def fails_between(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    yield
    assert lane.rows("t", "id") == [(2,)]
    yield


def is_held(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY, day date)", "INSERT INTO t VALUES (1, 'infinity')")
    yield
    raise ZeroDivisionError("the step raises")


def may_be_held(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY, day date)", "INSERT INTO t VALUES (1, 'infinity')")
    yield STOPPED
    assert "column day" in str(lane.state("t").held)
    lane.set_rules(TableRule("*.t", misfits={"day": "clamp"}))
    yield
    assert len(lane.rows("t", "id")) == 1


def waits_for_the_others(lane: Lane) -> Steps:
    yield ALONE
    assert [each for each in lane.lanes.values() if each.is_open] == [lane]
    lane.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    yield
    lane.assert_equal("t")


def test_a_scenario_that_fails_names_itself_alone(server: EmbeddedServer, tmp_path: Path) -> None:
    error = (TableRule("*.t", misfits={"day": "error"}),)
    group = Group()
    for run in (passes, fails_before_the_jobs, fails_between, is_held, may_be_held, waits_for_the_others):
        group.scenarios[run.__name__] = run, error if run in (is_held, may_be_held) else ()
    errors = group.run(server, str(tmp_path / "lake"), "native", group.scenarios)
    assert {*errors} == {"fails_before_the_jobs", "fails_between", "is_held"}
    assert 'column "nonsense" does not exist' in str(errors["fails_before_the_jobs"])
    assert "[(1,)] == [(2,)]" in str(errors["fails_between"])
    assert "column day" in str(errors["is_held"])
    assert errors["fails_between"].__traceback__ is not None
