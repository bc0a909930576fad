"""Silver equals the source after random workloads, by either route and however the changes are cut.

Many workloads share a database, each in a schema of its own; both routes capture all of them, each into a
lake of its own, and each workload is applied in one of them: in one batch, one transaction a batch, or by
random cuts.
"""

from __future__ import annotations

import itertools
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from pipeline.protocol.lsn import LSN
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.seeds import printed_rng, seed_of_run
from tests.support.workload.tables import Schema, create_schema
from tests.support.workload.transactions import run_workload

if TYPE_CHECKING:
    from pipeline.apply.applier import Applier

ROUTES = ("walsender", "sql")
WAYS = ("one batch", "one transaction a batch", "random cuts")
INGESTS = 3  # bronze is filled by so many runs
FIXED_SEED = 20_261  # every run of the default tier sees the same; the slow one draws its own


def test_silver_equals_the_source_after_random_workloads(make_pipeline: MakePipeline) -> None:
    prove(make_pipeline, FIXED_SEED, workloads=6, transactions=2)


@pytest.mark.spark
@pytest.mark.slow
def test_silver_equals_the_source_after_a_hundred_random_workloads(
    make_pipeline: MakePipeline,
) -> None:
    prove(make_pipeline, seed_of_run(), workloads=102, transactions=6)


def prove(make_pipeline: MakePipeline, seed: int, *, workloads: int, transactions: int) -> None:
    """Run workloads, capture all by both routes, apply each in one way and compare it with its source."""
    from pipeline.apply.applier import Applier

    rng = printed_rng(seed)
    # Both capture everything; each applies the workloads that are its own to prove.
    lanes = {
        route: make_pipeline(f"{route}_*.*", name=route, route=route, create_publication="all")
        for route in ROUTES
    }
    plans = list(itertools.islice(itertools.cycle(itertools.product(ROUTES, WAYS)), workloads))
    rng.shuffle(plans)
    for lane in lanes.values():
        lane.ingest()
    schemas: list[Schema] = []
    with lanes[ROUTES[0]].database.connect() as source:
        for number in range(workloads):
            schemas.append(create_schema(source, rng, name=f"{plans[number][0]}_{number}"))
            counts = run_workload(source, rng, transactions, schema=schemas[-1])
            print(f"{number} by {', '.join(plans[number])}: {counts}")
            if (number + 1) % -(-workloads // INGESTS) == 0 or number + 1 == workloads:
                for lane in lanes.values():
                    lane.ingest()
        for lane in lanes.values():
            oracle.bronze_has_no_duplicates(lane.spark, lane.root)
        appliers = {route: Applier(lane.spark, lane.config) for route, lane in lanes.items()}
        for schema, (route, way) in zip(schemas, plans, strict=True):
            lane = lanes[route]
            apply_schema(lane, appliers[route], schema, way, rng)
            oracle.assert_silver_equals_source(source, lane.spark, lane.root, schema.names)


def apply_schema(lane: Pipeline, applier: Applier, schema: Schema, way: str, rng: Random) -> None:
    """Apply what bronze holds up to the last commit that touched the schema."""
    from pipeline.bronze.log import BronzeOffset

    newest = applier.bronze.captured_offset()
    assert newest is not None
    mine = lane.frame("bronze", "changes").where(f"schema_name = '{schema.name}'")
    ends = sorted(row.end_lsn for row in mine.select("end_lsn").distinct().collect())
    if way == "random cuts":
        chosen = sorted({*rng.sample(ends, min(3, len(ends))), ends[-1]})
    else:
        chosen = ends if way == "one transaction a batch" else ends[-1:]
    for end in chosen:
        started = time.monotonic()
        summary = applier.apply_pending(BronzeOffset(newest.version, LSN(end)))
        print(f"  {schema.name} to {LSN(end)}: {time.monotonic() - started:.1f} s")
        assert summary.exit_code(strict=True) == 0, (schema.name, way, LSN(end), summary.lines())
