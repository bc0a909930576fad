"""After every batch of random workloads, a table's kept fingerprint is that of its rows, and of the source's.

The kept one is the sum of those of its files; a batch leaves some files as they are. The rows are read again
as a whole, and the source computes its own by SQL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.ingest.job import run_ingest
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.silver.compare.compared_rows import DatasetRows, rows_of
from pipeline.silver.compare.file_fingerprints import FileFingerprints, fingerprint_of
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.verify.fingerprint import Fingerprinter
from tests.support.modes.workloads import KEYED, rule_of
from tests.support.seeds import seed_of_run
from tests.support.servers import Database
from tests.support.workload.tables import Connection, Schema, create_schema
from tests.support.workload.transactions import run_workload

pytestmark = pytest.mark.postgres

MODES = ("mirror", "soft_delete", "history", "intermediate")
FIXED_SEED = 20_264
BATCHES, BATCHES_OF_SPARK = 120, 20  # of one slow case: sixteen and four make 2,000


@pytest.mark.promise("kept fingerprints")
def test_kept_fingerprints_are_those_of_the_rows(database: Database, tmp_path: Path) -> None:
    prove(database, tmp_path, FIXED_SEED, "auto", batches=len(MODES))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(16))
def test_kept_fingerprints_after_many_batches(database: Database, tmp_path: Path, case: int) -> None:
    prove(database, tmp_path, seed_of_run() + case, "auto", BATCHES)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("case", range(4))
def test_kept_fingerprints_of_what_spark_writes(database: Database, tmp_path: Path, case: int) -> None:
    prove(database, tmp_path, seed_of_run() + case, "spark", BATCHES_OF_SPARK)


def prove(database: Database, folder: Path, seed: int, writer: WriterSetting, batches: int) -> None:
    """Apply batches, each of one mode, with a rebuild or a resync now and then."""
    print(f"PGDELTA_SEED={seed}")
    rng = Random(seed)
    config = config_of(database, folder, writer)
    sums = read = kept = 0
    with database.connect() as source:
        source.execute("SET TimeZone = 'UTC'")
        source.execute("CREATE TABLE other (v int)")
        schemas = [create_schema(source, rng, name=f"w_{mode}") for mode in MODES]
        for schema in schemas:
            run_workload(source, rng, 3, schema=schema)
        catch_up(source, config)
        applier = Applier(None, config)
        for number in range(batches):
            schema = schemas[number % len(MODES)]
            chance = rng.random()
            if chance < 0.03:
                run_resync(config, [f"{schema.name}.*"])
            run_workload(source, rng, rng.randint(1, 3), schema=schema)
            catch_up(source, config)
            if chance > 0.97:
                assert run_rebuild(config, [f"{schema.name}.*"]).exit_code(strict=True) == 0
            if chance < 0.1 or chance > 0.97:
                applier = Applier(None, config)
            summary = applier.apply_pending()
            assert summary.exit_code(strict=True) == 0, summary.tables
            counts = assert_kept(source, config, schema)
            sums, read, kept = sums + counts[0], read + counts[1], kept + counts[2]
    print(f"{batches} batches by {writer}: {sums} sums, {read} files read, {kept} kept")


def catch_up(source: Connection, config: Config) -> None:
    """Capture what is committed, and what is copied, which is applied once the stream is past the copy."""
    run_ingest(config)
    source.execute("INSERT INTO other VALUES (1)")
    run_ingest(config)


def config_of(database: Database, folder: Path, writer: WriterSetting) -> Config:
    config = database.config("*.*", root=str(folder / "lake"), create_publication="all", copy="initial")
    rules = [TableRule("w_mirror.Lines", partition_by=("day",)), TableRule("w_mirror.*")]
    rules += [rule_of(f"w_{mode}.{table}", mode) for mode in MODES[1:] for table in KEYED]
    return replace(config, silver=replace(config.silver, writer=writer), tables=tuple(rules))


def assert_kept(source: Connection, config: Config, schema: Schema) -> tuple[int, int, int]:
    """Compare the fingerprints of a schema's tables; return how many sums, files read and files kept."""
    config = replace(config, silver=replace(config.silver, writer="auto"))  # whoever wrote, DuckDB reads
    fingerprinter = Fingerprinter(config)
    files = FileFingerprints(fingerprinter.lake)
    names = [name for name in fingerprinter.tables if name in schema.names]
    for name in names:
        planned = fingerprinter.plan(name)
        table = fingerprinter.lake.table_at(planned.registered.path)
        rows = rows_of(table, planned.snapshot, planned.registered, "auto")
        assert isinstance(rows, DatasetRows)
        kept = files.of_rows(rows, planned.compared.silver)
        whole = fingerprint_of(rows, planned.compared.silver)
        of_source = source.execute(fingerprinter.query(name, "postgres").sql.encode()).fetchone()
        assert (kept, of_source) == (whole, (whole.rows, str(whole))), name
    files.record()
    assert names
    return len(names), *files.counts
