"""Silver equals the source for tables as a seed has them: any names, types, keys and DDL.

Where a table changed without a message, an event records it, and such a table need not be equal.
"""

from random import Random

import pytest

from pipeline.operate.resync import run_resync
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.workload.shapes import Evolving, create_shapes
from tests.support.workload.tables import Schema
from tests.support.workload.transactions import Step, run_workload

FIXED_SEED = 77_001
TABLES = 3  # in each of the schemas
EXCUSES = {"resync", "diverged"}


@pytest.mark.spark
@pytest.mark.promise("any schema change")
def test_silver_equals_the_source_for_random_tables(make_pipeline: MakePipeline) -> None:
    prove(make_pipeline, FIXED_SEED, schemas=2, rounds=2)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("hundred", [1, 2])
def test_silver_equals_the_source_for_two_hundred_random_tables(
    make_pipeline: MakePipeline, hundred: int
) -> None:
    prove(make_pipeline, seed_of_run() * hundred, schemas=34, rounds=3)


def prove(make_pipeline: MakePipeline, seed: int, *, schemas: int, rounds: int) -> None:
    rng = printed_rng(seed)
    pipeline = make_pipeline("*.*", create_publication="all")
    pipeline.ingest()
    made = [create_shapes(pipeline.source, rng, f"shapes_{n}", TABLES) for n in range(schemas)]
    for number in range(rounds):
        for schema in made:
            run_workload(pipeline.source, rng, 3, schema=schema, steps=Evolving if number else None)
            if number == rounds - 1:
                announce(pipeline, rng, schema)
        pipeline.ingest()
        summary = pipeline.apply()
        assert summary.exit_code(strict=False) == 0, summary.lines()
    oracle.bronze_has_no_duplicates(pipeline.spark, pipeline.root)
    events = pipeline.frame("_pgdelta", "events").collect()
    said = {TableName(e.schema_name, e.table_name) for e in events if e.kind in EXCUSES}
    held = {TableName(e.schema_name, e.table_name) for e in events if e.kind == "held"}
    names = [name for schema in made for name in names_of(schema)]
    oracle.assert_silver_equals_source(
        pipeline.source,
        pipeline.spark,
        pipeline.root,
        [name for name in names if name not in said | held],
        ignore_left_columns=True,
    )
    equal = len(names) - len(said | held)
    evolved = sum(e.kind == "evolved" for e in events)
    for event in events:
        if event.kind != "evolved":
            print(f"{event.schema_name}.{event.table_name!r} {event.kind}: {event.sentence}")
    print(
        f"{equal} of {len(names)} tables equal after {evolved} steps; {len(said)} said so, {len(held)} held"
    )
    assert equal > 0.7 * len(names)
    assert evolved > schemas
    if doubtful := [name for name in names if name in (said | held)]:
        prove_copied_anew(pipeline, doubtful)


def prove_copied_anew(pipeline: Pipeline, doubtful: list[TableName]) -> None:
    """What an event said of a table is answered by a copy of it: then it is equal, too."""
    run_resync(pipeline.config, [str(name) for name in doubtful])
    pipeline.ingest()
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 0, summary.lines()
    oracle.assert_silver_equals_source(
        pipeline.source, pipeline.spark, pipeline.root, doubtful, ignore_left_columns=True
    )
    print(f"{len(doubtful)} tables equal after a copy")


def announce(pipeline: Pipeline, rng: Random, schema: Schema) -> None:
    """Write a row to every table: a change of columns has no message before a row of its table."""
    step = Step(pipeline.source, rng, schema)
    for table in schema.tables:
        step.insert(table)


def names_of(schema: Schema) -> list[TableName]:
    return [TableName(table.schema, table.name) for table in schema.tables]
