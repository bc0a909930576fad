"""Key changes: unchanged TOAST comes from the row at the old key, however far back, all in the engine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from math import ceil, log2
from typing import Any

import pytest

from pipeline.silver.fold import write
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import FROM_SILVER, UNKNOWN, VALUE, Fold, FoldColumn
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.spark_sql import SparkSql
from pipeline.silver.fold.sql_session import SqlSession, fold_by_key, follow_key_changes
from pipeline.silver.types.text_parsers import INT, STRING
from tests.support.silver.folding import CHANGES, SOME_TIME, add_rows, rows_of
from tests.support.silver.small_session import ENGINES

FOLD = Fold(
    (FoldColumn("id", INT, {1: 0}), FoldColumn("v", STRING, {1: 1}), FoldColumn("big", STRING, {1: 2}, True)),
    (0,),
    (1,),
)
# One version more: `extra` was added with a default.
EVOLVED = Fold(
    (
        FoldColumn("id", INT, {1: 0, 2: 0}),
        FoldColumn("v", STRING, {1: 1, 2: 1}),
        FoldColumn("big", STRING, {1: 2, 2: 2}, True),
        FoldColumn("extra", STRING, {2: 3}, True, "seven"),
    ),
    (0,),
    (1, 2),
)
NOT_SENT = object()
SPAN = 1000  # of the keys of a case


def insert(key: int, *values: Any) -> tuple[Any, ...]:
    return "I", None, key, values


def update(key: int, *values: Any, old: int | None = None) -> tuple[Any, ...]:
    return "U", old, key, values


def delete(key: int) -> tuple[Any, ...]:
    return "D", key, None, ()


def add_changes(session: SqlSession, changes: Sequence[tuple[Any, ...]]) -> None:
    rows = []
    for ordinal, (op, old, new, values) in enumerate(changes):
        width = 1 + len(values)
        sent = [None if v is NOT_SENT else v for v in values]
        rows.append(
            (
                100,
                ordinal,
                SOME_TIME,
                op,
                1 if width < 4 else 2,
                None if old is None else "K",
                None if old is None else [str(old), *[None] * (width - 1)],
                None if new is None else [str(new), *sent],
                [i for i, v in enumerate(values, 1) if v is NOT_SENT] or None,
            )
        )
    add_rows(session, "changes", rows, CHANGES)


def follow(session: SqlSession, fold: Fold = FOLD) -> FoldSql:
    """Fold `changes`: define `inherited` and `moved`."""
    sql = FoldSql(fold, session.engine)
    fold_by_key(session, sql)
    follow_key_changes(session, sql)
    return sql


def folded(session: SqlSession, *changes: tuple[Any, ...], fold: Fold = FOLD) -> dict[int, str]:
    """Return the fold of each key: `D`, or the partial columns as state, base key and text."""
    add_changes(session, changes)
    follow(session, fold)
    found = {}
    for row in rows_of(session, "SELECT * FROM inherited"):
        states = {VALUE: "=", UNKNOWN: "?", FROM_SILVER: f"<{int(row['b0'] or 0) % SPAN}", None: "kept"}
        columns = (states[row[f"s{i}"]] + (row[f"x{i}"] or "") for i in fold.partial)
        found[int(row["k0"])] = "D" if row["op"] == "D" else f"{row['x1']} " + " ".join(columns)
    return found


CASES: Mapping[str, tuple[Sequence[tuple[Any, ...]], Mapping[int, str]]] = {
    "swapped keys inherit from the silver rows": (
        [
            update(100, "one", NOT_SENT, old=1),
            update(1, "two", NOT_SENT, old=2),
            update(2, "one", NOT_SENT, old=100),
        ],
        {1: "two <2", 2: "one <1", 100: "D"},
    ),
    "a chain inherits the value that was sent last": (
        [
            insert(1, "a", "A"),
            update(2, "b", NOT_SENT, old=1),
            update(2, "c", "C"),
            update(3, "d", NOT_SENT, old=2),
            update(4, "e", NOT_SENT, old=3),
            insert(1, "new", None),
        ],
        {1: "new =", 2: "D", 3: "D", 4: "e =C"},
    ),
    "NULL that was sent is inherited as NULL": (
        [update(1, "a", None), update(2, "b", NOT_SENT, old=1)],
        {1: "D", 2: "b ="},
    ),
    "nothing is inherited across a delete": (
        [
            delete(1),
            insert(1, "a", "A"),
            update(2, "b", NOT_SENT, old=1),
            delete(2),
            insert(2, "c", NOT_SENT),
        ],
        {1: "D", 2: "c ?"},
    ),
    "a row that returns to its key has its silver value": (
        [update(2, "a", NOT_SENT, old=1), update(1, "b", NOT_SENT, old=2)],
        {1: "b <1", 2: "D"},
    ),
    # the source lost row 5 by what sends no delete: a partition that was dropped, a row filter
    "a row replaced without a delete leaves one row": (
        [update(5, "a", NOT_SENT, old=1), update(5, "b", NOT_SENT, old=2)],
        {1: "D", 2: "D", 5: "b <2"},
    ),
    "of several rows moved to one key the last one stays": (
        [update(5, "a", NOT_SENT, old=old) for old in (1, 2, 3)],
        {1: "D", 2: "D", 3: "D", 5: "a <3"},
    ),
    "a row inserted at the key of a moved row replaces it": (
        [update(5, "a", NOT_SENT, old=1), insert(5, "b", "B")],
        {1: "D", 5: "b =B"},
    ),
}


def test_each_row_inherits_from_its_own_chain(sql_session: SqlSession) -> None:
    """Fold all cases at once, each with keys of its own: a fold by Spark takes as long for one."""
    changes = [
        (op, None if old is None else old + by, None if new is None else new + by, values)
        for by, (case, _) in zip(count(step=SPAN), CASES.values(), strict=False)
        for op, old, new, values in case
    ]
    found: dict[str, dict[int, str]] = {name: {} for name in CASES}
    for key, text in folded(sql_session, *changes).items():
        found[[*CASES][key // SPAN]][key % SPAN] = text
    assert found == {name: expected for name, (_, expected) in CASES.items()}


def test_key_that_is_unchanged_toast_does_not_change(sql_session: SqlSession) -> None:
    fold = Fold((FoldColumn("id", INT, {1: 0}, True), *FOLD.columns[1:]), (0,), (1,))
    rows = [(100, 0, SOME_TIME, "U", 1, "K", ["7", None, None], [None, "a", None], [0, 2])]
    add_rows(sql_session, "changes", rows, CHANGES)
    follow(sql_session, fold)
    [row] = rows_of(sql_session, "SELECT * FROM inherited")
    assert [row[name] for name in ("k0", "op", "x0", "x1", "s2")] == ["7", "U", "7", "a", None]


def test_row_older_than_a_column_has_its_default_and_a_moved_row_its_value(
    sql_session: SqlSession,
) -> None:
    found = folded(
        sql_session,
        insert(1, "a", "A"),  # of the version without the column
        update(2, "b", NOT_SENT, old=1),
        insert(3, "c", "C", "sent"),
        update(4, "d", NOT_SENT, old=3),  # interleaved: the older version again
        update(5, "e", "E"),
        insert(6, "f", "F", NOT_SENT),
        fold=EVOLVED,
    )
    assert found == {1: "D", 2: "b =A =seven", 3: "D", 4: "d =C =sent", 5: "e =E kept", 6: "f =F ?"}


def test_values_of_a_missing_silver_row_are_unknown(sql_session: SqlSession) -> None:
    add_changes(sql_session, [update(2, "a", NOT_SENT, old=1), update(9, "b", NOT_SENT, old=8)])
    add_rows(sql_session, "silver", [(1, "x", "BIG")], "id INT, v STRING, big STRING")
    sql = follow(sql_session)
    sql_session.compute("filled", sql.from_silver("moved", "silver"))
    rows = rows_of(sql_session, "SELECT * FROM filled WHERE op <> 'D'")
    found = {row["k0"]: (row["op"], row["c2"], row["s2"]) for row in rows}
    assert found == {2: ("U", "BIG", FROM_SILVER), 9: ("U", None, UNKNOWN)}
    misfits = sql_session.engine.explode(str(write.misfits(FOLD, sql_session.engine)))
    lost = f"SELECT k0, {misfits} AS m FROM filled WHERE op <> 'D'"
    columns = "k0, m.column_name AS name, m.raw_text AS text, m.policy AS policy"
    [row] = rows_of(sql_session, f"SELECT {columns} FROM ({lost}) AS l")
    assert row == {"k0": 9, "name": "big", "text": None, "policy": "not sent"}


# Many at once -----------------------------------------------------------------------------------------------


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the rounds of pointer doubling; within it no rows may be collected by Spark's driver."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    rounds: list[str] = []
    inherit = FoldSql.inherit

    def counted(sql: FoldSql, segments: str) -> str:
        rounds.append("inherit")
        return inherit(sql, segments)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows were collected by the driver")

    with monkeypatch.context() as patch:
        patch.setattr(FoldSql, "inherit", counted)
        for name in ("collect", "toPandas", "toLocalIterator", "take", "head", "toArrow"):
            patch.setattr(ClassicDataFrame, name, refuse)
        yield rounds


@pytest.fixture(params=ENGINES)
def session(request: pytest.FixtureRequest) -> Iterator[SqlSession]:
    """A session of each engine, for many rows."""
    session: SqlSession
    if request.param in ("duckdb", "many"):
        session = DuckSql()
        session.has_many = request.param == "many"
    else:
        session = SparkSql(request.getfixturevalue("spark"))
    yield session
    session.clear()


def add_moves(session: SqlSession, count: int, *, by: int, new: str = "", unsent: str | None = None) -> None:
    """Add `count` updates of keys 0…, each adding `by` to its key and not sending `big`."""
    array = session.engine.array
    new = new or array(f"CAST(id + {by} AS STRING)", "'moved'", "NULL")
    session.define(
        "changes",
        "SELECT CAST(100 AS BIGINT) AS commit_lsn, id AS ordinal, "
        "timestamp'2024-01-01 00:00:00' AS commit_time, 'U' AS op, CAST(1 AS BIGINT) AS relation_version, "
        f"'K' AS old_kind, {array('CAST(id AS STRING)', 'NULL', 'NULL')} AS old, {new} AS new, "
        f"{unsent or array('2')} AS unsent FROM range({count}) AS r(id)",
    )


def row_of(session: SqlSession, query: str) -> list[Any]:
    [row] = rows_of(session, query)
    return list(row.values())


@pytest.mark.slow
def test_chain_of_100_000_key_changes_needs_logarithmic_rounds(
    session: SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100_000
    add_moves(session, count, by=1)
    with watched(monkeypatch) as rounds:
        follow(session)
    assert row_of(session, "SELECT k0, b0, s2, x2 FROM followed") == [str(count), "0", FROM_SILVER, None]
    assert len(rounds) <= ceil(log2(count)) + 1


@pytest.mark.slow
def test_chain_inherits_a_value_that_was_sent_in_the_middle(
    session: SqlSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, middle = 100_000, 30_000
    array = session.engine.array
    usual = array("CAST(id + 1 AS STRING)", "'moved'", "NULL")
    sent = f"CASE WHEN id = {middle} THEN {array(repr(str(middle + 1)), repr('moved'), repr('sent'))} "
    unsent = f"CASE WHEN id <> {middle} THEN {array('2')} END"
    add_moves(session, count, by=1, new=f"{sent} ELSE {usual} END", unsent=unsent)
    with watched(monkeypatch):
        follow(session)
    found = row_of(session, "SELECT k0, c1, s2, c2 FROM moved WHERE op <> 'D'")
    assert found == [count, "moved", VALUE, "sent"]
    assert row_of(session, "SELECT count(*) AS rows FROM moved WHERE op = 'D'") == [count]


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_all_keys_changed_at_once_need_one_round(
    session: SqlSession, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    by = 1_000_000
    add_moves(session, count, by=by)
    session.define(
        "silver",
        f"SELECT CAST(id AS INT) AS id, 'old' AS v, concat('big', id) AS big FROM range({count}) AS r(id)",
    )
    with watched(monkeypatch) as rounds:
        sql = follow(session)
        session.compute("filled", sql.from_silver("moved", "silver"))
    assert len(rounds) == 1
    kept = f"c0 = k0 AND c1 = 'moved' AND s2 = {FROM_SILVER} AND c2 = concat('big', k0 - {by})"
    assert row_of(session, f"SELECT count(*) AS n FROM filled WHERE op = 'U' AND {kept}") == [count]
    deleted = "SELECT count(DISTINCT k0) AS n, max(k0) AS last FROM filled WHERE op = 'D'"
    assert row_of(session, deleted) == [count, count - 1]
    assert row_of(session, "SELECT count(*) AS n FROM filled") == [2 * count]
