"""What becomes of a lake outside the runs: it moves, its checkpoints go back, Delta forgets positions."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import TableLog
from pipeline.delta.txn import TableCommit, TxnId, TxnKind
from pipeline.errors import ConfigError
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN
from pipeline.operate.resync import run_resync
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from pipeline.verify.audit_silver import DAMAGED, run_silver_audit
from pipeline.verify.fidelity import Fidelity, run_fidelity
from pipeline.verify.fingerprint import run_fingerprint
from pipeline.verify.prove import run_prove
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import MakePipeline, Pipeline

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 20) i",
    "CREATE TABLE bag (a int)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "INSERT INTO bag SELECT i % 3 FROM generate_series(1, 9) i",
)
T = TableName("public", "t")
RETENTION = "delta.setTransactionRetentionDuration"


@pytest.fixture
def shop(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose silver shows a table with a key and one without, and whose runs start queries."""
    pipeline = replace(make_pipeline(copy="initial", create_publication="all"), starts_query=True)
    pipeline.catch_up(*TABLES)
    pipeline.catch_up(*CHANGE)
    return pipeline


def damage_checkpoint(root: str, content: bytes) -> None:
    """Replace what each file of the query's checkpoint has."""
    files = [file for file in Path(root, "_pgdelta", "checkpoints").rglob("*") if file.is_file()]
    for file in files:
        file.write_bytes(content)
    assert {file.parent.name for file in files} >= {"apply", "offsets", "commits"}


CHANGE = (
    "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
    "INSERT INTO t SELECT max(id) + 1, 'new' FROM t",
    "INSERT INTO bag VALUES (1), (7)",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
)


def forget(pipeline: Pipeline, *names: str) -> None:
    """Have Delta forget the positions of a table, so long ago that no checkpoint has them either."""
    table = LakeTable(str(pipeline.path(*names)), pipeline.spark)
    sql = f"ALTER TABLE {table.identifier}"
    pipeline.session.sql(f"{sql} SET TBLPROPERTIES ('{RETENTION}' = 'interval 0 seconds')")
    jvm: Any = pipeline.session._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    log.forTable(pipeline.session._jsparkSession, table.path).checkpoint()
    pipeline.session.sql(f"{sql} UNSET TBLPROPERTIES ('{RETENTION}')")
    folder = pipeline.path(*names, "_delta_log")
    for file in folder.glob("*.crc"):
        file.unlink()
    log.clearCache()
    TableLog.forget(table.path)


def clear_log(pipeline: Pipeline, *names: str) -> None:
    """Have Delta remove the log of a table so far, as it does with a checkpoint that is 30 days old."""
    table = LakeTable(str(pipeline.path(*names)), pipeline.spark)
    folder = pipeline.path(*names, "_delta_log")
    jvm: Any = pipeline.session._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    log.forTable(pipeline.session._jsparkSession, table.path).checkpoint()
    long_ago = time.time() - 40 * 86_400
    for file in folder.glob("*.*"):
        os.utime(file, (long_ago, long_ago))
    log.clearCache()
    pipeline.session.sql(
        f"ALTER TABLE {table.identifier} SET TBLPROPERTIES ('delta.checkpointInterval' = '10')"
    )
    log.forTable(pipeline.session._jsparkSession, table.path).checkpoint()
    log.clearCache()
    assert not (folder / f"{0:020}.json").exists()


def at(pipeline: Pipeline, root: Path) -> Pipeline:
    """Return the pipeline with its lake in another folder."""
    storage = replace(pipeline.config.storage, root=str(root))
    return replace(pipeline, config=replace(pipeline.config, storage=storage))


@pytest.mark.promise("one pipeline per lake")
def test_a_lake_is_that_of_one_pipeline(make_pipeline: MakePipeline) -> None:
    shop = make_pipeline(copy="initial", create_publication="all")
    shop.catch_up(*TABLES)
    other = replace(
        shop, config=replace(shop.config, pipeline="other", source=replace(shop.config.source, slot="other"))
    )
    for job in (other.ingest, other.apply, lambda: read_status(other.config)):
        with pytest.raises(ConfigError, match=f"belongs to the pipeline {shop.config.pipeline}\\. "):
            job()
    made = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'other'"
    assert shop.source.execute(made).fetchall() == []
    shop.catch_up(*CHANGE)
    shop.assert_equal("t", "bag")


@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
def test_a_lake_that_moved_continues_also_if_its_checkpoint_is_damaged(
    shop: Pipeline, tmp_path: Path
) -> None:
    shop.ingest(*CHANGE)  # what silver has yet to apply moves as well
    root = tmp_path / "elsewhere" / "lake"
    root.parent.mkdir()
    shutil.move(shop.root, root)
    moved = at(shop, root)
    moved.catch_up(*CHANGE)
    moved.assert_equal("t", "bag")
    assert not Path(shop.root).exists(), "nothing is written where it was"
    damage_checkpoint(moved.root, b"v1\n{")
    moved.catch_up(*CHANGE)
    moved.assert_equal("t", "bag")


@pytest.mark.quick
@pytest.mark.promise("lakes that moved")
def test_a_copied_lake_is_compared_not_the_one_it_is_of(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    shop = make_pipeline(copy="initial", create_publication="all")
    shop.catch_up(*TABLES)
    backup = at(shop, shutil.copytree(shop.root, tmp_path / "backup"))
    shop.catch_up(*CHANGE)
    source = replace(backup.config.source, lost_slot="compare")
    backup.config = replace(backup.config, source=source)
    assert backup.ingest().copies[T].rows_landed == 11  # that the backup lacks
    backup.apply()
    backup.assert_equal("t", "bag")
    assert verdicts(run_prove, backup) == {"t": EQUAL, "bag": EQUAL}


@pytest.mark.promise("lakes that moved")
def test_checks_of_a_copied_lake_read_its_own_folders(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    shop = make_pipeline(copy="initial", create_publication="all")
    shop.catch_up(*TABLES)
    run_fingerprint(shop.config)
    copied = at(shop, shutil.copytree(shop.root, tmp_path / "copy"))
    table = Lake(copied.root).table("silver", *T)
    table.delete_rows(pc.field("id") == 7, "id = 7", table.schema().names)
    shutil.rmtree(copied.path("silver", "public", "bag"))
    audited = run_silver_audit(copied.config)
    assert [each.verdict for each in audited.tables] == [DAMAGED, DAMAGED]
    assert audited.exit_code(strict=False) == 1
    for check in (run_prove, run_reconcile, run_fidelity):
        assert verdicts(check, copied) == {"t": DIFFERENT, "bag": UNPROVEN}
    sentences = [each.sentence for each in run_reconcile(copied.config, wait=5, runs=True).verdicts]
    missing = f"There is no table in {copied.path('silver', 'public', 'bag')}. Put its folder back, or run"
    assert [str(each).startswith(missing) for each in sentences].count(True) == 1
    shop.assert_equal("t", "bag")


def verdicts(check: Callable[..., Any], pipeline: Pipeline) -> dict[str, str]:
    """Return the verdict of a check of silver on each table."""
    found = check(pipeline.config, wait=5, runs=True)
    tables = found.tables if isinstance(found, Fidelity) else found.verdicts
    return {each.name.table: each.verdict for each in tables}


@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
@pytest.mark.slow
def test_a_log_that_delta_removed_since_the_last_apply_is_not_missed(shop: Pipeline) -> None:
    for _ in range(2):
        shop.ingest(*CHANGE)
    clear_log(shop, "bronze", "changes")
    shop.apply()
    shop.assert_equal("t", "bag")
    shop.catch_up(*CHANGE)
    shop.assert_equal("t", "bag")


@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
@pytest.mark.slow
def test_an_empty_checkpoint_is_not_missed(shop: Pipeline) -> None:
    damage_checkpoint(str(shop.path()), b"")
    shop.catch_up(*CHANGE)
    shop.assert_equal("t", "bag")


@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
@pytest.mark.slow
def test_checkpoints_that_go_back_change_nothing(shop: Pipeline, tmp_path: Path) -> None:
    checkpoints = shop.path("_pgdelta", "checkpoints")
    shutil.copytree(checkpoints, tmp_path / "before")
    shop.catch_up(*CHANGE)
    versions = shop.version("t"), shop.version("bag")
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "before", checkpoints)
    shop.apply()
    assert (shop.version("t"), shop.version("bag")) == versions
    shop.catch_up(*CHANGE)
    shop.assert_equal("t", "bag")


@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
@pytest.mark.slow
def test_positions_that_delta_forgot_are_missed(shop: Pipeline) -> None:
    forget(shop, "bronze", "changes")
    shop.catch_up(*CHANGE)  # bronze's own log says how far it is
    shop.assert_equal("t", "bag")
    for name in ("t", "bag"):
        forget(shop, "silver", "public", name)
    shop.catch_up(*CHANGE)  # both are written anew, from their copies on
    shop.assert_equal("t", "bag")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("lakes that moved")
def test_rows_whose_position_is_forgotten_get_nothing_twice(pipeline: Pipeline) -> None:
    pipeline.ingest()
    pipeline.catch_up(*TABLES)
    for name in ("t", "bag"):
        forget(pipeline, "silver", "public", name)
        table = LakeTable(str(pipeline.path("silver", "public", name)), pipeline.spark)
        for kind in (TxnKind.REBUILD, TxnKind.KEY_RANGES):  # younger, and says nothing of rows
            commit = TableCommit(TxnId(pipeline.config.pipeline, kind=kind), LSN(time.time_ns()))
            table.append(table.frame().limit(0), commit)
    pipeline.ingest(*CHANGE)
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 1
    assert sum("has rows but records no offset" in line for line in summary.lines()) == 2
    shutil.rmtree(pipeline.path("silver", "public", "t"))
    run_resync(pipeline.config, ["public.bag"])
    pipeline.assert_follows("t", "bag")
