"""`pgdelta pause` and `resume`: apply writes nothing to a paused table, and loses nothing of it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.schedule import Schedule, Window
from pipeline.errors import ConfigError
from pipeline.metadata.events import EventLog
from pipeline.metadata.pauses import PauseTable
from pipeline.operate.pause import pause_tables, resume_tables
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.report.status import read_status
from pipeline.silver.decision import Step
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support.pipelines import Crash, Pipeline, crash, succeeded, with_writer

A, B = TableName("public", "a"), TableName("public", "b")


@pytest.fixture(params=["native", pytest.param("spark", marks=pytest.mark.slow)])
def life(request: pytest.FixtureRequest, pipeline: Pipeline) -> Pipeline:
    """Give a pipeline with two filled tables, by each writer."""
    writer: WriterSetting = request.param
    pipeline = with_writer(pipeline, writer)
    pipeline.ingest(
        "CREATE TABLE a (id int PRIMARY KEY, name text)",
        "CREATE TABLE b (id int PRIMARY KEY, name text)",
    )
    pipeline.catch_up(*changes(0))
    return pipeline


def changes(number: int) -> Iterator[str]:
    for table in ("a", "b"):
        yield "BEGIN"
        yield f"INSERT INTO {table} SELECT g, 'x' FROM generate_series({number * 10}, {number * 10 + 9}) g"
        yield f"UPDATE {table} SET name = name || '{number}' WHERE id % 3 = 0"
        yield from (f"DELETE FROM {table} WHERE id % 10 = 7", "COMMIT")


def states(pipeline: Pipeline) -> dict[TableName, str]:
    return {table.name: table.state for table in read_status(pipeline.config).tables}


def events(pipeline: Pipeline, *kinds: str) -> list[tuple[str, str]]:
    return [(kind, sentence) for kind, sentence in pipeline.events("a") if kind in kinds]


def test_a_paused_table_is_not_written_and_has_all_changes_when_resumed(life: Pipeline) -> None:
    before = life.version("a")
    summary = pause_tables(life.config, ["public.a"], reason="a report")
    assert summary.done == (A,)
    for number in (1, 2):
        life.ingest(*changes(number))
        applied = succeeded(life.apply())
        assert applied.tables[A].paused is not None
        assert "is paused since" in "\n".join(applied.lines())
        life.assert_equal("b")
    assert life.version("a") == before
    assert states(life) == {A: "paused", B: "current"}
    [shown] = [table for table in read_status(life.config).tables if table.name == A]
    assert "(a report)" in (shown.notice or "")
    assert "pgdelta resume --table public.a" in (shown.notice or "")
    planned = {table.name: table for table in make_plan(life.config).tables}
    assert any(step.holds and "is paused" in step.sentence for step in planned[A].steps)

    assert resume_tables(life.config, ["public.*"]).done == (A,)
    life.catch_up(*changes(3))
    life.assert_equal("a", "b")
    assert states(life) == {A: "current", B: "current"}
    kinds = [kind for kind, _ in events(life, "paused", "resumed")]
    assert sorted(kinds) == ["paused", "resumed"]


def test_a_continuous_run_pauses_and_resumes_a_table_while_it_runs(life: Pipeline) -> None:
    applier = Applier(life.spark, life.config)
    applier.run_continuously()
    applier.apply_pending()
    pause_tables(life.config, ["public.a"])
    life.ingest(*changes(1))
    applier.apply_pending()
    wait_for_tables(applier)
    assert applier.planner.decisions[A].step is Step.PAUSE
    assert applier.summary.tables[A].paused is not None
    life.assert_equal("b")
    resume_tables(life.config, ["public.a"])
    applier._batch_at -= 3600
    applier.retry_when_due()  # bronze has nothing new
    wait_for_tables(applier)
    life.assert_equal("a", "b")
    assert applier.summary.tables[A].paused is None


def wait_for_tables(applier: Applier) -> None:
    """Wait until no table is being written, and show what was."""
    while applier.pool.busy:
        applier.pool.wait()
        applier.apply_pending()


def test_a_table_stays_paused_when_it_is_renamed(life: Pipeline) -> None:
    source = replace(life.config.source, copy="initial")  # silver follows names: it copies the new one
    life = replace(life, config=replace(life.config, source=source))
    life.catch_up()
    pause_tables(life.config, ["public.a"])
    life.ingest(*changes(1), "ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (1000, 'renamed')")
    life.apply()
    assert not life.path("silver", "public", "c").exists()
    assert resume_tables(life.config, ["public.c"]).done == (A,)
    life.assert_follows("b", "c")


def test_a_rebuild_leaves_a_paused_table_as_it_is(life: Pipeline) -> None:
    pause_tables(life.config, ["public.a"])
    life.ingest(*changes(1))
    before = life.version("a")
    summary = run_rebuild(life.config)
    assert summary.rebuilt == [B]
    assert summary.tables[A].paused is not None
    assert life.version("a") == before
    resume_tables(life.config, ["public.a"])
    life.assert_follows("a", "b")


def test_what_is_done_twice_is_recorded_once(life: Pipeline) -> None:
    pause_tables(life.config, ["public.a"])
    assert pause_tables(life.config, ["public.a"]).done == ()
    assert len(events(life, "paused")) == 1
    resume_tables(life.config, ["public.a"])
    assert len(events(life, "resumed")) == 1
    with pytest.raises(ConfigError, match="No table is paused, so there is nothing to resume"):
        resume_tables(life.config, ["public.a"])


def test_a_command_that_is_killed_between_its_commits_is_repeated(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "record", crash)
        with pytest.raises(Crash):
            pause_tables(life.config, ["public.a"])
    assert states(life)[A] == "paused"
    pause_tables(life.config, ["public.a"])
    assert len(events(life, "paused")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(PauseTable, "resume", crash)
        with pytest.raises(Crash):
            resume_tables(life.config, ["public.a"])
    assert states(life)[A] == "paused"
    resume_tables(life.config, ["public.a"])
    assert len(events(life, "resumed")) == 1
    life.catch_up()


def test_a_table_that_does_not_exist_is_refused(life: Pipeline) -> None:
    with pytest.raises(ConfigError, match="neither has the source"):
        pause_tables(life.config, ["public.nothing"])
    with pytest.raises(ConfigError, match="--reason is one line"):
        pause_tables(life.config, ["public.a"], reason="two\nlines")


def test_a_schedule_is_in_status_and_limits_how_often_tables_are_written(
    life: Pipeline,
) -> None:
    def scheduled(seconds: int) -> Pipeline:
        schedule = Schedule("Europe/Berlin", (Window("00:00-24:00", seconds),))
        rules = tuple(replace(rule, schedule=schedule) for rule in life.config.tables)
        silver = replace(life.config.silver, schedule=schedule)
        return replace(life, config=replace(life.config, silver=silver, tables=rules))

    slow, fast = scheduled(3600), scheduled(0)
    for each, shown in ((slow, 1), (fast, 2)):
        applier = Applier(each.spark, each.config)
        applier.run_continuously()
        for number in (1, 2):
            life.ingest(f"UPDATE a SET name = '{number}' WHERE id = 1")
            applier.apply_pending()
            while applier.pool.busy:
                applier.pool.wait()
                applier.apply_pending()
        assert (applier.planner.decisions[A].step is Step.POSTPONE) == (each is slow)
        [row] = life.frame("silver", "public", "a").where("id = 1").collect()
        assert row.name == str(shown)
    status = read_status(slow.config).as_json()
    assert status["schedule"] == {
        "time_zone": "Europe/Berlin",
        "hours": "00:00-24:00",
        "min_interval": 3600,
        "until": None,
    }
    assert read_status(life.config).as_json()["schedule"] is None
    life.assert_follows("a", "b")
