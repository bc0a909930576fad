"""A pipeline under test whose jobs run without Spark: the native writer, in a lake on local disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake, LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.progress import ApplySummary
from tests.support.rewritten import is_about_rewrite
from tests.support.servers import Database


@dataclass(slots=True)
class NativePipeline:
    """A configuration, and the database that its jobs read."""

    database: Database
    config: Config

    @classmethod
    def make(cls, database: Database, folder: Path, *rules: TableRule, **source: Any) -> NativePipeline:
        """Return a pipeline that follows all tables from now on, and copies none unless `source` says so."""
        options = {"create_publication": "all", "copy": "never", **source}
        config = database.config("public.*", root=str(folder / "lake"), **options)
        made = cls(database, replace(config, silver=replace(config.silver, writer="native")))
        if rules:
            made.set_rules(*rules)
        run_ingest(made.config)  # creates the slot
        return made

    def set_rules(self, *rules: TableRule) -> None:
        """Continue with other rules of the tables."""
        self.config = replace(self.config, tables=rules)

    def run(self, *statements: str) -> None:
        """Run statements at the source, each in its own transaction."""
        self.database.run(*statements)

    def ingest(self, *statements: str) -> None:
        """Run statements at the source, and capture all that is committed."""
        self.run(*statements)
        run_ingest(self.config)

    def applier(self) -> closing[Applier]:
        """Give the state of an apply without Spark."""
        return closing(Applier(None, self.config))

    def apply(self) -> ApplySummary:
        """Apply all that bronze holds."""
        with self.applier() as applier:
            applier.apply_pending()
            return applier.summary

    def catch_up(self, *statements: str) -> ApplySummary:
        """Run statements at the source, and capture and apply all there is."""
        self.ingest(*statements)
        return self.apply()

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a silver table of schema public, in order."""
        found = LakeTable(f"{self.config.storage.root}/silver/public/{table}").rows(list(columns))
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a silver table of schema public: name → DDL."""
        fields = LakeTable(f"{self.config.storage.root}/silver/public/{table}").schema().fields
        return {field.name: field.ddl for field in fields}

    def events(self, table: str) -> list[tuple[str, str]]:
        """Return (kind, sentence) of the events of a table, but for those about a rewrite."""
        found = ((r["kind"], r["sentence"]) for r in self.records("events") if r["table_name"] == table)
        return [each for each in found if not is_about_rewrite(each[1])]

    def misfits(self, table: str) -> list[tuple[str, str, str]]:
        """Return (column, text, policy) of the misfits of a table."""
        found = (r for r in self.records("misfits") if r["table_name"] == table)
        return sorted((r["column_name"], r["raw_text"], r["policy"]) for r in found)

    def records(self, name: str, folder: str = "_pgdelta") -> Iterator[dict[str, Any]]:
        """Yield the rows of a table of the lake that is no silver table."""
        table = Lake(self.config.storage).table(folder, name)
        yield from table.rows().to_pylist() if table.exists() else ()
