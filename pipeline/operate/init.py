"""`pgdelta init`: read what a source has, write a configuration file for it, and say what is left to do.

The file is verified before it is written: it loads, and its rules match exactly the tables that were chosen.
An existing file is never replaced, and nothing is changed at the source.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.config.load import load_text
from pipeline.config.scalars import holds_secret
from pipeline.errors import ConfigError
from pipeline.operate.init_file import Choices, MatchedTables, select_tables, write_file
from pipeline.postgres.checks.source_facts import (
    Preparation,
    SourceFacts,
    SourceTable,
    read_facts,
    read_preparation,
)
from pipeline.postgres.connection import connect, limit_statement_time
from pipeline.progress import lines_by_reason
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import plain, print_paragraph
from pipeline.units import format_count, format_size

_APPLICATION_NAME = "pgdelta init"
_QUERY_SECONDS = 60.0
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class InitReport:
    """The file that was written, what it replicates, and what is left to do at the source."""

    file: str
    pipeline: str
    facts: SourceFacts
    selection: MatchedTables
    preparations: tuple[Preparation, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""
        return {
            "file": self.file,
            "pipeline": self.pipeline,
            "server": {
                "version": self.facts.version,
                "database": self.facts.database,
                "user": self.facts.user,
                "wal_level": self.facts.wal_level,
                "slots": list(self.facts.slots),
                "publications": list(self.facts.publications),
            },
            "tables": [_as_json(table) for table in self.selection.tables],
            "left_out": [{**_as_json(table), "reason": reason} for table, reason in self.selection.left_out],
            "not_followed": {str(name): why for name, why in self._passed_over().items()},
            "partial": {str(name): sentence for name, sentence in self._partial().items()},
            "to_do": [
                {
                    "reason": each.reason,
                    "statements": list(each.statements),
                    "needs_restart": each.needs_restart,
                }
                for each in self.preparations
            ],
        }

    def _passed_over(self) -> dict[TableName, str]:
        chosen = {table.name for table in self.selection.tables}
        schemas = self.selection.rules.keys()
        passed_over = self.facts.passed_over.items()
        return {name: why for name, why in passed_over if name not in chosen and name.schema in schemas}

    def _partial(self) -> dict[TableName, str]:
        names = sorted(table.name for table in self.selection.tables)
        return {name: self.facts.partial[name] for name in names if name in self.facts.partial}

    def print(self, console: Console) -> None:
        """Print what was written and what is to be done; statements are lines that can be pasted."""
        tables = self.selection.tables
        size = format_size(sum(table.bytes for table in tables))
        print_paragraph(console, f"wrote {self.file}: {format_count(len(tables), 'table')}, {size}")
        left_out = {
            table.name: f"{reason[:1].upper()}{reason[1:]}." for table, reason in self.selection.left_out
        }
        for line in lines_by_reason("left out", left_out):
            print_paragraph(console, line)
        for line in lines_by_reason("not followed", self._passed_over()):
            print_paragraph(console, line)
        for name, sentence in self._partial().items():
            print_paragraph(console, f"{name}: {sentence}")
        console.print()
        if self.preparations:
            print_paragraph(console, "To do at the source:")
        for each in self.preparations:
            print_paragraph(console, each.reason, prefix="-- ")
            for statement in each.statements:
                console.print(Text(statement), soft_wrap=True, highlight=False)
            if each.needs_restart:
                print_paragraph(console, "Then restart the server.", prefix="-- ")
        if self.preparations:
            console.print()
        print_paragraph(console, "Then:")
        for command in ("check", "run", "status"):
            line = f"pgdelta {command} --config {shlex.quote(self.file)}"
            console.print(plain(line), soft_wrap=True, highlight=False)


def read_source(conninfo: str) -> SourceFacts:
    """Return what the server of a connection string has; raise ConfigError if the string has a secret."""
    if holds_secret(conninfo):
        raise ConfigError(
            "The connection string has a password, which does not belong into the file. Remove it, and set"
            " PGPASSWORD or PGPASSFILE."
        )
    if "${" in conninfo:
        raise ConfigError(
            "The connection string has a variable, which only the file expands. Give its value here, and"
            " write the variable into the file afterwards."
        )
    with connect(conninfo, application_name=_APPLICATION_NAME, key="--conninfo") as connection:
        limit_statement_time(connection, _QUERY_SECONDS)
        return read_facts(connection)


def suggest_name(facts: SourceFacts) -> str:
    """Return a name for the pipeline, after the database, that no slot and no publication has."""
    base = re.sub(r"[^a-z0-9]+", "_", facts.database.lower()).strip("_")[: _LONGEST_NAME - 4] or "pgdelta"
    taken = {*facts.slots, *facts.publications}
    numbered = (base if number == 1 else f"{base}_{number}" for number in range(1, len(taken) + 2))
    return next(name for name in numbered if name not in taken)


def choose_tables(facts: SourceFacts, globs: Sequence[str]) -> MatchedTables:
    """Return the tables to replicate; raise ConfigError if there are none."""
    match_tables(globs)  # refuses what is no glob
    selection = select_tables(facts.tables, globs, facts.passed_over)
    if selection.tables:
        return selection
    if selection.left_out:
        table, reason = selection.left_out[0]
        raise ConfigError(
            f"Of {format_count(len(selection.left_out), 'table')}, none can be replicated as it is:"
            f" {table.name} has {reason}."
        )
    where = f"in the database {facts.database}" + (" matches --table" if globs else "")
    raise ConfigError(f"No table {where}. Create one, or name another database or other tables.")


def write_configuration(choices: Choices, facts: SourceFacts, selection: MatchedTables) -> InitReport:
    """Write the file, and return what is left to do; raise ConfigError if the file exists."""
    refuse_existing(choices.file)
    if choices.pipeline in facts.slots:
        raise ConfigError(
            f"The slot {choices.pipeline} exists already, and a slot has one reader. Choose another name for"
            " the pipeline, or drop the slot."
        )
    text = write_file(choices, facts, selection)
    config = load_text(text, choices.file, {})
    matched = {
        table.name
        for table in facts.tables
        if (rule := config.rule_for(table.name))
        and (rule.is_exact_for(table.name) or table.name not in facts.passed_over)
    }
    if matched != {table.name for table in selection.tables}:
        raise AssertionError("the rules match other tables than were chosen")
    if (config.pipeline, config.source.conninfo) != (choices.pipeline, choices.conninfo):
        raise AssertionError("the file has other values than were chosen")
    with connect(choices.conninfo, application_name=_APPLICATION_NAME, key="--conninfo") as connection:
        limit_statement_time(connection, _QUERY_SECONDS)
        preparations = read_preparation(connection, facts, config.source.publication, selection.tables)
    try:
        with open(choices.file, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse_existing(choices.file)
    except OSError as error:
        raise ConfigError(
            f"{choices.file}: Cannot write the file ({error.strerror}). Give --output another path."
        ) from None
    return InitReport(choices.file, choices.pipeline, facts, selection, tuple(preparations))


def refuse_existing(file: str) -> None:
    """Raise ConfigError if the file, or a link in its place, exists."""
    if os.path.lexists(file):
        raise ConfigError(f"{file}: The file exists, and is not replaced. Give --output another path.")


def check_root(root: str) -> str:
    """Return the folder of the lake as it is written: absolute if it is one of this machine."""
    if "${" in root:
        raise ConfigError("The folder has a variable, which only the file expands. Give its value here.")
    return root if "://" in root else str(Path(root).absolute())


def _as_json(table: SourceTable) -> dict[str, Any]:
    return {
        "schema": table.name.schema,
        "table": table.name.table,
        "owner": table.owner,
        "bytes": table.bytes,
        "rows": table.rows,
    }
