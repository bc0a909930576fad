"""Each change of a table, in each situation, under each identity: silver equals the source, or says so.

One table a cell, all of them in one pipeline; a cell that fails is named by its table.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product

import pytest

from pipeline.config.tables import TableRule
from pipeline.table_name import TableName
from tests.support import oracle
from tests.support.pipelines import MakePipeline, Pipeline

# what happens, the first and the second time
OPERATIONS: dict[str, tuple[str, str]] = {
    "add": ("ADD a text", "ADD b numeric(5,2)"),
    "default": ("ADD a int DEFAULT 7", "ADD b text DEFAULT 'b'"),
    "drop": ("DROP v", "DROP w"),
    "rename": ("RENAME v TO x", "RENAME x TO y"),
    "widen": ("ALTER n TYPE bigint", "ALTER n TYPE numeric(24,2)"),
    "retype": ("ALTER n TYPE text", "ALTER w TYPE varchar(90)"),
    "hold": ("ALTER n TYPE text", "ALTER w TYPE varchar(90)"),
    "again": ("DROP v, ADD v text", "DROP v, ADD v int DEFAULT 5"),
    "constraint": ("ALTER w SET NOT NULL", "ALTER w DROP NOT NULL"),
    "full": ("REPLICA IDENTITY FULL", "REPLICA IDENTITY {identity}"),
    "rewritten": ("ALTER w TYPE text COLLATE \"C\"", "SET (fillfactor = 50)"),
}  # fmt: skip
IDENTITIES = {"key": "DEFAULT", "all": "FULL", "index": "USING INDEX {table}_k", "none": "NOTHING"}
LEFT = {"drop", "again"}  # silver keeps what was dropped


class Cell:
    """One table: what happens to it, when, and by what its rows are known."""

    def __init__(self, operation: str, situation: str, identity: str) -> None:
        self.operation, self.situation = operation, situation
        self.table = f"{operation}_{situation}_{identity}"
        self.identity = IDENTITIES[identity].format(table=self.table)
        self.has_key = identity != "none"

    def create(self) -> list[str]:
        key = " PRIMARY KEY" if self.has_key else ""
        return [
            f"CREATE TABLE {self.table} "
            f"(id int{key}, k int NOT NULL, v text, w text DEFAULT 'w', n int, big text)",
            f"CREATE UNIQUE INDEX {self.table}_k ON {self.table} (k)",
            f"ALTER TABLE {self.table} ALTER big SET STORAGE EXTERNAL",
            f"ALTER TABLE {self.table} REPLICA IDENTITY {self.identity}",
        ]

    def fill(self) -> str:
        values = "g, 100 + g, 'v' || g, 'w' || g, g, repeat('b', 3000)"
        return f"INSERT INTO {self.table} SELECT {values} FROM generate_series(1, 6) g"

    def alter(self, number: int) -> str:
        change = OPERATIONS[self.operation][number].replace("{identity}", self.identity)
        return f"ALTER TABLE {self.table} {change}"

    def work(self, number: int) -> list[str]:
        """Return changes of rows that do whatever the columns are."""
        inserted = [f"INSERT INTO {self.table} (id, k) VALUES ({20 + number}, {200 + number})"]
        if not self.has_key:
            return inserted
        return [
            f"UPDATE {self.table} SET k = k + 1000 WHERE id = {1 + number}",
            *inserted,
            f"UPDATE {self.table} SET id = id + 50 WHERE id = {3 + number}",
            f"DELETE FROM {self.table} WHERE id = {20 + number - 1}",
        ]


def before_any_row(pipeline: Pipeline, cell: Cell) -> None:
    pipeline.run(cell.alter(0), *cell.work(0))


def inside(pipeline: Pipeline, cell: Cell) -> None:
    pipeline.transact(*cell.work(0), cell.alter(0), *cell.work(1))


def aborted(pipeline: Pipeline, cell: Cell) -> None:
    pipeline.run("BEGIN", *cell.work(0), cell.alter(0), *cell.work(1), "ROLLBACK", *cell.work(0))


def twice(pipeline: Pipeline, cell: Cell) -> None:
    """Do it once; the second time comes after ingest has seen this, and before apply does."""
    pipeline.run(*cell.work(0), cell.alter(0), *cell.work(1))


def silent(pipeline: Pipeline, cell: Cell) -> None:
    pipeline.run(cell.alter(0))


SITUATIONS: dict[str, Callable[[Pipeline, Cell], None]] = {
    "before": before_any_row,
    "inside": inside,
    "aborted": aborted,
    "twice": twice,
    "silent": silent,
}


@pytest.mark.spark
@pytest.mark.slow
def test_every_change_twice_of_a_table_with_a_key(
    make_pipeline: MakePipeline,
) -> None:
    prove(make_pipeline, ["key"], ["twice"])


@pytest.mark.spark
@pytest.mark.promise("any schema change")
@pytest.mark.slow
def test_every_change_in_every_situation_of_a_table_with_a_key(make_pipeline: MakePipeline) -> None:
    prove(make_pipeline, ["key"])


@pytest.mark.spark
@pytest.mark.slow
def test_every_change_in_every_situation_under_every_other_identity(make_pipeline: MakePipeline) -> None:
    prove(make_pipeline, [identity for identity in IDENTITIES if identity != "key"])


def prove(make_pipeline: MakePipeline, identities: list[str], situations: Iterable[str] = SITUATIONS) -> None:
    pipeline = make_pipeline("*.*", create_publication="all")
    rules = (TableRule("public.retype_*", type_changes="rebuild"), TableRule("*.*"))
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=rules))
    cells = [Cell(*cell) for cell in product(OPERATIONS, situations, identities)]
    for cell in cells:
        pipeline.run(*cell.create())
    pipeline.ingest()
    pipeline.run(*(cell.fill() for cell in cells if cell.situation != "before"))
    step(pipeline)
    for cell in cells:
        SITUATIONS[cell.situation](pipeline, cell)
    pipeline.ingest()
    for cell in cells:
        if cell.situation == "twice":
            pipeline.run(cell.alter(1), *cell.work(2))
    step(pipeline)
    for cell in cells:
        if cell.situation == "silent":
            pipeline.run(*cell.work(0))
    step(pipeline)
    faults = [fault for cell in cells for fault in faults_of(pipeline, cell)]
    assert not faults, "\n".join(faults)
    print(f"{len(cells)} cells as they should be")


def step(pipeline: Pipeline) -> None:
    pipeline.ingest()
    summary = pipeline.apply()
    assert not [state.failure for state in summary.tables.values() if state.failure], summary.lines()


def faults_of(pipeline: Pipeline, cell: Cell) -> list[str]:
    kinds = {kind for kind, _ in pipeline.events(cell.table)}
    is_held = cell.operation == "hold" and cell.situation not in ("before", "aborted")
    if is_held:
        rows = pipeline.frame("silver", "public", cell.table).count()
        return [] if kinds == {"held"} and rows > 0 else [f"{cell.table}: {kinds} with {rows} rows"]
    faults = []
    allowed = {"evolved", "resync"} if cell.operation == "retype" else {"evolved"}
    if not kinds <= allowed or (cell.situation == "aborted" and kinds):
        faults.append(f"{cell.table}: {kinds}")
    try:
        oracle.assert_silver_equals_source(
            pipeline.source,
            pipeline.spark,
            pipeline.root,
            [TableName("public", cell.table)],
            ignore_left_columns=cell.operation in LEFT,
        )
    except AssertionError as error:
        faults.append(f"{cell.table}: {error}")
    return faults
