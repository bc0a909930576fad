"""A slow table in a continuous run: the others go on in batches of their own, and it catches up by itself."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from pipeline.apply import applier as applying
from pipeline.apply.applier import Applier
from pipeline.apply.back_off import BackOff
from pipeline.apply.planner import LARGE
from pipeline.apply.table_pool import TablePool
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifest, Manifests
from pipeline.operate.resync import run_resync
from pipeline.protocol.lsn import LSN
from pipeline.reading.query import silver_as_of
from pipeline.report.status import read_status
from pipeline.report.status_page import BEHIND, CURRENT
from pipeline.silver.decision import Step
from pipeline.silver.fold.write import Write
from pipeline.silver.write.batch_writer import BatchWriter
from pipeline.table_name import TableName
from tests.support.pipelines import Crash, Pipeline, succeeded, with_rules, with_writer
from tests.support.threads import wait_until

SLOW, FAST = TableName("public", "slow"), TableName("public", "fast")
PATIENCE = 3.0  # seconds in which a busy machine writes the fast table, too


class Gate:
    """Lets writes of one table wait, before or after each of its commits, and fail if so asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.passing = 0  # commits that are let through first
        self.error: BaseException | None = None
        self.commits_first = False  # the error follows the commit
        self.count = 0
        self.table = SLOW
        write = BatchWriter._write

        def wait(writer: BatchWriter, each: Write, plan: Any) -> int:
            if writer._name != self.table:
                return write(writer, each, plan)
            if self.passing:
                self.passing -= 1
                return write(writer, each, plan)
            self.waiting.set()
            assert self.open.wait(120)
            self.count += 1
            if self.commits_first:
                write(writer, each, plan)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return write(writer, each, plan)

        patch.setattr(BatchWriter, "_write", wait)

    def close(self) -> None:
        self.open.clear()
        self.waiting.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    gate.open.set()
    yield gate
    gate.open.set()


@pytest.fixture
def tables(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose tables slow and fast have two rows each, in bronze.

    They are written natively, so that the fast one is fast.
    """
    pipeline = with_writer(pipeline, "auto")
    for table in ("slow", "fast"):
        pipeline.run(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    pipeline.ingest()
    change(pipeline)
    change(pipeline)
    return pipeline


def change(pipeline: Pipeline, *names: str) -> None:
    for table in names or ("slow", "fast"):
        pipeline.run(f"INSERT INTO {table} SELECT count(*), 'new' FROM {table}")
    pipeline.ingest()


def continuous(pipeline: Pipeline) -> Applier:
    """Return an apply that has applied what there is, and runs on."""
    applier = Applier(pipeline.spark, pipeline.config)
    applier.apply_pending()
    pipeline.assert_equal("slow", "fast")
    applier.run_continuously()
    applier.pool = TablePool(patience=PATIENCE)
    return applier


def while_slow_is_written(pipeline: Pipeline, gate: Gate) -> Applier:
    """Return an apply whose batch has ended while the slow table is being written."""
    applier = continuous(pipeline)
    gate.close()
    change(pipeline)
    applier.apply_pending()
    return applier


def newest(applier: Applier) -> Manifest:
    """Return the newest manifest as it is recorded."""
    recorded = applier.shown.manifests.last()
    assert recorded is not None
    assert recorded == applier.manifest
    return recorded


def shows(pipeline: Pipeline, name: TableName) -> bool:
    """Return whether the newest manifest has a table that is not behind."""
    manifest = Manifests(Lake(pipeline.root)).last()
    return manifest is not None and name in manifest.by_name and name not in manifest.behind


def let_through(gate: Gate, applier: Applier) -> None:
    """Let the slow table be written, and apply as a run does while bronze does not grow."""
    gate.open.set()
    wait_until(lambda: applier.pool.ended)
    applier.retry_when_due()
    while applier.pool.busy or newest(applier).behind:  # on a busy machine it may be slow once more
        applier.pool.wait()
        applier.apply_pending()


def counts(pipeline: Pipeline, lsn: LSN) -> Mapping[str, int]:
    """Return the rows of each table as of a manifest."""
    silver = silver_as_of(pipeline.config, str(lsn))
    return {name.table: rows.count_rows() for name, rows in silver.tables.items()}


def states(pipeline: Pipeline) -> dict[TableName, str]:
    status = read_status(pipeline.config)
    assert all(table.lag_bytes is not None for table in status.tables)
    return {table.name: table.state for table in status.tables}


@pytest.mark.promise("slow tables")
def test_other_tables_continue_while_one_is_being_written(tables: Pipeline, gate: Gate) -> None:
    applier = continuous(tables)
    before, version, count = newest(applier), tables.version("slow"), gate.count
    gate.close()
    manifests = []
    for number in range(3):
        change(tables)
        succeeded(applier.apply_pending())
        tables.assert_equal("fast")
        manifest = newest(applier)
        assert manifest.behind == {SLOW: before.lsn}
        assert manifest.by_name[SLOW].version == before.by_name[SLOW].version == version
        assert applier.planner.decisions[SLOW].step is (Step.WRITING if number else Step.APPLY)
        assert counts(tables, manifest.lsn) == {"fast": number + 3}
        manifests.append(manifest.lsn)
    assert gate.waiting.is_set()
    assert tables.version("slow") == version
    assert states(tables) == {SLOW: BEHIND, FAST: CURRENT}
    let_through(gate, applier)
    tables.assert_equal("slow", "fast")
    assert gate.count == count + 2  # the other two batches' changes in one write
    assert tables.version("slow") == version + 2
    assert states(tables) == {SLOW: CURRENT, FAST: CURRENT}
    assert applier.summary.tables[SLOW].changes == applier.summary.tables[FAST].changes == 5
    # the manifest of the batch that began the write is complete, the next one never will be
    assert counts(tables, manifests[0]) == {"slow": 3, "fast": 3}
    assert counts(tables, manifests[1]) == {"fast": 4}
    assert counts(tables, manifests[2]) == {"slow": 5, "fast": 5}


@pytest.mark.slow
@pytest.mark.spark
def test_a_manifest_shows_nothing_of_a_write_that_has_committed_a_part(tables: Pipeline, gate: Gate) -> None:
    applier = continuous(tables)
    before, version = newest(applier), tables.version("slow")
    tables.run(
        "UPDATE slow SET v = 'by key'",
        "ALTER TABLE slow REPLICA IDENTITY FULL",
        "ALTER TABLE slow DROP CONSTRAINT slow_pkey",
        "INSERT INTO slow VALUES (7, 'twice'), (7, 'twice')",
    )
    gate.close()
    gate.passing = 1
    change(tables, "fast")
    applier.apply_pending()
    assert gate.waiting.wait(60)
    assert tables.version("slow") > version
    change(tables, "fast")
    applier.apply_pending()
    manifest = newest(applier)
    assert manifest.behind == {SLOW: before.lsn}
    assert counts(tables, manifest.lsn) == {"fast": 4}
    entry = manifest.by_name[SLOW]
    rows = tables.session.read.format("delta").option("versionAsOf", entry.version).load(entry.path).collect()
    assert [row.v for row in rows] == ["new", "new"]
    let_through(gate, applier)
    tables.assert_equal("slow", "fast")


def test_a_write_that_fails_after_its_batch_is_repeated(tables: Pipeline, gate: Gate) -> None:
    applier = continuous(tables)
    before = newest(applier)
    gate.close()
    change(tables)
    applier.apply_pending()
    gate.error = OSError("no space left")
    gate.open.set()
    wait_until(lambda: applier.pool.ended)
    gate.close()
    versions = tables.frame("_pgdelta", "manifests").count()
    applier.retry_when_due()  # a failure is not repeated at once
    assert tables.frame("_pgdelta", "manifests").count() == versions
    change(tables, "fast")
    summary = applier.apply_pending()
    assert applier.planner.decisions[SLOW].step is Step.BACK_OFF
    applier.planner.back_off = BackOff()  # as when its next attempt is due
    applier.apply_pending()
    assert "no space left" not in str(summary.tables[SLOW].failure)  # it could have a row's values
    assert summary.tables[SLOW].failure
    assert summary.exit_code(strict=False) == 1
    assert newest(applier).behind == {SLOW: before.lsn}
    assert gate.waiting.wait(60)
    tables.assert_equal("fast")
    let_through(gate, applier)
    assert summary.exit_code(strict=True) == 0
    tables.assert_equal("slow", "fast")


def test_closing_waits_for_the_write_and_records_it(tables: Pipeline, gate: Gate) -> None:
    applier = continuous(tables)
    count = gate.count
    gate.close()
    change(tables)
    applier.apply_pending()
    assert newest(applier).behind
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(applier.close)
        with pytest.raises(TimeoutError):
            closed.result(1)
        gate.open.set()
        closed.result(60)
    assert not newest(applier).behind
    tables.assert_equal("slow", "fast")
    change(tables)
    applier.apply_batch(None, 1)  # type: ignore[arg-type]
    assert gate.count == count + 1
    tables.assert_follows("slow", "fast")


@pytest.mark.slow
@pytest.mark.spark
def test_a_run_that_is_stopped_ends_after_the_write(tables: Pipeline, gate: Gate) -> None:
    gate.close()
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(tables.apply, trigger="continuous", stop=stop)
        assert gate.waiting.wait(120)
        wait_until(lambda: shows(tables, FAST))
        tables.assert_equal("fast")
        change(tables, "fast")
        wait_until(lambda: tables.frame("silver", "public", "fast").count() == 3)
        stop.set()
        with pytest.raises(TimeoutError):
            run.result(3)
        gate.open.set()
        assert run.result(120).exit_code(strict=True) == 0
    tables.assert_equal("slow", "fast")


def test_a_run_that_applies_what_there_is_waits_for_all(tables: Pipeline, gate: Gate) -> None:
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(tables.apply)
        assert gate.waiting.wait(120)
        with pytest.raises(TimeoutError):
            run.result(2)
        gate.open.set()
        assert run.result(120).exit_code(strict=True) == 0
    tables.assert_equal("slow", "fast")
    manifest = Manifests(Applier(tables.spark, tables.config).lake).last()
    assert manifest is not None
    assert not manifest.behind


@pytest.mark.sample(1)
@pytest.mark.promise("slow tables")
@pytest.mark.parametrize("ends", ["well", "in a crash"])
def test_a_batch_that_must_be_whole_shows_the_others_while_it_waits(
    tables: Pipeline, gate: Gate, ends: str
) -> None:
    applier = Applier(tables.spark, tables.config)
    applier.apply_pending()
    before = newest(applier)
    change(tables)
    gate.close()
    applier.pool = TablePool(whole_patience=1.0)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(applier.apply_pending)
        wait_until(lambda: Manifests(Lake(tables.root)).last() != before)
        early = newest(applier)
        assert early.behind == {SLOW: before.lsn}
        assert early.by_name[SLOW].version == before.by_name[SLOW].version
        assert counts(tables, early.lsn) == {"fast": 3}
        assert states(tables) == {SLOW: BEHIND, FAST: CURRENT}
        assert not run.done()
        if ends == "in a crash":
            gate.error = Crash()
        gate.open.set()
        if ends == "in a crash":
            with pytest.raises(Crash):
                run.result(60)
            assert Manifests(Lake(tables.root)).last() == early
            tables.catch_up()
        else:
            assert run.result(60).exit_code(strict=True) == 0
            assert newest(applier).lsn == early.lsn
    tables.assert_equal("slow", "fast")
    # the run after a crash may have captured more, of an idle server too
    last = Manifests(Lake(tables.root)).last()
    assert last is not None
    assert counts(tables, last.lsn) == {"slow": 3, "fast": 3}
    assert states(tables) == {SLOW: CURRENT, FAST: CURRENT}


@pytest.mark.sample(1)
@pytest.mark.promise("slow tables")
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_crash_while_a_table_is_being_written_leaves_the_others_right(
    tables: Pipeline, gate: Gate, is_committed: bool
) -> None:
    applier = while_slow_is_written(tables, gate)
    change(tables)
    applier.apply_pending()
    before = newest(applier)
    assert before.behind.keys() == {SLOW}
    gate.commits_first, gate.error = is_committed, Crash()
    gate.open.set()
    wait_until(lambda: all(write.done() for write in applier.pool._busy.values()))
    with pytest.raises(Crash):
        applier.apply_pending()
    gate.commits_first = False
    assert Manifests(Lake(tables.root)).last() == before
    assert counts(tables, before.lsn) == {"fast": 4}
    tables.assert_equal("fast")
    assert tables.frame("silver", "public", "slow").count() == 2 + is_committed
    change(tables)
    tables.assert_follows("slow", "fast")
    assert states(tables) == {SLOW: CURRENT, FAST: CURRENT}


def test_a_resync_of_the_table_meanwhile_follows(tables: Pipeline, gate: Gate) -> None:
    source = replace(tables.config.source, copy="initial")
    tables = replace(tables, config=replace(tables.config, source=source))
    tables.ingest()
    applier = while_slow_is_written(tables, gate)
    run_resync(tables.config, ["public.slow"])
    change(tables)  # copies the table, too
    applier.apply_pending()
    tables.assert_equal("fast")
    assert applier.planner.decisions[SLOW].step is Step.WRITING
    let_through(gate, applier)
    tables.assert_equal("slow", "fast")
    assert any("starts from a copy" in sentence for _, sentence in tables.events("slow"))


@pytest.mark.slow
@pytest.mark.promise("slow tables")
def test_the_copy_of_a_large_table_does_not_delay_the_others(tables: Pipeline, gate: Gate) -> None:
    source = replace(tables.config.source, copy="initial")
    tables = replace(tables, config=replace(tables.config, source=source))
    tables.ingest()
    applier = continuous(tables)
    gate.table = large = TableName("public", "large")
    gate.close()
    tables.run(
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        f"INSERT INTO large SELECT g, md5(g::text) FROM generate_series(1, {LARGE}) g",
    )
    for number in range(3):
        change(tables, "fast")
        applier.apply_pending()
        assert applier.planner.tables[large].is_large or applier.planner.decisions[large].step is Step.WRITING
        assert gate.waiting.is_set()
        assert newest(applier).behind.keys() == {large}
        assert counts(tables, newest(applier).lsn) == {"slow": 2, "fast": 3 + number}
    tables.run("DELETE FROM large WHERE id % 1000 = 0", "UPDATE large SET v = 'new' WHERE id < 10")
    change(tables)
    applier.apply_pending()
    let_through(gate, applier)
    tables.assert_equal("large", "slow", "fast")


def test_changes_of_the_table_in_the_meantime_follow(tables: Pipeline, gate: Gate) -> None:
    applier = while_slow_is_written(tables, gate)
    tables.run("TRUNCATE slow", "ALTER TABLE slow ADD n int DEFAULT 3", "INSERT INTO slow VALUES (9, 'b', 2)")
    change(tables)
    applier.apply_pending()
    tables.assert_equal("fast")
    let_through(gate, applier)
    tables.assert_equal("slow", "fast")


@pytest.mark.sample(1)
@pytest.mark.parametrize("policy", ["keep", "archive"])
def test_a_table_dropped_while_written_is_detached_after_its_last_changes(
    tables: Pipeline, gate: Gate, policy: Any
) -> None:
    source = replace(tables.config.source, copy="initial")  # records tables that are dropped
    tables = replace(tables, config=replace(tables.config, source=source))
    tables = with_rules(tables, TableRule("*.*", detached_tables=policy))
    tables.ingest()
    applier = while_slow_is_written(tables, gate)
    change(tables)  # the last change of slow, which no batch has begun to apply
    tables.run("DROP TABLE slow")
    change(tables, "fast")
    applier.apply_pending()
    assert newest(applier).by_name.keys() == {FAST}
    assert tables.path("silver", "public", "slow").exists()
    assert not tables.path("archive").exists()
    let_through(gate, applier)
    place = "archive" if policy == "archive" else "silver"
    wait_until(lambda: applier.apply_pending() and tables.path(place, "public", "slow").exists())
    assert tables.path("silver", "public", "slow").exists() == (policy == "keep")
    assert tables.frame(place, "public", "slow").count() == 4
    tables.assert_equal("fast")


def test_a_name_that_a_busy_table_had_meanwhile_needs_a_resync(tables: Pipeline, gate: Gate) -> None:
    applier = while_slow_is_written(tables, gate)
    tables.run("INSERT INTO slow VALUES (10, 'own')", "ALTER TABLE slow RENAME TO other")
    tables.run("INSERT INTO other VALUES (11, 'lost to slow')", "ALTER TABLE other RENAME TO slow")
    change(tables, "fast")
    applier.apply_pending()  # the change under the other name lies before this manifest
    let_through(gate, applier)
    for statements in ((), ("INSERT INTO slow VALUES (12, 'own')",)):  # the catalog has its own name, too
        tables.ingest(*statements)
        applier.apply_pending()
        applier.pool.wait()
        assert [kind for kind, sentence in tables.events("slow") if "public.other" in sentence] == ["resync"]


def test_a_rename_during_a_write_records_an_event_and_keeps_the_old_rows(
    tables: Pipeline, gate: Gate
) -> None:
    applier = while_slow_is_written(tables, gate)
    tables.run("ALTER TABLE slow RENAME TO renamed", "INSERT INTO renamed VALUES (11, 'new name')")
    change(tables, "fast")
    applier.apply_pending()
    assert any("was renamed to public.renamed" in sentence for _, sentence in tables.events("renamed"))
    assert tables.frame("silver", "public", "renamed").count() == 1
    let_through(gate, applier)
    assert tables.frame("silver", "public", "slow").count() == 3
    assert applier.summary.exit_code(strict=True) == 0


def test_what_lies_before_a_gap_is_applied_to_a_busy_table_first(
    tables: Pipeline, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = replace(tables.config.source, copy="initial", lost_slot="resync")
    tables = replace(tables, config=replace(tables.config, source=source))
    tables.ingest()
    applier = while_slow_is_written(tables, gate)
    change(tables)
    applier.apply_pending()
    assert newest(applier).behind
    tables.drop_slot()
    tables.ingest("DELETE FROM slow WHERE id = 0", "DELETE FROM fast WHERE id = 0")
    ends = []
    run_batch = Applier._run_batch

    def record(applier: Applier, end: Any, *, is_whole: bool) -> bool:
        has_conflicts = run_batch(applier, end, is_whole=is_whole)
        ends.append((is_whole, newest(applier).lsn, dict(newest(applier).behind)))
        return has_conflicts

    monkeypatch.setattr(Applier, "_run_batch", record)
    monkeypatch.setattr(applying, "RETRY_SECONDS", 0.0)
    gap = tables.frame("bronze", "copies").where("state = 'gap'").collect()[0]
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(applier.apply_pending)
        with pytest.raises(TimeoutError):
            batch.result(3)
        assert not ends
        gate.open.set()
        batch.result(60)
    assert ends[0] == (True, gap.from_lsn, {})
    tables.ingest()
    let_through(gate, applier) if applier.pool.busy else applier.apply_pending()
    tables.assert_equal("slow", "fast")
