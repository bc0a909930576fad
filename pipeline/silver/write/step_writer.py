"""Carry out planned writes: fold the changes of a step, and commit them to the silver table once.

By key this is a merge of at most one row per key, by complete rows a merge that removes and adds equal rows,
otherwise an append or an overwrite. Misfits, and values that neither the stream nor silver has, are recorded
before the commit. The fold runs in the engine of a session, the commit is that of a target: Spark's
(`spark_target`), or one without Spark (`native_target`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.bronze.table_input import TruncatedAt
from pipeline.delta.data_files import TooLargeError
from pipeline.delta.txn import TableCommit
from pipeline.engine import SPARK, Engine
from pipeline.errors import LakeError
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.silver.fold import write as write_module
from pipeline.silver.fold.fold import FROM_SILVER, INHERITED, UNKNOWN, Fold
from pipeline.silver.fold.fold_sql import ABSENT, FoldSql
from pipeline.silver.fold.merge import current_rows, same_keys
from pipeline.silver.fold.mode_sql import appended, compared
from pipeline.silver.fold.sql_session import (
    SqlSession,
    count_images,
    fold_by_key,
    follow_key_changes,
    net_images,
)
from pipeline.silver.fold.unchanged_values import EarlierRows, fill_unchanged
from pipeline.silver.fold.write import (
    FOLDED,
    KeyRangesUnusable,
    Write,
    WriteKind,
    bounds_are_values,
    key_range_condition,
    keyless,
)
from pipeline.silver.fold.write_plan import Identity
from pipeline.table_name import TableName
from pipeline.units import format_count, format_names

_MAX_MISFIT_BYTES = 16 << 20  # in memory; more are left to Spark
_BATCH_VALUES = 1 << 20  # of the rows that are written at a time: some 16 MiB, a row group


class KeyNotSentError(LakeError):
    """An update or delete was sent without its key, so that silver cannot find its row."""


class Target(ABC):
    """A silver table as the target of a write; `session` has the relations that it reads."""

    session: SqlSession

    def key_aggregates(self, fold: Fold) -> Mapping[str, str]:
        """Return SQL of aggregates over `folded` by alias: their values show which rows may be merged."""
        return {}

    @abstractmethod
    def define_silver(
        self, fold: Fold, aggregates: Mapping[str, Any] | None = None, *, with_values: bool = False
    ) -> None:
        """Define `silver`: its rows, or at least those that have the keys of `folded`.

        `aggregates` are the values of `key_aggregates` if they are known. Rows have their keys and, with
        values, the columns that changes may not send.
        """

    @abstractmethod
    def define_whole_silver(self, fold: Fold) -> None:
        """Define `silver`: all its rows, but maybe without versions that are over."""

    @abstractmethod
    def define_silver_rows(self, fold: Fold) -> None:
        """Define `silver`: its rows, or at least those that equal images of `net` which are reduced."""

    @abstractmethod
    def newest_lsn(self, rows: EarlierRows) -> int | None:
        """Return the LSN of the newest change in the table, or a later one, None if it is not known."""

    @abstractmethod
    def define_earlier(self, rows: EarlierRows) -> None:
        """Define `earlier`: rows of the table, at least the newest of each key before a step of `needed`.

        They have `rows.names`.
        """

    @abstractmethod
    def define_earlier_values(self, rows: EarlierRows, sources: str) -> None:
        """Define `earlier_values`: rows of the table, at least those that a query names as sources.

        They have `rows.value_names`.
        """

    @abstractmethod
    def commit_rows(self, write: Write, fold: Fold) -> None:
        """Append the rows of `folded`, or replace the table's rows or those of key ranges by them."""

    @abstractmethod
    def commit_merge(self, write: Write, fold: Fold, aggregates: Mapping[str, Any]) -> None:
        """Merge the rows of `folded` by key; `aggregates` are the values of `key_aggregates`."""

    @abstractmethod
    def commit_multiset(self, write: Write, fold: Fold) -> None:
        """Add the rows of `folded`, and remove those that `counted` has fewer of."""


class StepWriter:
    """Carries out the writes of one silver table; the session has a relation `changes` of each."""

    def __init__(self, target: Target, records: Records, name: TableName) -> None:
        self._target = target
        self._session = target.session
        self._records = records
        self._name = name
        self.missing_values = 0  # values that neither the stream nor the table has

    def write(self, write: Write) -> int:
        """Write the changes of one step in one commit; return the number of misfits.

        Raises KeyRangesUnusable if silver's types cannot hold the bounds of copied key ranges.
        """
        if write.kind is WriteKind.COMPARE:
            return self._write_later_copy(write)
        if write.only_adds or write.filling is not None or write.kind is WriteKind.REPLACE_KEYS:
            return self._write_rows(write)
        if write.step.identity is Identity.WHOLE_ROW:
            return self._write_multiset(write)
        return self._write_by_key(write)

    def _sql(self, fold: Fold) -> FoldSql:
        return FoldSql(fold, self._session.engine)

    def _write_by_key(self, write: Write) -> int:
        fold, session = write.fold, self._session
        sql = self._sql(fold)
        self._fold_by_key(sql)
        session.compute(FOLDED, sql.typed("by_key"))
        aggregates = self._target.key_aggregates(fold) if write.kind is WriteKind.MERGE else {}
        found = self._inspect(fold, aggregates=aggregates)
        if found.inherits:
            self._target.define_silver(fold, with_values=True)
            follow_key_changes(session, sql)
            silver = "silver"
            if fold.mode == "history":
                silver = f"(SELECT * FROM silver AS t WHERE {current_rows(fold, session.engine)}) AS t"
            session.compute(FOLDED, sql.from_silver("moved", silver))
            found = self._inspect(fold, aggregates=aggregates)
        self._refuse_lost_keys(found, "by_key", fold)
        key = [fold.columns[i].name for i in fold.key]
        self._record_misfits(FOLDED, fold, found.misfits, key)
        self.missing_values += found.unknown
        if found.keeps:
            is_new = write.kind is not WriteKind.MERGE
            self._record_missing_values(fold, key, found.aggregates, is_new=is_new)
        if write.kind is WriteKind.MERGE:
            self._target.commit_merge(write, fold, found.aggregates)
        else:
            self._target.commit_rows(write, fold)
        return found.misfits

    def _fold_by_key(self, sql: FoldSql) -> None:
        """Define `by_key`; raise LakeError if several of its keys are one in silver."""
        fold, session = sql.fold, self._session
        fold_by_key(session, sql)
        if not fold.may_merge_keys:
            return
        kinds = [(name, fold.columns[i].type) for name, i in zip(fold.key_names, fold.key, strict=True)]
        values = [
            kind.comparable(f"({kind.value(name, session.engine)})", session.engine) for name, kind in kinds
        ]
        keys = f"SELECT DISTINCT {', '.join(fold.key_names)} FROM by_key"
        whole = " AND ".join(f"{value} IS NOT NULL" for value in values)
        if not session.is_empty(
            f"SELECT 1 AS one FROM ({keys}) AS f WHERE {whole} "
            f"GROUP BY {', '.join(values)} HAVING count(*) > 1"
        ):
            raise LakeError(
                f"Table {self._name}: several of its keys are one value of silver's type. Run "
                f"{self._name.command('resync')}, or set tables[].types of the key's columns to STRING and "
                f"run {self._name.command('rebuild')}."
            )

    def _write_later_copy(self, write: Write) -> int:
        """Write what differs between the rows of a copy and those that silver shows.

        A copy with values that neither it nor the changes meanwhile have is not compared.
        """
        fold, merged, session = write.fold, write.merged, self._session
        assert merged is not None
        sql = self._sql(fold)
        self._fold_by_key(sql)
        session.compute("copied", sql.typed("by_key"))
        found = self._inspect(fold, "copied")
        if found.inherits:
            follow_key_changes(session, sql)
            session.compute("copied", sql.from_silver("moved", self._no_rows(fold)))
            found = self._inspect(fold, "copied")
        self._refuse_lost_keys(found, "by_key", fold, "copied")
        if found.unknown or found.keeps:
            self.missing_values += max(found.unknown, 1)
            return 0
        self._target.define_whole_silver(merged)
        mark = TruncatedAt(int(write.step.end_lsn), 0, write.step.micros)
        session.compute(FOLDED, compared(self._sql(merged), "copied", mark))
        found = self._inspect(merged)
        self._record_misfits(FOLDED, merged, found.misfits, [fold.columns[i].name for i in fold.key])
        self._target.commit_merge(write, merged, {})
        return found.misfits

    def _no_rows(self, fold: Fold) -> str:
        """Return a relation with the columns of silver's rows, and none of these."""
        self._target.define_whole_silver(fold)
        return "(SELECT * FROM silver WHERE false) AS t"

    def _write_multiset(self, write: Write) -> int:
        session, plain = self._session, keyless(write.fold)
        merges = write.kind is WriteKind.MERGE_ROWS
        sql = self._sql(write.fold)
        net_images(session, sql)
        if merges:
            self._target.define_silver_rows(write.fold)
        count_images(session, sql, "silver" if merges else None)
        self._record_absent(write.commit)
        session.define("added", sql.added_rows("counted"))
        session.define(FOLDED, self._sql(plain).typed("added"))
        misfits = self._record_misfits_of_rows(plain, sql)
        if merges:
            self._target.commit_multiset(write, plain)
        else:
            self._target.commit_rows(write, plain)
        return misfits

    def _write_rows(self, write: Write) -> int:
        """Write rows as they are: they are added, or replace those of the table or of key ranges."""
        fold, session = write.fold, self._session
        sql = self._sql(fold)
        session.define("inserted", _added(sql))
        if write.filling is None:
            session.define(FOLDED, sql.typed("inserted"))
        else:
            session.define("typed", sql.typed("inserted"))
            replaces = write.kind is WriteKind.OVERWRITE
            fill_unchanged(self._target, write.filling, fold, write.metadata, replaces=replaces)
        found = self._inspect(fold)
        self._refuse_lost_keys(found, FOLDED, fold)
        key = [fold.columns[i].name for i in fold.key]
        if write.kind is WriteKind.REPLACE_KEYS:
            self._require_usable_ranges(write)
        self._record_misfits(FOLDED, fold, found.misfits, key)
        self._target.commit_rows(write, fold)
        return found.misfits

    def write_chunks(
        self,
        write: Write,
        chunks: Iterable[object],
        adding: AbstractContextManager[Callable[[pa.Table], None]],
    ) -> int:
        """Write like `write`, in one commit, a step that `is_read_once`; `changes` has each chunk's rows.

        `adding` gives what adds rows, and commits them. Memory holds some rows at a time. Raises
        TooLargeError if there are too many misfits.
        """
        import pyarrow.compute as pc

        fold, session = write.fold, self._session
        sql = self._sql(fold)
        key = [fold.columns[i].name for i in fold.key]
        is_lost = "is_lost"
        while is_lost in {name.lower() for name in write.columns}:
            is_lost += "_"
        condition = write_module.has_misfit(fold, session.engine)
        rows = sql.final_rows(FOLDED, write.metadata, {is_lost: f"coalesce({condition}, false)"})
        shown = f"(SELECT * FROM {FOLDED} WHERE op <> 'D') AS f"
        misfits: list[pa.Table] = []
        with adding as add:
            for _ in chunks:
                self._define_read_once(write, sql)
                has_losses = False
                for found in session.batches(rows, max(1, _BATCH_VALUES // len(write.columns))):
                    add(found)
                    has_losses = has_losses or pc.any(found.column(is_lost)).as_py()
                if not has_losses:
                    continue
                self._refuse_lost_keys(self._inspect(fold), FOLDED, fold)
                misfits.append(session.table(self._misfits(shown, fold, key)))
                if sum(each.nbytes for each in misfits) > _MAX_MISFIT_BYTES:
                    raise TooLargeError(f"more than {_MAX_MISFIT_BYTES} bytes of misfits")
            if misfits:
                self._records.misfits.record_rows(pa.concat_tables(misfits))
        return sum(each.num_rows for each in misfits)

    def _define_read_once(self, write: Write, sql: FoldSql) -> None:
        """Define `folded` for `write_chunks`; raise LakeError if a key does not fit, also one that goes."""
        fold, session = write.fold, self._session
        if write.only_adds:
            session.define("inserted", _added(sql))
            session.define(FOLDED, sql.typed("inserted"))
            return
        fold_by_key(session, sql)
        session.define(FOLDED, sql.typed("by_key"))
        keys = zip(fold.key_names, fold.key, strict=True)
        values = (fold.columns[i].type.value(f"f.{name}", session.engine) for name, i in keys)
        lost = " OR ".join(f"({value}) IS NULL" for value in values)
        if not session.is_empty(f"SELECT 1 AS one FROM newest_steps AS f WHERE {lost}"):
            self._refuse_lost_keys(self._inspect(fold), "by_key", fold)

    def _require_usable_ranges(self, write: Write) -> None:
        """Raise KeyRangesUnusable unless silver can hold the bounds and finds all copied rows in them."""
        step, engine = write.step, self._session.engine
        rows = self._sql(write.fold).final_rows(FOLDED, write.metadata)
        condition = key_range_condition(write.fold, step.key_types, step.key_ranges, engine)
        bounds = bounds_are_values(write.fold, step.key_ranges, engine)
        are_values = self._session.row(f"SELECT {bounds} AS are_values").are_values
        if not are_values or not self._session.is_empty(
            f"SELECT 1 AS one FROM ({rows}) AS r WHERE NOT coalesce({condition}, false)"
        ):
            raise KeyRangesUnusable

    def _record_absent(self, commit: TableCommit) -> None:
        """Record that silver lacks rows that updates or deletes refer to."""
        query = f"SELECT CAST(coalesce(sum({ABSENT}), 0) AS BIGINT) AS absent FROM counted"
        if count := self._session.row(query).absent:
            sentence = (
                f"Silver lacks {format_count(count, 'row')} that updates or deletes under REPLICA "
                "IDENTITY FULL "
                "refer to: they were never copied, or have other values in silver, or their partition has "
                "another replica identity. Give every partition REPLICA IDENTITY FULL, then run "
                f"{self._name.command('resync')}."
            )
            self._records.events.record([Event(*self._name, commit.lsn, "diverged", sentence)])

    def _record_misfits_of_rows(self, fold: Fold, sql: FoldSql) -> int:
        """Record the misfits of added rows, also if silver has equal rows already; return their number."""
        engine = self._session.engine
        misfits = [
            misfit
            for i, column in enumerate(fold.columns)
            if (misfit := column.type.misfit(f"x{i}", f"({column.type.value(f'x{i}', engine)})", engine))
        ]
        if not misfits:
            return 0
        self._session.define("misfitting", f"SELECT * FROM signed WHERE {' OR '.join(misfits)}")
        self._session.define("surviving", sql.surviving_rows("misfitting"))
        self._session.compute("lost", self._sql(fold).typed("surviving"))
        count = self._inspect(fold, "lost").misfits
        self._record_misfits("lost", fold, count, [])
        return count

    def _refuse_lost_keys(self, found: _Found, texts: str, fold: Fold, typed: str = FOLDED) -> None:
        """Raise LakeError if rows have no key in silver; `texts` has the key texts, `typed` their values.

        It is a KeyNotSentError if an update or delete was sent without its key.
        """
        if not found.lost_keys:
            return
        missing = " OR ".join(f"{key} IS NULL" for key in fold.key_names)
        if not self._session.is_empty(f"SELECT 1 AS one FROM {texts} WHERE op = 'D' AND ({missing})"):
            raise KeyNotSentError(
                f"Table {self._name} is held: an update or delete has no key, because a partition has "
                "another replica identity than the table. Run ALTER TABLE … REPLICA IDENTITY FULL for each "
                f"partition that pgdelta check names, then {self._name.command('resync')}."
            )
        flags = ", ".join(f"coalesce(bool_or({key} IS NULL), false) AS {key}" for key in fold.key_names)
        lost = self._session.row(f"SELECT {flags} FROM {typed}")
        keys = zip(fold.key_names, fold.key, strict=True)
        columns = [fold.columns[i].name for key, i in keys if getattr(lost, key)]
        raise LakeError(
            f"Table {self._name}: {format_count(found.lost_keys, 'row', 'has', 'have')} a key that its silver"
            f" type cannot hold. Set tables[].types of {format_names(columns)} to STRING, or leave that out"
            f" of partition_by, then run {self._name.command('rebuild')}."
        )

    def _record_missing_values(
        self, fold: Fold, key: list[str], aggregates: Mapping[str, Any], *, is_new: bool
    ) -> None:
        """Record values that were not sent, of rows that silver does not have: they become NULL."""
        query = f"SELECT * FROM {FOLDED} WHERE op = 'U' AND ({_keeps(fold)})"
        if not is_new:
            self._target.define_silver(fold, aggregates)
            # in a subquery of Spark `s.k0` would be a field of silver's column `s`
            same = same_keys(fold, self._session.engine)
            query = f"SELECT s.* FROM ({query}) AS s ANTI JOIN silver AS t ON {same}"
        self._session.compute("unsent_rows", query)
        count = int(self._session.row("SELECT count(*) AS rows FROM unsent_rows").rows)
        self.missing_values += count
        sql = self._sql(fold)
        self._session.define("unknown_rows", sql.with_unknown("unsent_rows"))
        self._record_misfits("unknown_rows", fold, count, key)

    def _record_misfits(self, source: str, fold: Fold, count: int, key: list[str]) -> None:
        if not count:
            return
        misfits, found = self._records.misfits, self._session.table(self._misfits(source, fold, key))
        if self._session.engine is SPARK:
            misfits.record(found)
        else:
            misfits.record_rows(found)

    def _misfits(self, source: str, fold: Fold, key: list[str]) -> str:
        """Return the query for the misfits of folded rows, as they are recorded."""
        engine = self._session.engine
        literal = engine.literal
        texts = [(literal(name), _key_text(fold, i, engine)) for i, name in enumerate(key)]
        misfits = write_module.misfits(fold, engine)
        assert misfits is not None
        exploded = f"SELECT *, {engine.explode(misfits)} AS misfit FROM {source}"
        return (
            f"SELECT {literal(self._name.schema)} AS schema_name, {literal(self._name.table)} AS table_name, "
            f"misfit.column_name AS column_name, {_json_of(texts, engine)} AS key, "
            "misfit.raw_text AS raw_text, commit_lsn AS lsn, misfit.policy AS policy "
            f"FROM ({exploded}) AS e"
        )

    def _inspect(
        self, fold: Fold, source: str = FOLDED, aggregates: Mapping[str, str] | None = None
    ) -> _Found:
        """Count, in one scan of the folded rows, what needs more work and what does not fit."""
        engine = self._session.engine
        # only versions have the other state before they inherit
        inherits = " OR ".join(f"s{i} IN ({INHERITED}, {FROM_SILVER})" for i in fold.partial) or "false"
        lost = " OR ".join(f"{name} IS NULL" for name in fold.key_names) or "false"
        unknown = " OR ".join(f"s{i} = {UNKNOWN}" for i in fold.partial if fold.columns[i].indexes) or "false"
        misfits = write_module.misfit_count(fold, engine)
        others = "".join(f", {sql} AS {alias}" for alias, sql in (aggregates or {}).items())
        row = self._session.row(
            f"SELECT coalesce(bool_or(op = 'U' AND ({inherits})), false) AS inherits, "
            f"coalesce(bool_or(op = 'U' AND ({_keeps(fold)})), false) AS keeps, "
            f"CAST({misfits} AS BIGINT) AS misfits, "
            f"count(CASE WHEN {lost} THEN 1 END) AS lost_keys, "
            f"count(CASE WHEN op <> 'D' AND ({unknown}) THEN 1 END) AS unknown{others} FROM {source}"
        )
        values = {alias: getattr(row, alias) for alias in aggregates or {}}
        return _Found(row.inherits, row.keeps, row.misfits, row.lost_keys, row.unknown, values)


@dataclass(frozen=True, slots=True)
class _Found:
    inherits: bool  # some column has its value at the old key of a key change
    keeps: bool  # some column keeps silver's value
    misfits: int
    lost_keys: int  # rows whose key does not fit
    unknown: int  # rows with a value that was not sent
    aggregates: Mapping[str, Any]  # values by alias


def _added(sql: FoldSql) -> str:
    """Return the query for the rows that a step adds."""
    return appended(sql, "changes") if sql.fold.mode == "append" else sql.inserted("changes")


def _json_of(texts: list[tuple[str, str]], engine: Engine) -> str:
    """Return SQL for the JSON object of names and texts, NULL without any."""
    if not texts:
        return engine.null("STRING")
    pairs = ", ".join(f"{name}, {text}" for name, text in texts)
    return f"to_json(map({pairs}))" if engine is SPARK else f"CAST(json_object({pairs}) AS VARCHAR)"


def _key_text(fold: Fold, i: int, engine: Engine) -> str:
    """Return SQL for a key column's value as text, different for different values."""
    kind = fold.columns[fold.key[i]].type
    if kind.ddl == "BINARY":
        return f"concat({engine.literal(chr(92) + 'x')}, lower(hex(k{i})))"
    if kind.ddl == "TIMESTAMP" and engine is not SPARK:
        return f"CAST(k{i} AT TIME ZONE 'UTC' AS VARCHAR)"  # without the zone, as in Spark
    plain = kind.element is None and kind.is_comparable
    return engine.cast(f"k{i}", "STRING") if plain else kind.canonical_value(f"k{i}", engine)


def _keeps(fold: Fold) -> str:
    """Return SQL that is true if a column of the relation keeps silver's value."""
    columns = (i for i in fold.partial if fold.columns[i].indexes)
    return " OR ".join(f"s{i} IS NULL" for i in columns) or "false"
