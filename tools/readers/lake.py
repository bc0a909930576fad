"""The lake that readers are tried on: made by pgdelta from an embedded server, and what it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from pipeline.apply.job import run_apply
from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.delta.rows import read_rows
from pipeline.delta.schema import TableSchema
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.postgres.embedded import start_server
from tools.readers.features import FEATURES, Feature
from tools.readers.read import plain_rows

_CONFIG = """\
pipeline: readers
source: {{conninfo: "{conninfo}"}}
storage: {{root: "{folder}/lake"}}
tables:
{rules}"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader is asked for, and the rows that it should find, as `read.plain_rows` has them."""

    feature: Feature
    path: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]  # of them, those of STRING
    version: int | None
    rows: tuple[str, ...]

    @property
    def request(self) -> Mapping[str, Any]:
        """The request as `read` takes it."""
        return {
            "path": self.path,
            "columns": self.columns,
            "texts": self.texts,
            "version": self.version,
            "is_feed": self.feature.is_feed,
        }


@dataclass(slots=True)
class _Lake:
    """The lake, while it is made."""

    config: Config
    source: psycopg.Connection[Any]
    past: dict[str, int] = field(default_factory=dict)  # version of each table before its later changes

    def table(self, name: str) -> LakeTable:
        return LakeTable(f"{self.config.storage.root}/silver/public/{name}")

    def catch_up(self) -> None:
        run_ingest(self.config)
        summary = run_apply(self.config, records_status=False, starts_query=False)
        if summary.exit_code(strict=True):
            raise RuntimeError("\n".join(summary.lines()))

    def wanted(self, feature: Feature) -> Wanted:
        """Return what a reader should find of a feature."""
        table = self.table(feature.table)
        version = self.past[feature.table] if feature.is_past else None
        snapshot = table.snapshot(version)
        fields = TableSchema.of_json(snapshot.schema_string).fields
        columns = feature.selects or tuple(each.name for each in fields)
        texts = tuple(each.name for each in fields if "STRING" in each.ddl)
        if feature.is_feed:
            version = 1  # the table is created by version 0, and its feed begins with the properties
        found = feature.expected
        if not found:
            rows = read_rows(snapshot.path, snapshot, columns)
            found = [*zip(*(rows.column(name).to_pylist() for name in columns), strict=True)]
        path = str(table.local_path)
        return Wanted(feature, path, tuple(columns), texts, version, tuple(plain_rows(found)))


def _tables() -> list[Feature]:
    return [each for each in FEATURES if each.values]


def make_lake(folder: Path) -> list[Wanted]:
    """Make the lake in a folder; return what readers should find, by feature in order."""
    with _source(folder) as lake:
        source = lake.source
        for each in _tables():
            source.execute(f"CREATE TABLE {each.table} (id int PRIMARY KEY, {each.columns})".encode())
            for number, values in enumerate(each.values, 1):
                source.execute(f"INSERT INTO {each.table} VALUES ({number}, {values})".encode())
        lake.catch_up()
        session = start_session("pgdelta readers")
        for each in _tables():
            lake.past[each.table] = lake.table(each.table).version()
            for statement in each.by_spark:
                session.sql(statement.format(table=lake.table(each.table).identifier))
        for statement, table in ((text, each.table) for each in _tables() for text in each.later):
            source.execute(statement.format(table=table).encode())
        lake.catch_up()
        session.stop()
        return [lake.wanted(each) for each in FEATURES]


@contextmanager
def _source(folder: Path) -> Iterator[_Lake]:
    server = start_server(folder / "postgres")
    try:
        rules = [f"  - {{source: public.{e.table}{', ' if e.rule else ''}{e.rule}}}" for e in _tables()]
        file = folder / "pipeline.yaml"
        file.write_text(_CONFIG.format(conninfo=server.conninfo, folder=folder, rules="\n".join(rules)))
        with psycopg.connect(server.conninfo, autocommit=True) as source:
            yield _Lake(load_config(file, {}), source)
    finally:
        server.stop()
