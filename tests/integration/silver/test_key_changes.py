"""Key changes: unchanged TOAST comes from the row at the old key, however far back, all in Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, log2
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipeline.silver import folded_frames as ff
from pipeline.silver import folded_frames as key_changes_module
from pipeline.silver import write
from pipeline.silver.fold import FROM_SILVER, UNKNOWN, VALUE, Fold, FoldColumn
from pipeline.silver.folded_frames import fold_by_key, follow_key_changes, steps
from pipeline.silver.text_parsers import INT, STRING
from tests.support.silver.folding import CHANGES, SOME_TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

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


def insert(key: int, *values: Any) -> tuple[Any, ...]:
    return "I", None, key, values


def update(key: int, *values: Any, old: int | None = None) -> tuple[Any, ...]:
    return "U", old, key, values


def delete(key: int) -> tuple[Any, ...]:
    return "D", key, None, ()


def bronze(spark: SparkSession, changes: Sequence[tuple[Any, ...]]) -> DataFrame:
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
    return spark.createDataFrame(rows, CHANGES)


def followed(changes: DataFrame, fold: Fold = FOLD) -> DataFrame:
    key_steps = steps(changes, fold)
    return ff.with_key_changes(fold_by_key(key_steps, fold), follow_key_changes(key_steps, fold), fold)


def folded(spark: SparkSession, *changes: tuple[Any, ...], fold: Fold = FOLD) -> dict[int, str]:
    """Return the fold of each key: `D`, or the partial columns as state, base key and text."""
    found = {}
    for row in followed(bronze(spark, changes), fold).collect():
        states = {VALUE: "=", UNKNOWN: "?", FROM_SILVER: f"<{row.b0}", None: "kept"}
        columns = (states[row[f"s{i}"]] + (row[f"x{i}"] or "") for i in fold.partial)
        found[int(row.k0)] = "D" if row.op == "D" else f"{row.x1} " + " ".join(columns)
    return found


def test_swapped_keys_inherit_from_the_silver_rows(small: SparkSession) -> None:
    found = folded(
        small,
        update(100, "one", NOT_SENT, old=1),
        update(1, "two", NOT_SENT, old=2),
        update(2, "one", NOT_SENT, old=100),
    )
    assert found == {1: "two <2", 2: "one <1", 100: "D"}


def test_chain_inherits_the_value_that_was_sent_last(small: SparkSession) -> None:
    found = folded(
        small,
        insert(1, "a", "A"),
        update(2, "b", NOT_SENT, old=1),
        update(2, "c", "C"),
        update(3, "d", NOT_SENT, old=2),
        update(4, "e", NOT_SENT, old=3),
        insert(1, "new", None),
    )
    assert found == {1: "new =", 2: "D", 3: "D", 4: "e =C"}


def test_null_that_was_sent_is_inherited_as_null(small: SparkSession) -> None:
    found = folded(small, update(1, "a", None), update(2, "b", NOT_SENT, old=1))
    assert found == {1: "D", 2: "b ="}


def test_nothing_is_inherited_across_a_delete(small: SparkSession) -> None:
    found = folded(
        small,
        delete(1),
        insert(1, "a", "A"),
        update(2, "b", NOT_SENT, old=1),
        delete(2),
        insert(2, "c", NOT_SENT),
    )
    assert found == {1: "D", 2: "c ?"}


def test_row_that_returns_to_its_key_has_its_silver_value(small: SparkSession) -> None:
    found = folded(small, update(2, "a", NOT_SENT, old=1), update(1, "b", NOT_SENT, old=2))
    assert found == {1: "b <1", 2: "D"}


def test_key_that_is_unchanged_toast_does_not_change(small: SparkSession) -> None:
    fold = Fold((FoldColumn("id", INT, {1: 0}, True), *FOLD.columns[1:]), (0,), (1,))
    rows = [(100, 0, SOME_TIME, "U", 1, "K", ["7", None, None], [None, "a", None], [0, 2])]
    [row] = followed(small.createDataFrame(rows, CHANGES), fold).collect()
    assert (row.k0, row.op, row.x0, row.x1, row.s2) == ("7", "U", "7", "a", None)


def test_row_replaced_without_a_delete_leaves_one_row_at_its_key(small: SparkSession) -> None:
    # The source lost row 5 by what sends no delete: a partition that was dropped, a row filter.
    found = folded(small, update(5, "a", NOT_SENT, old=1), update(5, "b", NOT_SENT, old=2))
    assert found == {1: "D", 2: "D", 5: "b <2"}
    assert len(followed(bronze(small, [update(5, "a", NOT_SENT, old=i) for i in (1, 2, 3)])).collect()) == 4
    found = folded(small, update(5, "a", NOT_SENT, old=1), insert(5, "b", "B"))
    assert found == {1: "D", 5: "b =B"}


def test_row_older_than_a_column_has_its_default_and_a_moved_row_its_value(
    small: SparkSession,
) -> None:
    found = folded(
        small,
        insert(1, "a", "A"),  # of the version without the column
        update(2, "b", NOT_SENT, old=1),
        insert(3, "c", "C", "sent"),
        update(4, "d", NOT_SENT, old=3),  # interleaved: the older version again
        update(5, "e", "E"),
        insert(6, "f", "F", NOT_SENT),
        fold=EVOLVED,
    )
    assert found == {1: "D", 2: "b =A =seven", 3: "D", 4: "d =C =sent", 5: "e =E kept", 6: "f =F ?"}


def test_values_of_a_missing_silver_row_are_unknown(small: SparkSession) -> None:
    changes = bronze(small, [update(2, "a", NOT_SENT, old=1), update(9, "b", NOT_SENT, old=8)])
    silver = small.createDataFrame([(1, "x", "BIG")], "id INT, v STRING, big STRING")
    source = ff.from_silver(ff.typed(followed(changes), FOLD), silver, FOLD)
    found = {row.k0: (row.op, row.c2, row.s2) for row in source.collect() if row.op != "D"}
    assert found == {2: ("U", "BIG", FROM_SILVER), 9: ("U", None, UNKNOWN)}
    misfits = source.where("op <> 'D'").selectExpr("k0", f"{write.misfits(FOLD)} AS m").collect()
    assert {row.k0: [tuple(m) for m in row.m] for row in misfits} == {2: [], 9: [("big", None, "not sent")]}


# Many at once -----------------------------------------------------------------------------------------------


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the rounds of pointer doubling; within it no rows may be collected by the driver."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    rounds: list[str] = []
    inherit = key_changes_module._inherit

    def counted(segments: DataFrame, fold: Fold) -> DataFrame:
        rounds.append("inherit")
        return inherit(segments, fold)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("rows were collected by the driver")

    with monkeypatch.context() as patch:
        patch.setattr(key_changes_module, "_inherit", counted)
        for name in ("collect", "toPandas", "toLocalIterator", "take", "head", "toArrow"):
            patch.setattr(ClassicDataFrame, name, refuse)
        yield rounds


def moves(spark: SparkSession, count: int, *, by: int) -> DataFrame:
    """Return `count` updates of keys 0…, each adding `by` to its key and not sending `big`."""
    return spark.range(count).selectExpr(
        "CAST(100 AS BIGINT) AS commit_lsn",
        "id AS ordinal",
        "timestamp'2024-01-01 00:00:00' AS commit_time",
        "'U' AS op",
        "CAST(1 AS BIGINT) AS relation_version",
        "'K' AS old_kind",
        "array(CAST(id AS STRING), NULL, NULL) AS old",
        f"array(CAST(id + {by} AS STRING), 'moved', NULL) AS new",
        "array(2) AS unsent",
    )


@pytest.mark.slow
def test_chain_of_100_000_key_changes_needs_logarithmic_rounds(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100_000
    with watched(monkeypatch) as rounds:
        moved = follow_key_changes(steps(moves(spark, count, by=1), FOLD), FOLD)
    assert [tuple(row) for row in moved.collect()] == [(str(count), "0", FROM_SILVER, None)]
    assert len(rounds) <= ceil(log2(count)) + 1


@pytest.mark.slow
def test_chain_inherits_a_value_that_was_sent_in_the_middle(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, middle = 100_000, 30_000
    sent = F.expr(f"CASE WHEN ordinal = {middle} THEN array('{middle + 1}', 'moved', 'sent') ELSE new END")
    unsent = F.expr(f"CASE WHEN ordinal <> {middle} THEN unsent END")
    changes = moves(spark, count, by=1).withColumns({"new": sent, "unsent": unsent})
    with watched(monkeypatch):
        key_steps = steps(changes, FOLD)
        source = ff.typed(
            ff.with_key_changes(fold_by_key(key_steps, FOLD), follow_key_changes(key_steps, FOLD), FOLD),
            FOLD,
        )
    [row] = source.where("op <> 'D'").collect()
    assert (row.k0, row.c1, row.s2, row.c2) == (count, "moved", VALUE, "sent")
    assert source.where("op = 'D'").count() == count


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_all_keys_changed_at_once_need_one_round(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    by = 1_000_000
    silver = spark.range(count).selectExpr("CAST(id AS INT) AS id", "'old' AS v", "concat('big', id) AS big")
    with watched(monkeypatch) as rounds:
        key_steps = steps(moves(spark, count, by=by), FOLD)
        moved = ff.with_key_changes(fold_by_key(key_steps, FOLD), follow_key_changes(key_steps, FOLD), FOLD)
        source = ff.from_silver(ff.typed(moved, FOLD), silver, FOLD).localCheckpoint()
    assert len(rounds) == 1
    kept = f"c0 = k0 AND c1 = 'moved' AND s2 = {FROM_SILVER} AND c2 = concat('big', k0 - {by})"
    assert source.where(f"op = 'U' AND {kept}").count() == count
    assert source.where("op = 'D'").selectExpr("count(DISTINCT k0)", "max(k0)").collect() == [
        (count, count - 1)
    ]
    assert source.count() == 2 * count
