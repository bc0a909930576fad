"""Every server from 10 to 18, by every route and with every option of the protocol: bronze is the same.

All pipelines of one server read the same WAL. Protocol version 1 by a replication session is the judge of
bronze, the source itself that of silver. `make matrix` runs all majors; the default tier runs the newest, in
fewer ways (`test_protocol_versions`).
"""

from itertools import product
from random import Random

import psycopg
import pytest

from pipeline.config.config import Protocol
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline, assert_nothing_stopped
from tests.support.postgres.sessions import TABLES, Sessions, create_tables
from tests.support.servers import Database, MakeServer
from tests.support.workload.tables import create_schema
from tests.support.workload.transactions import run_workload

MAJORS = range(10, 19)


def protocols(major: int) -> list[Protocol]:
    """Return every option that a server has, except version 1, which is the judge."""
    streaming = ["off", *(["on"] if major >= 14 else []), *(["parallel"] if major >= 16 else [])]
    two_phase = [False, *([True] if major >= 15 else [])]
    binary = [False, *([True] if major >= 14 else [])]
    written = frozenset({"streaming", "two_phase", "binary"})
    return [
        Protocol(streaming=how, two_phase=prepares, binary=is_binary, written=written)  # type: ignore[arg-type]
        for how, prepares, is_binary in product(streaming, two_phase, binary)
    ]


def lanes_of(make_pipeline: MakePipeline, database: Database, major: int) -> dict[str, Pipeline]:
    lanes = {
        "judge": make_pipeline(
            "*.*", name="judge", database=database, protocol=Protocol(version=1), create_publication="all"
        )
    }
    for route, protocol in product(("walsender", "sql"), protocols(major)):
        words = [route, protocol.streaming, *(w for w in ("two_phase", "binary") if getattr(protocol, w))]
        name = "_".join(words)
        lanes[name] = make_pipeline("*.*", name=name, database=database, route=route, protocol=protocol)
    return lanes


@pytest.mark.spark
@pytest.mark.promise("every protocol version")
@pytest.mark.slow
@pytest.mark.parametrize("major", MAJORS)
def test_all_options_give_the_same_bronze_and_silver_equals_the_source(
    make_pipeline: MakePipeline, make_server: MakeServer, major: int
) -> None:
    server = make_server({"max_replication_slots": "40", "max_wal_senders": "40"}, major=major)
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    database = Database(server, "shop", server.conninfo_of("shop"))
    lanes = lanes_of(make_pipeline, database, major)
    create_tables(database)
    for lane in lanes.values():
        lane.ingest()
    rng = Random(major)
    sessions = Sessions(database, rng, has_two_phase=True)
    for _ in range(2):
        for _ in range(150):
            sessions.step()
        for name, lane in lanes.items():
            if name != "judge":
                lane.ingest()
    sessions.finish()
    with database.connect() as source:
        schema = create_schema(source, rng, name="workload")
        print(run_workload(source, rng, 6, schema=schema))
    for lane in lanes.values():
        lane.ingest()
        oracle.bronze_has_no_duplicates(lane.spark, lane.root)
    expected = lanes["judge"].changes()
    assert len(expected) > 300
    for name, lane in lanes.items():
        assert lane.changes() == expected, name
    richest = list(lanes.values())[len(lanes) // 2]
    assert_nothing_stopped(richest.apply())
    names = [*(TableName("public", table) for table in (*TABLES, "filler")), *schema.names]
    oracle.assert_silver_equals_source(richest.source, richest.spark, richest.root, names)
    print(f"PostgreSQL {major}: {len(expected)} rows the same in {len(lanes)} ways: {sorted(lanes)}")
