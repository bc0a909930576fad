"""Run the SQL of the fold in an engine: relations by name, and the order in which they are made.

A session holds the relations of one write. `define` names a query, `compute` also computes it only once.
`clear` forgets all relations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from pipeline.engine import SPARK, Engine
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.mirror_sql import folded_rows, newest_steps
from pipeline.silver.fold.mode_sql import soft_deletes, versions, with_moves, with_truncates


class SqlSession(ABC):
    """Relations of one engine."""

    engine: Engine
    has_many = False  # changes: so many that one more query of DuckDB costs less than copies of their tuples

    @abstractmethod
    def define(self, name: str, query: str) -> None:
        """Name a query; a relation with the name is replaced."""

    @abstractmethod
    def compute(self, name: str, query: str) -> None:
        """Name a query whose rows are computed once."""

    @abstractmethod
    def row(self, query: str) -> Any:
        """Return the one row of a query, with its columns as attributes."""

    @abstractmethod
    def is_empty(self, query: str) -> bool:
        """Return whether a query has no rows."""

    @abstractmethod
    def table(self, query: str) -> Any:
        """Return the rows of a query, in the engine's form: a DataFrame of Spark or an Arrow table."""

    def batches(self, query: str, row_count: int) -> Iterator[Any]:
        """Yield the rows of a query like `table`, maybe so many at a time; meanwhile run no other query."""
        yield self.table(query)

    @abstractmethod
    def clear(self) -> None:
        """Forget all relations."""


def fold_by_key(session: SqlSession, sql: FoldSql) -> None:
    """Fold `changes`: define `steps` and `by_key`, one row per key, or in history per version."""
    has_truncates = bool(sql.fold.truncates)
    session.define("sent_steps" if has_truncates else "steps", sql.steps("changes"))
    if has_truncates:
        session.define("steps", with_truncates(sql, "sent_steps"))
    fold_steps(session, sql)


def fold_steps(session: SqlSession, sql: FoldSql) -> None:
    """Fold `steps`: define `by_key`, one row per key, or in history per version."""
    match sql.fold.mode:
        case "history":
            session.compute("by_key", versions(sql, "steps"))
        case "soft_delete":
            session.define("by_key", soft_deletes(sql, "steps"))
        case _:
            many = session.has_many
            name = session.compute if many else session.define
            name("newest_steps", newest_steps(sql, "steps", looks_up=many))
            session.define("by_key", folded_rows(sql, "newest_steps", "steps", looks_up=many))


def follow_key_changes(session: SqlSession, sql: FoldSql) -> None:
    """Resolve what `by_key` inherits by key changes: define `moved`, typed, with the keys of silver's rows.

    A column in state FROM_SILVER has its value in the silver row with the base key.
    """
    segments = "segments"
    session.compute(segments, sql.segments("steps"))
    number = 0
    while not session.is_empty(sql.inheriting(segments)):
        number += 1
        session.compute(f"segments_{number}", sql.inherit(segments))
        segments = f"segments_{number}"
    if sql.fold.mode == "history":
        session.define("inherited", with_moves(sql, "by_key", segments))
    else:
        session.define("followed", sql.followed(segments))
        session.define("inherited", sql.with_key_changes("by_key", "followed"))
    session.define("moved", sql.typed("inherited", has_base_keys=True))


def net_images(session: SqlSession, sql: FoldSql) -> None:
    """Fold `changes` as a multiset: define `signed`, and `net`, how many rows of each image they leave."""
    (version,) = sql.fold.versions
    session.define("signed", sql.signed_rows("changes", version))
    # Spark reads it once
    name = session.define if session.engine is SPARK else session.compute
    name("net", sql.net_counts("signed"))


def count_images(session: SqlSession, sql: FoldSql, silver: str | None) -> None:
    """Define `counted`: `net` with the number of each image's rows in silver, and their number afterwards."""
    session.compute("counted", sql.with_silver_counts("net", silver))
