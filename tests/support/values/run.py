"""All value tables through the pipeline, in text and in binary format, of one WAL: what became of each type.

Two pipelines read every transaction of one database. What binary format cannot read is in tables that
only the one in text format publishes. Keys are in both bronzes, and in silver of the one in text format:
silver is made of nothing but bronze, which is compared row by row.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.config.config import Protocol
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.captures.typed import install
from tests.support.pipelines import Pipeline
from tests.support.servers import Database
from tests.support.values.judge import Verdict, Verdicts, judge_misfits, judge_rows, judge_types, landed
from tests.support.values.kinds import Kind
from tests.support.values.tables import PHASES, Connection, Source, ValueTable, can_be_key, look, run

MODES = ("text", "binary")
BINARY = Protocol(binary=True, written=frozenset({"binary"}))
REALS = ("float4", "float8")
KEY_COLUMNS = 28  # an index has 32 at most
Families = Mapping[str, list[Kind]]


@dataclass(slots=True)
class Carried:
    """Verdicts by mode and type, which types were keys, and how the two bronzes differ."""

    verdicts: dict[str, Verdicts] = field(default_factory=lambda: {m: defaultdict(Verdict) for m in MODES})
    keys: set[str] = field(default_factory=set)
    unequal_bronze: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Lane:
    """One pipeline, the tables that it has in silver, and the verdicts on them."""

    pipeline: Pipeline
    tables: list[ValueTable]
    verdicts: Verdicts

    def advance(self, phase: str, sources: Mapping[str, Source]) -> None:
        """Capture and apply a phase and judge the tables' rows."""
        started = time.monotonic()
        self.pipeline.ingest()
        states = self.pipeline.apply().tables
        print(f"{self.pipeline.config.pipeline}: {phase} took {time.monotonic() - started:.1f} s")
        for table in self.tables:
            state = states.get(TableName("public", table.name))
            if state is None or state.failure or state.held:
                for kind in table.kinds:
                    self.verdicts[kind.type].fault(f"{table.name} after {phase}: {state}")
                continue
            found = landed(table, self.pipeline)
            if phase == PHASES[0]:
                judge_types(table, found.types, self.verdicts)
            judge_rows(table, phase, sources[table.name], found.rows(), self.verdicts)

    def finish(
        self, places: Mapping[str, tuple[LSN, LSN]], sources: Mapping[str, Mapping[str, Source]]
    ) -> None:
        """Judge the misfits of all phases, whose places in the WAL are known."""

        def phase_of(lsn: int) -> str:
            return next(
                (phase for phase, (low, high) in places.items() if low <= lsn < high), f"at {LSN(lsn)}"
            )

        rows = self.pipeline.frame("_pgdelta", "misfits").collect()
        for table in self.tables:
            own = [row for row in rows if row.table_name == table.name]
            of_table = {phase: sources[phase][table.name] for phase in PHASES}
            judge_misfits(table, of_table, own, phase_of, self.verdicts)


def carry(
    carried: Carried,
    database: Database,
    families: Families,
    bags: Families,
    root: str,
    *,
    with_spark: bool,
) -> None:
    """Take the families, and some types as rows without a key, through both pipelines and judge them.

    Tables that Spark writes, for their keys or maps, are in bronze always, and in silver on request.
    """
    with database.connect() as source:
        install(source)
        tables = tables_of(source, families, bags)
        carried.keys |= {kind.type for table in tables if table.role == "keys" for kind in table.kinds}
        for table in tables:
            table.create(source)
        lanes = {}
        for mode in MODES:
            published = [table for table in tables if mode == "text" or is_binary(table)]
            in_silver = [table for table in published if mode == "text" or table.role == "plain"]
            if not with_spark:
                in_silver = [table for table in in_silver if not is_of_spark(table)]
            pipeline = make(database, source, root, mode, published, in_silver)
            pipeline.ingest()
            lanes[mode] = Lane(pipeline, in_silver, carried.verdicts[mode])
        places, sources = {}, {}
        for phase in PHASES:
            places[phase] = write(source, tables, phase)
            sources[phase] = {table.name: look(source, table) for table in tables}
            for lane in lanes.values():
                lane.advance(phase, sources[phase])
        for lane in lanes.values():
            lane.finish(places, sources)
        judge_bronze(carried, lanes)


def tables_of(connection: Connection, families: Families, bags: Families) -> list[ValueTable]:
    """Return the tables of each family, and those of its types that can be a key."""
    tables = [ValueTable(name, "bag", kinds) for name, kinds in bags.items()]
    for name, kinds in families.items():
        tables.append(ValueTable(name, "plain", kinds))
        keys = [kind for kind in kinds if can_be_key(connection, kind)]
        arrays = [kind for kind in keys if kind.type.endswith("[]")]
        others = [kind for kind in keys if kind not in arrays]
        others.sort(key=lambda kind: kind.type in REALS)  # the first of a table tell its rows apart
        for role, of_role in (("keys", others), ("arrays", arrays)):
            for at in range(0, len(of_role), KEY_COLUMNS):
                tables.append(ValueTable(f"{name}_{role}_{at}", "keys", of_role[at : at + KEY_COLUMNS]))
    return tables


def is_of_spark(table: ValueTable) -> bool:
    """Return whether Spark writes the table in silver, because of its key or its maps."""
    of_spark = ("array<", "float", "double") if table.role == "keys" else ("map<", "array<map<")
    return any(kind.silver.startswith(of_spark) for kind in table.kinds)


def is_binary(table: ValueTable) -> bool:
    return table.role != "bag" and not table.name.startswith("only_as_text")


def make(
    database: Database,
    source: Connection,
    root: str,
    mode: str,
    published: list[ValueTable],
    in_silver: list[ValueTable],
) -> Pipeline:
    """Return a pipeline that publishes tables and has some of them in silver."""
    name = f"{database.name}_{mode}"
    run(source, f"CREATE PUBLICATION {name} FOR TABLE {', '.join(table.name for table in published)}")
    protocol: dict[str, Any] = {"protocol": BINARY} if mode == "binary" else {}
    rules = [f"public.{table.name}" for table in in_silver]
    config = database.config(*rules, root=f"{root}/{mode}", publication=name, slot=name, **protocol)
    return Pipeline(database, replace(config, pipeline=name), source)


def write(source: Connection, tables: list[ValueTable], phase: str) -> tuple[LSN, LSN]:
    """Write one phase of all tables, those for text format only in a transaction of their own."""
    before = wal_position(source)
    for binary in (True, False):
        with source.transaction():
            for table in tables:
                if is_binary(table) == binary:
                    table.write(source, phase)
    return before, wal_position(source)


def wal_position(source: Connection) -> LSN:
    return LSN.parse(run(source, "SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])


def judge_bronze(carried: Carried, lanes: Mapping[str, Lane]) -> None:
    """Compare the rows of the tables that both pipelines hold."""
    texts, binaries = (lanes[mode].pipeline.changes() for mode in MODES)
    published = {row["table_name"] for row in binaries}
    texts = [row for row in texts if row["table_name"] in published]
    if len(texts) != len(binaries):
        carried.unequal_bronze.append(f"{len(texts)} rows in text, {len(binaries)} in binary format")
    for text, binary in zip(texts, binaries, strict=False):
        if text != binary:
            differing = [name for name in text if text[name] != binary[name]]
            carried.unequal_bronze.append(f"{text['table_name']} ordinal {text['ordinal']}: {differing}")
