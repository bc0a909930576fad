"""The plan of the next apply: one line a table, or each step of the tables that a person names.

Tables that need attention come first: those that cannot be planned, are held, or lose values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.config.config import Config
from pipeline.errors import PgdeltaError
from pipeline.progress import NO_BRONZE
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName
from pipeline.terminal import plain, print_list, print_pairs, print_paragraph
from pipeline.units import format_count

_OPERATIONS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate", "R": "copied row"}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a table: at which LSN, what it does, what it costs, and what it loses, if anything.

    A step that `holds` stops the table: nothing is applied from there on. One that `is_write` writes rows,
    the others change columns; `sql` are its statements.
    """

    lsn: LSN
    sentence: str
    cost: str
    loses: str | None = None
    sql: tuple[str, ...] = ()
    is_write: bool = False
    holds: bool = False


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What is pending for one table: changes by operation after an LSN, and steps in order."""

    name: TableName
    after: LSN
    counts: dict[str, int]
    steps: tuple[PlanStep, ...] = ()
    failure: str | None = None

    @property
    def attention(self) -> int:
        """How soon the table needs a person's attention; 0 is first."""
        if self.failure is not None:
            return 0
        if any(step.holds for step in self.steps):
            return 1
        if any(step.loses for step in self.steps):
            return 2
        return 3 if self.column_steps else 4

    @property
    def is_stopped(self) -> bool:
        """Whether it waits, is held or fails, and has no changes as far as is known."""
        has_stop = self.failure is not None or any(step.holds for step in self.steps)
        return has_stop and not any(self.counts.values())

    @property
    def column_steps(self) -> tuple[PlanStep, ...]:
        """The steps that do not write rows of the stream."""
        return tuple(step for step in self.steps if not step.is_write)

    @property
    def summary(self) -> Text:
        """What happens to the table, for one line."""
        if self.failure is not None:
            return Text.assemble(("fails: ", "red"), plain(self.failure))
        for step in self.steps:
            if step.holds:
                table = f"Table {self.name} "
                if step.sentence.startswith(f"{table}waits "):
                    return Text.assemble(("waits ", "yellow"), plain(step.sentence[len(table) + 6 :]))
                reason = step.sentence.removeprefix(f"{table}is held")
                heading = "held" if reason != step.sentence else "held: "
                return Text.assemble((heading, "red"), plain(reason))
        steps = self.column_steps
        losses = [step for step in steps if step.loses]
        if len(steps) == 1:
            loss = ("loses values: ", "yellow") if losses else ""
            return Text.assemble(loss, plain(steps[0].sentence))
        if losses:
            count = f"{len(losses)} of {format_count(len(steps), 'step')} "
            return Text.assemble((f"{count}{'lose' if len(losses) > 1 else 'loses'} values", "yellow"))
        return Text(format_count(len(steps), "step") if steps else "rows only")

    def as_json(self, *, has_sql: bool = False) -> dict[str, Any]:
        return {
            **self.name._asdict(),
            "after": str(self.after),
            "changes": self.counts,
            "steps": [
                {"lsn": str(s.lsn), "sentence": s.sentence, "cost": s.cost, "loses": s.loses}
                | ({"sql": list(s.sql)} if has_sql else {})
                for s in self.steps
            ],
            "failure": self.failure,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next apply does up to an LSN; `has_details` and `has_sql` choose what is shown.

    `idle_rules` has a sentence for each rule that no table of the source follows.
    """

    pipeline: str
    captured_offset: LSN
    tables: tuple[PlannedTable, ...]
    has_details: bool = False
    has_sql: bool = False
    idle_rules: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "upto": str(self.captured_offset),
            "tables": [table.as_json(has_sql=self.has_sql) for table in self.tables],
            "idle_rules": list(self.idle_rules),
        }

    def print(self, console: Console) -> None:
        """Print one line a table; with details, or for a single table, every step; with SQL, a script."""
        if self.has_sql:
            for line in self._script():
                console.print(plain(line), soft_wrap=True)  # never broken, so that it can be copied
            return
        for sentence in self.idle_rules:
            print_paragraph(console, sentence)
        if not self.tables:
            print_paragraph(console, f"{self.pipeline}: {self._heading}")
            return
        count, tables = len(self.tables), self._by_attention
        print_paragraph(console, f"{self.pipeline}: {self._heading}")
        console.print()
        if self.has_details or count == 1:
            for number, table in enumerate(tables):
                if number:
                    console.print()
                _print_steps(console, table)
            return
        rows = [(str(table.name), _letters(table.counts), table.summary) for table in tables]
        print_list(console, ("table", "changes", "what happens"), rows)
        if any(table.attention < 4 for table in tables):
            console.print()
            print_paragraph(console, "pgdelta plan TABLE shows the steps of a table, with their cost.")

    @property
    def _by_attention(self) -> list[PlannedTable]:
        return sorted(self.tables, key=lambda table: (table.attention, table.name))

    @property
    def _heading(self) -> str:
        if not self.tables:
            return self._nothing
        stopped = sum(table.is_stopped for table in self.tables)
        count, parts = sum(any(table.counts.values()) for table in self.tables), []
        others = len(self.tables) - count - stopped
        if count:
            parts.append(f"{format_count(count, 'table', 'has', 'have')} changes to apply")
        if others:
            parts.append(f"{format_count(others, 'table', 'has', 'have')} other steps to come")
        if stopped:
            parts.append(f"{'1 table is' if stopped == 1 else f'{stopped} tables are'} stopped")
        return f"{', '.join(parts)}, up to {self.captured_offset}"

    def _script(self) -> Iterator[str]:
        """Yield the lines of a script: the statements of each table, after comments."""
        yield _comment(f"{self.pipeline}: {self._heading}")
        for table in self._by_attention:
            yield ""
            yield from _script(table)

    @property
    def _nothing(self) -> str:
        if self.captured_offset == INVALID:
            return NO_BRONZE
        if self.has_details:
            return f"nothing is pending for a table that matches (up to {self.captured_offset})"
        return f"silver shows all that bronze holds (up to {self.captured_offset})"


def _print_steps(console: Console, table: PlannedTable) -> None:
    title = Text.assemble(plain(str(table.name), "bold"), f": {_words(table.counts)} after {table.after}")
    print_paragraph(console, title)
    if table.failure is not None:
        print_pairs(console, [(Text("fails", "red"), table.failure)], indent=2)
    elif not table.steps:
        print_paragraph(console, "rows only", indent=2)
    print_pairs(console, [pair for step in table.steps for pair in _pairs(step)], indent=2)


def _script(table: PlannedTable) -> Iterator[str]:
    """Yield the lines of a table's statements, each step after a comment; a step without SQL is a comment."""
    yield _comment(f"{table.name}: {_words(table.counts)} after {table.after}")
    if table.failure is not None:
        yield _comment(f"{table.name}: fails: {table.failure}")
    for step in table.steps:
        loss = f"; loses: {step.loses}" if step.loses else ""
        what = step.sentence.removesuffix(".")
        yield _comment(f"{table.name}: {what}; cost: {step.cost}{loss}")
        for statement in step.sql:
            # A quoted name may hold other line ends, which have to stay in it.
            yield from f"{statement};".split("\n")


def _comment(text: str) -> str:
    """Return one line of a comment: a line end in a name would end it."""
    return f"-- {' '.join(text.split())}"


def _pairs(step: PlanStep) -> Iterator[tuple[str | Text, str | Text]]:
    if step.is_write:
        yield str(step.lsn), f"write: {step.sentence}"
        return
    yield str(step.lsn), plain(step.sentence, "red" if step.holds else "")
    yield "", f"cost: {step.cost}"
    if step.loses:
        yield "", Text.assemble(("loses: ", "yellow"), plain(step.loses))


def _letters(counts: dict[str, int]) -> str:
    """Return the counts by operation; the letter of copied rows says too little."""
    known = ((op, count) for op, count in counts.items() if count)
    return ", ".join(format_count(count, "row") if op == "R" else f"{count:,} {op}" for op, count in known)


def _words(counts: dict[str, int]) -> str:
    known = ((count, _OPERATIONS.get(op, op)) for op, count in counts.items() if count)
    return ", ".join(format_count(count, word) for count, word in known) or "no changes"


def with_idle_rules(plan: Plan, config: Config) -> Plan:
    """Return the plan with the rules that no table follows, if the source can be read."""
    from pipeline.postgres.idle_rules import read_idle_rules_of

    try:
        return replace(plan, idle_rules=read_idle_rules_of(config))
    except PgdeltaError:
        return plan
