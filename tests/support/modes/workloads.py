"""Random workloads on tables that have a mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.config.config import Config
from pipeline.config.tables import History, TableRule
from pipeline.delta.spark.provider import SparkProvider
from pipeline.silver.fold.modes import row_mode
from pipeline.table_name import TableName
from tests.support.servers import Database
from tests.support.workload.tables import Schema, Table
from tests.support.workload.transactions import Step

if TYPE_CHECKING:
    from pipeline.silver.write.writer_choice import WriterSetting

KEYED = ("documents", "Lines", "tickets")
MODES = ("soft_delete", "append", "history", "intermediate")
"""The modes; `intermediate` is `history` with intermediate versions."""


class RowSteps(Step):
    """Steps that change no column: Spark adds those."""

    def add_column(self, table: Table) -> None:
        self.insert(table)


def rule_of(source: str, mode: str) -> TableRule:
    """Return the rule of tables that have a mode."""
    if mode == "intermediate":
        return TableRule(source, mode="history", history=History(intermediate=True))
    return TableRule(source, mode=row_mode(mode))


def config_of(
    database: Database, root: Path, mode: str, writer: WriterSetting, copy: str = "never"
) -> Config:
    """Return a pipeline whose tables with a key have a mode."""
    config = database.config("*.*", root=str(root), create_publication="all", copy=copy)
    rules = tuple(rule_of(f"w_*.{table}", mode) for table in (("*",) if mode == "append" else KEYED))
    return replace(config, silver=replace(config.silver, writer=writer), tables=rules)


def config_of_modes(
    database: Database, root: Path, modes: Sequence[str], writer: WriterSetting, copy: str = "never"
) -> Config:
    """Return a pipeline in which the tables with a key of schemas `w_<mode>_…` have that mode."""
    configs = {mode: config_of(database, root, mode, writer, copy) for mode in modes}
    rules = (
        replace(rule, source=rule.source.replace("w_", f"w_{mode}_"))
        for mode, config in configs.items()
        for rule in config.tables
    )
    return replace(configs[modes[0]], tables=tuple(rules))


def names_of(schema: Schema, mode: str) -> list[TableName]:
    """Return the tables that can have a mode: without a key only append can."""
    return [name for name in schema.names if mode == "append" or name.table in KEYED]


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(provider: SparkProvider) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(SparkProvider, "session", property(refuse))
