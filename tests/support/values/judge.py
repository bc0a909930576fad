"""Is every value of the source in silver, or recorded as one that silver cannot hold?

A cell is judged by what the server says of it and what a reader of silver finds: the text of exact values,
the number itself of floats, element by element in arrays, whose elements the server finds. Nothing of the
pipeline's own reading is used.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.comparable.source import SCALARS
from tests.support.oracle import found_table
from tests.support.pipelines import Pipeline
from tests.support.values.kinds import Cell, Kind
from tests.support.values.tables import Source, ValueTable

_FLOATS: Mapping[str, Callable[[str], Any]] = {"float": SCALARS["float4"], "double": SCALARS["float8"]}


@dataclass(slots=True)
class Verdict:
    """What became of a type's values in one mode."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, sentence: str) -> None:
        self.faults.append(sentence)


Verdicts = defaultdict[str, Verdict]  # by type


@dataclass(frozen=True, slots=True)
class Landed:
    """A table in silver: the types of its columns, and each row's n with its values."""

    types: Mapping[str, str]
    rows: Callable[[], Iterable[tuple[int, Sequence[Any]]]]


def landed(table: ValueTable, pipeline: Pipeline) -> Landed:
    """Return a table of silver."""
    found = found_table(None, str(pipeline.path("silver", "public", table.name)), by_spark=False)
    assert found is not None
    names = ["n", *table.columns]
    return Landed(found.types, lambda: [(int(n), row) for n, *row in found.rows(names).elements()])


def judge_types(table: ValueTable, found: Mapping[str, str], verdicts: Verdicts) -> None:
    """Hold the types of a silver table against the contract's."""
    for column, kind in zip(table.columns, table.kinds, strict=True):
        if found.get(column) != kind.silver:
            verdicts[kind.type].fault(f"{table.name}: lands as {found.get(column)}, should be {kind.silver}")


def judge_rows(
    table: ValueTable,
    phase: str,
    source: Source,
    rows: Iterable[tuple[int, Sequence[Any]]],
    verdicts: Verdicts,
) -> None:
    """Compare each cell of a table, and count what is equal and what is NULL for a reason."""
    silver: dict[int, Sequence[Any]] = {}
    for n, row in rows:
        if n in silver or n not in source.texts:
            for kind in table.kinds:
                verdicts[kind.type].fault(f"{table.name} after {phase}: row {n} is too much in silver")
        silver[n] = row
    for n, texts in source.texts.items():
        for i, (kind, text) in enumerate(zip(table.kinds, texts, strict=True)):
            verdict = verdicts[kind.type]
            if n not in silver:
                verdict.fault(f"{table.name} after {phase}: row {n} is missing from silver")
                continue
            cell = table.cell(phase, n, i) or Cell("")
            wanted = None if text is None or cell.lost else expected(kind, cell, text, source.items[n][i])
            if text is not None:
                verdict.counts["values"] += 1
            if silver[n][i] != wanted:
                verdict.fault(
                    f"{table.name} after {phase}: row {n} has {shown(silver[n][i])}, "
                    f"should be {shown(wanted)} for {shown(text)}"
                )
            elif text is not None:
                verdict.counts["misfits" if cell.lost or cell.lost_items else "equal"] += 1


def expected(kind: Kind, cell: Cell, text: str, items: Any) -> Any:
    """Return the comparable value of a text: floats as numbers, arrays by their elements."""
    if kind.silver.startswith("map<"):
        return str(items)
    if not kind.is_array:
        return _FLOATS.get(kind.silver, str)(text)
    read = _FLOATS.get(kind.silver[6:-1], str)
    if kind.silver.startswith("array<map<"):
        read = _map_text
    return tuple(
        None if item is None or at in cell.lost_items else read(item) for at, item in enumerate(items)
    )


def _map_text(item: str) -> str:
    return str(json.loads(item))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row of `_pgdelta/misfits`, the phase found by its LSN."""

    column: str
    key: str | None
    raw_text: str | None
    phase: str
    policy: str


def judge_misfits(
    table: ValueTable,
    sources: Mapping[str, Source],
    rows: list[Any],
    phase_of: Callable[[int], str],
    verdicts: Verdicts,
) -> None:
    """Compare what was recorded of a table with what had to be: each value once, with key and place."""
    found = Counter(
        Misfit(
            row.column_name,
            row.key and json.dumps(json.loads(row.key)),
            row.raw_text,
            phase_of(row.lsn),
            row.policy,
        )
        for row in rows
    )
    wanted: Counter[Misfit] = Counter()
    for phase, written in table.written.items():
        for n, cells in written.items():
            if n not in sources[phase].texts:
                continue  # deleted by the same transaction
            key = json.dumps({"n": str(n)}) if table.role == "plain" else None
            for column, cell, text in zip(table.columns, cells, sources[phase].texts[n], strict=True):
                if cell is not None and (cell.lost or cell.lost_items):
                    wanted[Misfit(column, key, text, phase, "null")] += 1
    for verdict_of, rest in (("is not recorded", wanted - found), ("should not be recorded", found - wanted)):
        for misfit, count in rest.items():
            kind = table.kinds[int(misfit.column[1:])]
            verdicts[kind.type].fault(f"{table.name}: {verdict_of}, {count} times: {shown(misfit)}")
    for misfit, count in found.items():
        verdicts[table.kinds[int(misfit.column[1:])].type].counts["recorded"] += count


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-40:]} ({len(text)} characters)"
