"""A Delta table of another program becomes a table of silver: equal to the source, and little was copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.crash_steps import CrashStep, Step
from pipeline.operate.adopt import AdoptSummary, run_adopt
from pipeline.operate.rebuild import run_rebuild
from pipeline.silver.writer_choice import WriterSetting
from pipeline.table_name import TableName
from tests.support import foreign_tables
from tests.support.fault_points import crash_at, observed
from tests.support.foreign_tables import FILL, Program
from tests.support.pipelines import MakePipeline, Pipeline, with_writer

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
A = TableName("public", "a")


def adopt(
    life: Pipeline, path: str, *ignored: str, table: str = "a", runs: bool = True, is_dry_run: bool = False
) -> AdoptSummary:
    return run_adopt(
        life.config,
        f"public.{table}",
        path,
        ignored=ignored,
        is_dry_run=is_dry_run,
        runs=runs,
        spark=life.spark,
    )


@contextmanager
def written_meanwhile(life: Pipeline, *statements: str) -> Iterator[None]:
    """Run statements at the source each time that rows of a copy are about to be staged."""
    with life.database.connect() as source:

        def write(step: Step, moment: str) -> None:
            if (step, moment) == (CrashStep.STAGE_COPIED_ROWS, "before"):
                for statement in statements:
                    source.execute(statement.encode())

        with observed(write):
            yield


@pytest.mark.parametrize(
    ("program", "writer"),
    [("deltalake", "native"), pytest.param("spark", "spark", marks=pytest.mark.slow)],
)
def test_only_the_rows_that_differ_are_copied(
    make_pipeline: MakePipeline, tmp_path: Path, program: Program, writer: WriterSetting
) -> None:
    life = with_writer(make_pipeline(copy="initial", create_publication="all"), writer)
    life.run(*foreign_tables.create("a"), FILL.format("a", 1, 2000))
    rows = foreign_tables.read(life.source, "a")
    folder = tmp_path / "old table"
    foreign_tables.write(rows, folder, program, life.spark, partition_by=["small"])
    extra = pa.concat_tables([foreign_tables.edited(rows, id=900_000), rows.slice(500, 1)])
    path = foreign_tables.write(extra, folder, program, life.spark, mode="append")
    life.run(
        "DELETE FROM a WHERE id IN (3, 700)",
        "UPDATE a SET n = -1 WHERE id BETWEEN 101 AND 107",
        "UPDATE a SET big = reverse(big) WHERE id IN (1000, 1020)",
        "UPDATE a SET id = 6000 WHERE id = 42",
        "UPDATE a SET price = 'NaN', day = 'infinity' WHERE id = 77",
        FILL.format("a", 3001, 3002),
    )
    with crash_at(CrashStep.STAGE_COPIED_ROWS, "after", error=RuntimeError("503 Slow Down")):
        failed = adopt(life, path)
    assert failed.exit_code(strict=False) == 1
    assert failed.lines()[-1] == "adopt public.a: not adopted yet; run the same command again"
    changes = (
        "UPDATE a SET n = n + 1 WHERE id % 100 = 3",
        "UPDATE a SET id = id + 10000 WHERE id = 900",
        "UPDATE a SET price = 1, day = '2024-01-01' WHERE id = 77",
    )
    with written_meanwhile(life, *changes):
        found = adopt(life, path)
    assert found.exit_code(strict=True) == 0, found.lines()
    # 501 is twice in the Delta table, and is read from the source
    assert found.lines()[-1] == "adopt public.a: 14 of 2,000 rows differed and were copied"
    life.assert_equal("a")
    assert any("adopted from version 1" in text for kind, text in life.events("a") if kind == "evolved")
    life.run(
        "UPDATE a SET n = 5 WHERE id < 50",
        "DELETE FROM a WHERE id = 8",
        "UPDATE a SET id = 7000 WHERE id = 20",
    )
    life.catch_up()
    life.assert_equal("a")
    run_rebuild(life.config, ["public.a"], spark=life.spark)
    life.assert_equal("a")
    again = adopt(life, path)
    assert again.lines()[-1] == "adopt public.a: it was adopted before"
    assert again.exit_code(strict=True) == 0
