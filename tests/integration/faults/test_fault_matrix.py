"""A fault at any step of a run: the next run continues, silver equals the source, bronze has no repeats.

The cells share one lake, one after the other, so that what one leaves behind is there for the next. Between
two of them tables change, get columns, come and go. `make faults` runs all cells.
"""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from pipeline.config.tables import RowMode, TableRule
from pipeline.crash_steps import CrashStep
from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from tests.support.fault_points import CELLS, Cell, run_killed, struck
from tests.support.modes.oracle import assert_equals_model
from tests.support.orders_load import KEPT, change
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.seeds import seed_of_run

CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  create: {{publication: all}}
storage: {{root: "{root}"}}
tables:
  - {{source: public.soft_delete, mode: soft_delete}}
  - {{source: public.history, mode: history}}
  - {{source: public.append, mode: append}}
  - {{source: "public.*"}}
"""
MODES: tuple[RowMode, ...] = ("soft_delete", "history", "append")  # of the tables with these names


def run_cells(pipeline: Pipeline, folder: Path, cells: list[Cell], first: int = 1) -> None:
    """Run every cell, and print what came of it; the first one has a number."""
    config = folder / "pipeline.yaml"
    text = CONFIG.format(
        name=pipeline.config.pipeline, conninfo=pipeline.database.conninfo, root=pipeline.root
    )
    config.write_text(text)
    pipeline.catch_up(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text)",
        "CREATE TABLE bag (a int, v text)",
        "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        *(f"CREATE TABLE {mode} (id int PRIMARY KEY, v text)" for mode in MODES),
        f"CREATE PUBLICATION {pipeline.config.source.publication} FOR ALL TABLES"
        " WITH (publish_via_partition_root)",
    )
    silent = []
    for number, cell in enumerate(cells):
        change(pipeline, number)
        change_modes(pipeline, number)
        if cell.step is CrashStep.SWAP_TABLE:  # which only takes a new copy of a table that silver has
            run_resync(pipeline.config, ["public.keyed"])
        if cell.step is CrashStep.RECORD_CATALOG:  # whose state changes with the partitions of a root
            bounds = f"FROM ({number}) TO ({number + 1})"
            pipeline.run(
                f"CREATE TABLE parted_{number} PARTITION OF parted FOR VALUES {bounds}",
                f"INSERT INTO parted VALUES ({number}, 'v')",
            )
        has_struck = run_killed("run", cell, config) if cell.fault == "killed" else run_hurt(cell, pipeline)
        if not has_struck:
            silent.append(str(cell))
        pipeline.catch_up()
        came = [f"came{n}" for n in range(max(0, number - KEPT), number + 1)]
        pipeline.assert_equal("keyed", "bag", "parted", *came, ignore_left_columns=True)
        for mode in MODES:
            name = TableName("public", mode)
            assert_equals_model(pipeline.source, pipeline.root, pipeline.config.pipeline, mode, name)
        print(f"{number + first:3d} of {len(cells) + first - 1}: {cell}: equal", flush=True)
    assert not silent, f"these faults never struck: {silent}"


def change_modes(pipeline: Pipeline, number: int) -> None:
    """Change the rows of the tables that have a mode, in two commits, and truncate them now and then."""
    low = 10 * number
    for mode in MODES:
        pipeline.run(f"INSERT INTO {mode} SELECT i, 'v' FROM generate_series({low}, {low + 9}) i")
        pipeline.transact(
            f"UPDATE {mode} SET v = 'w' WHERE id = {low + 1}",
            f"UPDATE {mode} SET id = id + 100000 WHERE id = {low + 2}",
            f"DELETE FROM {mode} WHERE id = {low + 3}",
            *([f"TRUNCATE {mode}", f"INSERT INTO {mode} VALUES ({low}, 'again')"] if number % 3 == 1 else []),
        )


def run_hurt(cell: Cell, pipeline: Pipeline) -> bool:
    """Run both jobs here, under a fault; say whether it struck."""
    with struck(cell) as has_struck:
        for job in (pipeline.ingest, pipeline.apply):
            with suppress(Exception):
                job()
        return has_struck.is_set()


@pytest.fixture
def hurt(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline that copies, and keeps columns that the source dropped."""
    pipeline = make_pipeline(copy="initial", create_publication="never")
    rules = (TableRule(f"public.{mode}", mode=mode) for mode in MODES)
    return with_rules(pipeline, *rules, TableRule("public.*"))


@pytest.mark.promise("a fault at any step")
def test_a_fault_at_some_steps(hurt: Pipeline, tmp_path: Path) -> None:
    rng = Random(seed_of_run())
    killed = [cell for cell in CELLS if cell.fault == "killed"]
    others = [cell for cell in CELLS if cell.fault not in ("killed", "slow")]
    run_cells(hurt, tmp_path, [rng.choice(killed), rng.choice(others)])


@pytest.mark.spark
@pytest.mark.promise("a fault at any step")
@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_every_fault_at_every_step(hurt: Pipeline, tmp_path: Path, quarter: int) -> None:
    first, last = (len(CELLS) * number // 4 for number in (quarter, quarter + 1))
    run_cells(hurt, tmp_path, list(CELLS[first:last]), first + 1)
