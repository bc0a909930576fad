"""`pgdelta init`: read what a source has, write a configuration file for it, and say what is left to do.

The file is verified before it is written: it loads, and its rules match exactly the tables that were chosen.
An existing file is never replaced, and nothing is changed at the source.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pipeline.config.load import load_text
from pipeline.config.scalars import holds_secret
from pipeline.errors import ConfigError
from pipeline.operate.copy_estimate import CopyEstimate, estimate_copy
from pipeline.operate.init_file import Choices, MatchedTables, select_tables, write_file
from pipeline.postgres.checks.source_facts import SourceFacts, SourceTable, read_facts
from pipeline.postgres.checks.source_preparation import Preparation, identifier, read_preparation
from pipeline.postgres.connection import connect, limit_statement_time, with_user
from pipeline.progress import lines_by_reason
from pipeline.table_name import TableName, match_tables
from pipeline.terminal import plain, print_pairs, print_paragraph
from pipeline.units import format_count, format_size

_APPLICATION_NAME = "pgdelta init"
_QUERY_SECONDS = 60.0
_LONGEST_NAME = 63
_SCRIPT_WIDTH = 80
_WORD = re.compile(r"""(?:"(?:[^"]|"")*"|'[^']*'|[^\s"'])+""")


@dataclass(frozen=True, slots=True)
class InitReport:
    """The file that was written, what it replicates, and what is left to do at the source."""

    file: str
    pipeline: str
    facts: SourceFacts
    selection: MatchedTables
    estimate: CopyEstimate
    preparations: tuple[Preparation, ...]
    script: str = ""  # the file that has the SQL for the DBA

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "script": self.script or None,
            "pipeline": self.pipeline,
            "server": {
                "version": self.facts.version,
                "database": self.facts.database,
                "user": self.facts.user,
                "role": self.facts.role,
                "service": self.facts.managed and self.facts.managed.name,
                "wal_level": self.facts.wal_level,
                "slots": list(self.facts.slots),
                "publications": list(self.facts.publications),
            },
            "tables": [_as_json(table) for table in self.selection.tables],
            "left_out": [{**_as_json(table), "reason": reason} for table, reason in self.selection.left_out],
            "not_followed": {str(name): why for name, why in self._passed_over().items()},
            "temporary_tables": self.facts.temporary_tables,
            "partial": {str(name): sentence for name, sentence in self._partial().items()},
            "estimate": self.estimate.as_json(),
            "to_do": [_as_data(each) for each in self.preparations if not each.is_optional],
            "optional": [_as_data(each) for each in self.preparations if each.is_optional],
        }

    def _passed_over(self) -> dict[TableName, str]:
        """Return what is not followed of what was asked for; a table that is left out has its partitions."""
        chosen = {table.name for table in self.selection.tables}
        left_out = {table.name for table, _ in self.selection.left_out}
        globs, roots = self.selection.globs, self.facts.roots
        return {
            name: why
            for name, why in self.facts.passed_over.items()
            if name not in chosen
            and roots.get(name) not in left_out
            and (not globs or any(glob.matches(name) for glob in globs))
        }

    def _partial(self) -> dict[TableName, str]:
        names = sorted(table.name for table in self.selection.tables)
        return {name: self.facts.partial[name] for name in names if name in self.facts.partial}

    def print(self, console: Console) -> None:
        """Print what was written and what is to be done; statements are lines that can be pasted."""
        tables = self.selection.tables
        size = format_size(sum(table.bytes for table in tables))
        print_paragraph(
            console, f"wrote {self.file}: {format_count(len(tables), 'table')}, {size} with indexes"
        )
        left_out = {
            table.name: f"{reason[:1].upper()}{reason[1:]}." for table, reason in self.selection.left_out
        }
        for line in lines_by_reason("left out", left_out):
            print_paragraph(console, line)
        for line in lines_by_reason("not followed", self._passed_over()):
            print_paragraph(console, line)
        if self.facts.temporary_tables:
            kept = format_count(self.facts.temporary_tables, "temporary table")
            print_paragraph(console, f"not followed: {kept}. Only their sessions see them.")
        for name, sentence in self._partial().items():
            print_paragraph(console, f"{name}: {sentence}")
        console.print()
        print_pairs(console, self.estimate.pairs())
        console.print()
        self._print_preparations(console)
        print_paragraph(console, "Then:")
        file = shlex.quote(self.file)
        lines = [f"pgdelta {command} --config {file}" for command in ("check", "run", "status")]
        names = (table.name for table in self.selection.tables)
        if first := next((each for each in names if "".join(each).isprintable()), None):
            query = shlex.quote(f"SELECT * FROM {identifier(*first)}")
            lines.append(f"pgdelta query --config {file} {query}")
        for line in lines:
            console.print(plain(line), soft_wrap=True, highlight=False)

    def _print_preparations(self, console: Console) -> None:
        where = f"in the database {self.facts.database}, as SQL for its DBA"
        end = f": {self.script}" if self.script else ":"
        if any(not each.is_optional for each in self.preparations):
            print_paragraph(console, f"To do at the source, {where}{end}")
        else:
            optional = f" Optional, {where}{end}" if self.preparations else ""
            print_paragraph(console, f"Nothing is left to do at the source.{optional}")
        if not self.script:
            self._print_script(console)
        console.print()
        if self.facts.is_superuser and self.facts.user == self.facts.role:
            print_paragraph(
                console,
                f"The pipeline will connect as {self.facts.role}, a superuser. For a role that can do"
                " less, begin again with --role NAME, which prints the SQL that creates it.",
            )
            console.print()

    def _print_script(self, console: Console) -> None:
        """Print one SQL script, in which what is optional, and what is no SQL, is a comment."""
        for each in self.preparations:
            reason = f"Optional: {each.reason}" if each.is_optional else each.reason
            print_paragraph(console, reason, prefix="-- ")
            for setting in each.settings:
                print_paragraph(console, setting, indent=2, prefix="-- ")
            for statement in each.statements:
                _print_statement(console, statement, "-- " if each.is_optional else "")
            if each.needs_restart:
                print_paragraph(console, "These take effect when the server restarts.", prefix="-- ")

    def with_script(self, file: str) -> InitReport:
        """Write the SQL for the DBA to a file, and return the report that names it."""
        text = StringIO()
        self._print_script(Console(file=text, width=_SCRIPT_WIDTH, highlight=False))
        _write_new(file, text.getvalue(), "--sql")
        return replace(self, script=file)


def _print_statement(console: Console, statement: str, prefix: str) -> None:
    """Print a statement on lines that fit, divided between words and quoted names, never within one."""
    width = console.width - len(prefix)
    line = ""
    for word in _WORD.findall(statement):
        if line and cell_len(f"{line} {word}") > width:
            console.print(Text(prefix + line), soft_wrap=True, highlight=False)
            line = f"   {word}"
        else:
            line = f"{line} {word}" if line else word
    console.print(Text(prefix + line), soft_wrap=True, highlight=False)


def read_source(conninfo: str, role: str | None = None) -> SourceFacts:
    """Return what the server of a connection string has for a role, by default that of the string.

    Raises ConfigError if the string has a secret.
    """
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
        return read_facts(connection, role)


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
    written = choices
    if facts.role != facts.user:
        written = replace(choices, conninfo=with_user(choices.conninfo, facts.role))
    text = write_file(written, facts, selection)
    config = load_text(text, choices.file, {})
    matched = {
        table.name
        for table in facts.tables
        if (rule := config.rule_for(table.name))
        and (rule.is_exact_for(table.name) or table.name not in facts.passed_over)
    }
    if matched != {table.name for table in selection.tables}:
        raise AssertionError("the rules match other tables than were chosen")
    if (config.pipeline, config.source.conninfo) != (written.pipeline, written.conninfo):
        raise AssertionError("the file has other values than were chosen")
    with connect(choices.conninfo, application_name=_APPLICATION_NAME, key="--conninfo") as connection:
        limit_statement_time(connection, _QUERY_SECONDS)
        estimate = estimate_copy(connection, choices.conninfo, facts, selection.tables)
        preparations = read_preparation(
            connection,
            facts,
            config.source.publication,
            selection.tables,
            [table for table, _ in selection.left_out],
            estimate.wal_rate,
        )
    _write_new(choices.file, text, "--output")
    return InitReport(choices.file, choices.pipeline, facts, selection, estimate, tuple(preparations))


def refuse_existing(file: str, option: str = "--output") -> None:
    """Raise ConfigError if the file, or a link in its place, exists; `option` names it."""
    if os.path.lexists(file):
        raise ConfigError(f"{file}: The file exists, and is not replaced. Give {option} another path.")


def _write_new(path: str, text: str, option: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        refuse_existing(path, option)
    except OSError as error:
        raise ConfigError(
            f"{path}: Cannot write the file ({error.strerror}). Give {option} another path."
        ) from None


def check_root(root: str) -> str:
    """Return the folder of the lake as it is written: absolute if it is one of this machine."""
    if "${" in root:
        raise ConfigError("The folder has a variable, which only the file expands. Give its value here.")
    return root if "://" in root else str(Path(root).absolute())


def _as_json(table: SourceTable) -> dict[str, Any]:
    return {
        **table.name._asdict(),
        "owner": table.owner,
        "bytes": table.bytes,
        "rows": table.rows,
    }


def _as_data(preparation: Preparation) -> dict[str, Any]:
    return {
        "reason": preparation.reason,
        "statements": list(preparation.statements),
        "settings": list(preparation.settings),
        "needs_restart": preparation.needs_restart,
    }
