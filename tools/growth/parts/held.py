"""What a batch of a continuous apply costs while tables are held since many rows of bronze.

The lake is made natively, without a server. The guards hold tables whose deletes lie in old files of bronze
with rows of all tables. The other tables are current; each batch changes 20 rows of each.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.apply.applier import Applier
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged_files import StagedFileWriter
from pipeline.config.tables import Guards, TableRule
from pipeline.metadata.manifests import Manifest
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.bronze_reads import bronze_reads
from tests.support.native_lakes import START, NativeLake, change

CURRENT, HELD = 200, (20, 1, 0)  # fewer are held from run to run, as their old changes are not applied
CHANGES_OF_TABLE = 20
ROWS, FILE_ROWS, TRANSACTION_ROWS = 10_000_000, 100_000, 100
FIRST_LSN = 2000
BATCHES = 3
GUARDS = Guards(deletes=100)
LIMIT = 1.2  # of the cost of a batch, in the least


@dataclass(frozen=True, slots=True)
class Cost:
    """The median of some batches; files and bytes are those of bronze, each time one is opened."""

    held: int
    seconds: float
    cpu_seconds: float
    files: float
    bytes: float


class HeldLake:
    """A lake with many old rows in bronze; some of their tables are held."""

    def __init__(self, root: Path, rows: int) -> None:
        self.lake = NativeLake(root, CURRENT + max(HELD))
        self._current = self.lake.names[max(HELD) :]
        rules = (TableRule("public.*", guards=GUARDS),)
        self._config = replace(self.lake.config, tables=rules)
        self._before = self.lake.manifests.last()
        for first in range(0, rows, FILE_ROWS):
            self._land_old(first, min(FILE_ROWS, rows - first))

    def _land_old(self, first: int, count: int) -> None:
        """Land a file of transactions that delete rows of all tables in turn."""
        bronze, names = self.lake.bronze, self.lake.names
        numbers = np.arange(first, first + count)
        lsns = FIRST_LSN + 10 * (numbers // TRANSACTION_ROWS)
        tables = numbers % len(names)
        versions = np.array([self.lake.versions[name].id for name in names])
        deletes = pa.array(["1"]), pa.array([["1", None]], pa.list_(pa.string()))
        columns = {
            "commit_lsn": pa.array(lsns),
            "end_lsn": pa.array(lsns + 8),
            "ordinal": pa.array(numbers % TRANSACTION_ROWS),
            "xid": pa.array(lsns),
            "commit_time": pa.array([START] * count, CHANGES.field("commit_time").type),
            "op": pa.array(["D"] * count),
            "relation_id": pa.array(tables + 1),
            "relation_version": pa.array(versions[tables]),
            "schema_name": pa.array(["public"] * count),
            "table_name": pa.array([name.table for name in names]).take(pa.array(tables)),
            "old_kind": pa.array(["K"] * count),
            "old": deletes[1].take(pa.array(np.zeros(count, np.int64))),
        }
        arrays = [
            columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in CHANGES
        ]
        writer = StagedFileWriter(bronze.changes.folder)
        writer.write(pa.Table.from_arrays(arrays, schema=CHANGES))
        end = LSN(int(lsns[-1]) + 8)
        commit = self.lake.writer._offset_commit(self.lake.offset, end, transactions=1, changes=count)
        self.lake.writer.commit([writer.close().data], commit)
        self.lake.offset = end

    def measure(self, held: int) -> Cost:
        """Return the cost of a batch while the first tables are held, and all others are current."""
        names = set(self.lake.names[:held])
        before = self.lake.manifests.last()
        assert before is not None
        assert self._before is not None
        old = self._before.by_name
        entries = tuple(
            replace(old[entry.name], is_behind=True)
            if entry.name in names
            else replace(entry, applied_lsn=self.lake.offset, is_behind=False)
            for entry in before.entries
        )
        time_now = START + timedelta(hours=1)
        self.lake.manifests.record(Manifest(self.lake.offset, time_now, entries))
        applier = Applier(None, self._config)
        applier.run_continuously()
        seconds, cpu, files, sizes = [], [], [], []
        for number in range(-1, BATCHES):  # the first surveys what waits, once
            self._change(self._current + sorted(names))
            began, cpu_began = time.monotonic(), time.process_time()
            with bronze_reads() as reads:
                summary = applier.apply_pending()
            if number >= 0:
                seconds.append(time.monotonic() - began)
                cpu.append(time.process_time() - cpu_began)
                files.append(len(reads.paths))
                sizes.append(reads.bytes)
            failures = [state.failure for state in summary.tables.values() if state.failure]
            if failures or {name for name, state in summary.tables.items() if state.held} != names:
                raise RuntimeError(f"the tables are not as expected: {failures}")
        applier.close()
        median = statistics.median
        return Cost(held, median(seconds), median(cpu), median(files), median(sizes))

    def _change(self, names: list[TableName]) -> None:
        lsn = int(self.lake.offset) + 100
        rows = [
            change(name, self.lake.versions[name].id, ordinal, lsn, "U", new=[str(ordinal), f"at {lsn}"])
            for name in names
            for ordinal in range(CHANGES_OF_TABLE)
        ]
        rows = [row | {"ordinal": ordinal} for ordinal, row in enumerate(rows)]
        self.lake.land(LSN(lsn + 8), rows)


def measure_held(rows: int, folder: Path) -> Iterator[Cost]:
    """Give the cost of a batch for each number of tables that are held since so many rows of bronze."""
    lake = HeldLake(folder / "lake", rows)
    for held in HELD:
        yield lake.measure(held)


def print_held(scale: float, folder: Path | None) -> bool:
    """Measure and print a table; return whether no batch costs more processor time than it may."""
    rows = max(FILE_ROWS, round(ROWS * scale))
    print(f"A batch of {CURRENT} tables x {CHANGES_OF_TABLE} changes, {rows:,} older rows in bronze")
    print("tables held  seconds  CPU seconds  files of bronze  bytes of bronze", flush=True)
    costs = []
    with tempfile.TemporaryDirectory(prefix="pgdelta-growth-", dir=folder) as own:
        for cost in measure_held(rows, Path(own)):
            costs.append(cost)
            print(
                f"{cost.held:11}  {cost.seconds:7.2f}  {cost.cpu_seconds:11.2f}  {cost.files:15.0f}  "
                f"{cost.bytes:15,.0f}",
                flush=True,
            )
    ratio = max(cost.cpu_seconds for cost in costs) / min(cost.cpu_seconds for cost in costs)
    print(f"most to least CPU seconds: {ratio:.2f} (at most {LIMIT})", flush=True)
    return ratio <= LIMIT
