"""Fill values that the source did not send (unchanged TOAST) in rows of mode `append`.

Such a value is that of the newest earlier row of the same key, or of the key before if an update changed it.
That row is in the input or in silver. A value is known by the sequence key of the change that sent it, so
the fold of mode `history` finds these changes without reading a value, and the values are read afterwards:

    asked      one row per step of the input, with typed keys; `unsent` has the columns to fill
    needed     the keys whose earlier rows in silver matter, and the first step that does
    earlier    rows of silver that have such keys, at least; of them only keys, operation and order are read
    sources    for each change with columns to fill, the changes that have their values: r0…
    sent       the values of these changes, from the input or from silver

An earlier row without a value shows that nothing has it: unchanged TOAST is never NULL. Then the value stays
NULL, and `_unchanged` names its column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.engine import Engine
from pipeline.silver.fold.fold import INHERITED, VALUE, Fold, FoldColumn
from pipeline.silver.fold.fold_sql import FoldSql, group_by, select
from pipeline.silver.fold.merge import same_keys
from pipeline.silver.fold.mode_sql import is_unchanged, unchanged_names
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.sql_session import SqlSession, fold_steps, follow_key_changes
from pipeline.silver.fold.unchanged_plan import Filling
from pipeline.silver.fold.write import FOLDED
from pipeline.silver.types.text_parsers import STRING

NEEDED, EARLIER, EARLIER_VALUES = "needed", "earlier", "earlier_values"
_ROW_OPS = "('I', 'U', 'D', 'R')"
_SENT_OPS = "('I', 'U', 'R')"


@dataclass(frozen=True, slots=True)
class EarlierRows:
    """The rows of silver that are searched by key, and its names for their operation and order."""

    fold: Fold
    op: str
    commit_lsn: str
    ordinal: str

    @classmethod
    def of(cls, fold: Fold, metadata: MetadataNames) -> EarlierRows:
        """Return what a fold searches in a table with these names."""
        names = (metadata.name_of(source) for source in ("change_op", "commit_lsn", "ordinal"))
        return cls(fold, *names)

    @property
    def names(self) -> list[str]:
        """The columns that are searched."""
        key = (self.fold.columns[i].name for i in self.fold.key)
        return list(dict.fromkeys((*key, self.op, self.commit_lsn, self.ordinal)))

    @property
    def value_names(self) -> list[str]:
        """The columns that a change that has a value is read with."""
        values = (self.fold.columns[i].name for i in self.fold.partial)
        return list(dict.fromkeys((*values, self.op, self.commit_lsn, self.ordinal)))

    def order(self, engine: Engine, alias: str = "t") -> tuple[str, str]:
        """Return SQL for the commit LSN and the ordinal of a row of silver."""
        quoted = engine.quoted
        return f"{alias}.{quoted(self.commit_lsn)}", f"{alias}.{quoted(self.ordinal)}"

    def matches(self, rows: str, engine: Engine, *columns: str) -> str:
        """Return the query for the columns of rows `t` that have a key of `needed`, `s`."""
        on = same_keys(self.fold, engine)
        condition = f"WHERE t.{engine.quoted(self.op)} IN {_ROW_OPS}"
        return f"{select(*columns, source=f'{rows} AS t JOIN {NEEDED} AS s ON {on}')} {condition}"

    def source(self, engine: Engine, alias: str = "t") -> str:
        """Return SQL for the text that names a row of silver as the source of a value."""
        return _source(*self.order(engine, alias))


class EarlierTable(Protocol):
    """A silver table whose earlier rows are searched."""

    @property
    def session(self) -> SqlSession:
        """The session that gets their relations."""

    def newest_lsn(self, rows: EarlierRows) -> int | None:
        """Return the LSN of the newest change in the table, or a later one, None if it is not known."""

    def define_earlier(self, rows: EarlierRows) -> None:
        """Define `earlier`: `rows.names` of the rows that may be the newest before a step of `needed`."""

    def define_earlier_values(self, rows: EarlierRows, sources: str) -> None:
        """Define `earlier_values`: `rows.value_names`, at least of the rows that a query names as sources."""


def fill_unchanged(
    table: EarlierTable, filling: Filling, fold: Fold, metadata: MetadataNames, *, replaces: bool
) -> None:
    """Define `folded`: the rows of `typed`, which are those of `changes`, with values that were not sent.

    `fold` is that of the rows. Silver's rows are not searched if the step `replaces` them.
    """
    session, sql = table.session, FoldSql(filling.fold, table.session.engine)
    if session.is_empty(f"SELECT 1 AS one FROM changes WHERE {_has_unchanged(sql, filling)}"):
        session.define(FOLDED, "SELECT * FROM typed")
        return
    session.compute("plain_rows", "SELECT * FROM typed")
    session.define("row_changes", _row_changes())
    session.define("sent_steps", sql.steps("row_changes"))
    session.compute("asked", _asked(sql, filling))
    rows = EarlierRows.of(filling.fold, metadata)
    if not replaces:
        session.compute(NEEDED, _needed(sql, table.newest_lsn(rows)))
    searched = None if replaces or session.is_empty(f"SELECT 1 AS one FROM {NEEDED}") else rows
    if searched is not None:
        table.define_earlier(searched)
    _define_sources(session, sql, filling, searched)
    session.compute("sent", _sent(table, sql, searched))
    session.compute(FOLDED, _filled(sql, fold))


def _row_changes() -> str:
    """Return the query for the changes of rows; copied ones are inserts."""
    columns = (
        "commit_lsn",
        "ordinal",
        "commit_time",
        "CASE WHEN op = 'R' THEN 'I' ELSE op END AS op",
        "relation_version",
        "old_kind",
        "old",
        "new",
        "unsent",
    )
    return f"{select(*columns, source='changes')} WHERE op IN {_ROW_OPS}"


def _is_asked(sql: FoldSql, filling: Filling, i: int) -> str:
    asked = is_unchanged(sql, i)
    return asked if filling.last_lsn is None else f"{asked} AND commit_lsn <= {int(filling.last_lsn)}"


def _has_unchanged(sql: FoldSql, filling: Filling) -> str:
    """Return SQL that is true for changes with a column to fill."""
    asked = " OR ".join(f"({_is_asked(sql, filling, i)})" for i in filling.fold.partial)
    return f"op = 'U' AND ({asked})"


def _source(commit_lsn: str, ordinal: str) -> str:
    return f"concat({commit_lsn}, ':', {ordinal})"


def _asked(sql: FoldSql, filling: Filling) -> str:
    fold, engine = filling.fold, sql.engine
    keys = (
        f"{fold.columns[i].type.value(name, engine)} AS {name}"
        for name, i in zip(fold.key_names, fold.key, strict=True)
    )
    asked = (
        f"CASE WHEN {_is_asked(sql, filling, i)} THEN {number} END" for number, i in enumerate(fold.partial)
    )
    columns = ("sequence_key", "is_key_change", "step", "commit_lsn", "commit_time")
    unsent = f"{engine.filter(engine.array(*asked), 'e IS NOT NULL')} AS unsent"
    found = select(*keys, *columns, unsent, source="sent_steps")
    # silver cannot hold a key that is NULL here
    has_key = " AND ".join(f"{name} IS NOT NULL" for name in fold.key_names)
    return f"SELECT * FROM ({found}) AS a WHERE {has_key}"


def _needed(sql: FoldSql, newest_lsn: int | None) -> str:
    """Return the query for the keys at which a step asks for values that no step before it has."""
    fold, engine = sql.fold, sql.engine
    asks = f"{engine.size('unsent')} > 0 AND (step = 'U' OR (step = 'D' AND is_key_change))"
    has_all = f"step IN ('I', 'K') OR (step = 'U' AND {engine.size('unsent')} = 0)"
    grouped = select(
        *fold.key_names,
        f"min(CASE WHEN {asks} THEN sequence_key END) AS first_asked",
        f"min(CASE WHEN {has_all} THEN sequence_key END) AS first_known",
        source="asked",
    ) + group_by(fold.key_names)
    # a copied row may be later than a change of the input
    newest = "true" if newest_lsn is None else f"{newest_lsn} >= first_known.commit_lsn"
    columns = ("first_asked.commit_lsn AS asked_lsn", "first_asked.ordinal AS asked_ordinal")
    return (
        f"{select(*fold.key_names, *columns, source=f'({grouped}) AS g')} WHERE first_asked IS NOT NULL "
        f"AND (first_known IS NULL OR first_asked < first_known OR {newest})"
    )


def _reference_fold(fold: Fold) -> Fold:
    """Return the fold whose texts name the changes that have values; its last key counts the gaps before."""
    keys = [FoldColumn(f"key {i}", STRING, {}) for i in range(len(fold.key) + 1)]
    values = [FoldColumn(f"value {i}", STRING, {0: i}, is_partial=True) for i in range(len(fold.partial))]
    return Fold(
        (*keys, *values),
        tuple(range(len(keys))),
        (0,),
        has_key_changes=fold.has_key_changes,
        mode="history",
        has_intermediate=True,
    )


def _define_sources(session: SqlSession, sql: FoldSql, filling: Filling, rows: EarlierRows | None) -> None:
    """Define `sources`: the changes of the input with columns to fill, and what has their values."""
    references = _reference_fold(filling.fold)
    found = FoldSql(references, sql.engine)
    session.compute("steps", _reference_steps(sql, references, filling, rows))
    fold_steps(session, found)
    resolved = "by_key"
    inherits = " OR ".join(f"s{i} = {INHERITED}" for i in references.partial)
    if not session.is_empty(f"SELECT 1 AS one FROM by_key WHERE op = 'U' AND ({inherits})"):
        follow_key_changes(session, found)
        resolved = "inherited"
    own = _source("commit_lsn", "valid_from_ordinal")
    columns = [
        f"CASE WHEN s{i} = {VALUE} AND x{i} <> {own} THEN x{i} END AS r{number}"
        for number, i in enumerate(references.partial)
    ]
    named = select(
        "commit_lsn", "valid_from_ordinal AS ordinal", *columns, source=f"{resolved} WHERE op = 'U'"
    )
    has_source = " OR ".join(f"r{number} IS NOT NULL" for number in range(len(columns)))
    session.compute("sources", f"SELECT * FROM ({named}) AS n WHERE {has_source}")


def _reference_steps(sql: FoldSql, references: Fold, filling: Filling, rows: EarlierRows | None) -> str:
    """Return the steps of the input and of silver's earlier rows; each has its own name as every value."""
    fold, engine = filling.fold, sql.engine
    last_key, count = references.key_names[-1], len(references.partial)

    def gaps(commit_lsn: str) -> str:
        passed = " ".join(f"+ CAST({commit_lsn} > {int(lsn)} AS INT)" for lsn in filling.gap_lsns)
        return f"CAST(0 AS INT) {passed} AS {last_key}"

    own = _source("sequence_key.commit_lsn", "sequence_key.ordinal")
    of_input = select(
        *fold.key_names,
        gaps("commit_lsn"),
        "sequence_key",
        "is_key_change",
        "step",
        "commit_lsn",
        "commit_time",
        "CAST(0 AS BIGINT) AS relation_version",
        f"{engine.array(*[own] * count)} AS new",
        "unsent",
        source="asked",
    )
    if rows is None:
        return of_input
    commit_lsn, ordinal = rows.order(engine)
    part = {"commit_lsn": commit_lsn, "ordinal": ordinal, "part": "CAST(0 AS INT)"}
    of_silver = rows.matches(
        EARLIER,
        engine,
        *(f"s.{name} AS {name}" for name in fold.key_names),
        gaps(commit_lsn),
        f"{engine.struct(part)} AS sequence_key",
        "false AS is_key_change",
        f"CASE WHEN t.{engine.quoted(rows.op)} = 'D' THEN 'D' ELSE 'I' END AS step",
        f"{commit_lsn} AS commit_lsn",
        f"{engine.null('TIMESTAMP')} AS commit_time",
        "CAST(0 AS BIGINT) AS relation_version",
        f"{engine.array(*[rows.source(engine)] * count)} AS new",
        f"{engine.cast(engine.array(), 'ARRAY<INT>')} AS unsent",
    )
    return f"{of_input} UNION ALL {of_silver}"


def _sent(table: EarlierTable, sql: FoldSql, rows: EarlierRows | None) -> str:
    """Return the query for the values v0… of the changes that `sources` names, one row for each."""
    fold, engine = sql.fold, sql.engine
    named = " UNION ".join(
        f"SELECT r{number} AS source FROM sources WHERE r{number} IS NOT NULL"
        for number in range(len(fold.partial))
    )
    of_input = select(
        f"{_source('p.commit_lsn', 'p.ordinal')} AS source",
        *(f"p.c{i} AS v{number}" for number, i in enumerate(fold.partial)),
        source=f"plain_rows AS p WHERE p.change_op IN {_SENT_OPS}",
    )
    found = of_input
    if rows is not None:
        table.define_earlier_values(rows, named)
        of_silver = select(
            f"{rows.source(engine)} AS source",
            *(
                f"t.{engine.quoted(fold.columns[i].name)} AS v{number}"
                for number, i in enumerate(fold.partial)
            ),
            source=f"{EARLIER_VALUES} AS t WHERE t.{engine.quoted(rows.op)} IN {_SENT_OPS}",
        )
        found = f"{of_input} UNION ALL {of_silver}"
    values = (f"any_value(f.v{number}) AS v{number}" for number in range(len(fold.partial)))
    joined = f"({found}) AS f JOIN ({named}) AS n ON f.source = n.source"
    return f"{select('f.source AS source', *values, source=joined)} GROUP BY f.source"


def _filled(sql: FoldSql, fold: Fold) -> str:
    """Return the rows of `plain_rows` with the values of `sent`; only columns without any are unchanged."""
    engine, partial = sql.engine, sql.fold.partial
    joins, values = "", {}
    for number, i in enumerate(partial):
        joins += f" LEFT JOIN sent AS v{number} ON n.r{number} = v{number}.source"
        values[i] = f"CASE WHEN n.r{number} IS NULL THEN p.c{i} ELSE v{number}.v{number} END"
    columns = [f"p.{name} AS {name}" for name in ("op", "commit_lsn", "commit_time")]
    columns += [f"{values.get(i, f'p.c{i}')} AS c{i}" for i in range(len(fold.columns))]
    columns += [f"p.s{i} AS s{i}" for i in fold.partial]
    columns += [f"p.x{i} AS x{i}" for i, column in enumerate(fold.columns) if not column.type.is_total]
    columns += [f"p.{name} AS {name}" for name in ("change_op", "ordinal", "old_values")]
    listed = {}
    for i in partial:
        name = engine.literal(fold.columns[i].name)
        listed[i] = f"{engine.contains('p.unchanged', name)} AND {_is_null(fold, values, i)}"
    columns.append(f"{unchanged_names(fold, engine, listed)} AS unchanged")
    on = "p.commit_lsn = n.commit_lsn AND p.ordinal = n.ordinal"
    return select(*columns, source=f"plain_rows AS p LEFT JOIN sources AS n ON {on}{joins}")


def _is_null(fold: Fold, values: Mapping[int, str], i: int) -> str:
    """Return SQL that is true if a column has no value, and no column has it as a misfit's text either."""
    column = fold.columns[i]
    same = (n for n in values if fold.columns[n].is_sidecar and fold.columns[n].indexes == column.indexes)
    return " AND ".join(f"({values[n]}) IS NULL" for n in (i, *same))
