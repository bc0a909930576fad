"""One process of a race between jobs: `python -m tests.support.races.jobs ROOT`, led by JSON lines.

It commits by the functions by which the job itself commits, each time at the moment for which the others wait
too, and says of each commit that returned: that is acknowledged. A commit that was refused is not said.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.delta.table import Lake

NAME = TableName("public", "t")
PIPELINE = "raced"
SLOT = 64  # bytes between two counters: a cache line each


class Meeting:
    """Counters in shared memory: who is ready for a turn waits for all others."""

    def __init__(self, path: str, number: int, count: int) -> None:
        self._number, self._count = number, count
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SLOT * count)

    def wait(self, turn: int, seconds: float = 300) -> None:
        struct.pack_into("<q", self._memory, SLOT * self._number, turn)
        deadline = time.monotonic() + seconds
        while any(
            struct.unpack_from("<q", self._memory, SLOT * other)[0] < turn for other in range(self._count)
        ):
            assert time.monotonic() < deadline, "another process did not come"
            os.sched_yield()


def writer_of(lake: Lake, job: str, table: str) -> Callable[[int, str], None]:
    """Return what commits once to a table as a job does; it is given a number that grows, and a tag."""
    from pyspark.sql import functions as F

    from pipeline.bronze.copy_states import CopyRequest
    from pipeline.bronze.log import Bronze
    from pipeline.delta.commit_files import commit_files
    from pipeline.delta.retry import retry_conflicts
    from pipeline.delta.txn import TableCommit, commit_settings
    from pipeline.metadata.events import Event
    from pipeline.metadata.reconciliations import EQUAL, Reconciliation, Reconciliations
    from pipeline.metadata.registry import Records
    from pipeline.protocol.lsn import LSN

    bronze, records = Bronze(lake, PIPELINE), Records(lake)
    silver = lake.table("silver", *NAME)
    session = lake.spark

    def ask(number: int, tag: str) -> None:
        bronze.copies.request([CopyRequest(tag, NAME, "a race")])

    def land(number: int, tag: str) -> None:
        commit_files(bronze.changes, [], TableCommit(bronze.txn, LSN(number + 1)))

    def note(number: int, tag: str) -> None:
        records.events.record([Event(*NAME, LSN(number), "evolved", tag)])

    def say(number: int, tag: str) -> None:
        Reconciliations(lake).record(tag, [Reconciliation(NAME, EQUAL)])

    def merge(number: int, tag: str) -> None:
        rows = session.range(1).select(F.lit(number).alias("id"), F.lit(tag).alias("tag"))
        rows.createOrReplaceTempView("raced")
        statement = (
            f"MERGE INTO {silver.identifier} t USING raced s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

        def write() -> None:
            with commit_settings(session, TableCommit(bronze.txn, LSN(number + 1))):
                session.sql(statement)

        retry_conflicts(write)

    def append(number: int, tag: str) -> None:
        rows = session.range(1).select(F.lit(number).alias("id"), F.lit(tag).alias("tag"))
        rows.write.format("delta").mode("append").save(silver.path)

    def optimize(number: int, tag: str) -> None:
        segments = {"silver": ("silver", *NAME), "changes": ("bronze", "changes")}
        retry_conflicts(lake.table(*segments.get(table, ("_pgdelta", table))).compact)

    if job == "optimize":
        return optimize
    if job in ("append", "another append"):
        return append
    return {"requests": ask, "changes": land, "events": note, "reconciliations": say, "silver": merge}[table]


def prepare(lake: Lake) -> None:
    """Create the tables that are raced for."""
    from pipeline.bronze.copy_states import CopyRequest
    from pipeline.bronze.log import Bronze
    from pipeline.metadata.reconciliations import EQUAL, Reconciliation, Reconciliations
    from pipeline.metadata.registry import Records

    bronze = Bronze(lake, PIPELINE)
    bronze.ensure()
    Records(lake).ensure()
    bronze.copies.request([CopyRequest("first", NAME, "a race")])
    Reconciliations(lake).record("first", [Reconciliation(NAME, EQUAL)])
    lake.table("silver", *NAME).ensure("id INT, tag STRING")


def use_any_store() -> None:
    """Write through another log store than the project's, for the test that this harness finds losses."""
    from pipeline.delta.spark import log_store

    setattr(log_store, "require_log_store", lambda spark, scheme: None)  # noqa: B010


def main() -> None:
    root, store, answers = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if store:
        use_any_store()
    from pipeline.delta.spark.session import start_session
    from pipeline.delta.table import Lake

    lake = Lake.for_writing(root, start_session("race"))
    with answers.open("w") as out:

        def say(answer: object) -> None:
            print(json.dumps(answer), file=out, flush=True)

        say("ready")
        for line in sys.stdin:
            task = json.loads(line)
            meeting = Meeting(task["meeting"], task["number"], task["count"])
            write = writer_of(lake, task["job"], task["table"])
            for number in range(task["first"], task["first"] + task["races"]):
                tag = f"{task['job']}-{task['table']}-{number}"
                meeting.wait(number + 1)
                try:
                    write(number, tag)
                except Exception as error:
                    say({"refused": tag, "error": str(error)[:300]})
                else:
                    say({"told": tag})
            say("done")


if __name__ == "__main__":
    main()
