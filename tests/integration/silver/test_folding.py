"""The fold gives the rows of the source in both engines, for random histories of every kind of table."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pipeline.silver.fold.duckdb_sql import DuckSql
from tests.support.histories import BAG, COMPOSITE, FULL_WITH_KEY, KEYED, History, random_changes
from tests.support.model import ModelChange, Shape, Text, apply_all
from tests.support.silver.folding import Folding, Lineage, counted, expected, lineage

if TYPE_CHECKING:
    from pipeline.silver.fold.sql_session import SqlSession


def run(session: SqlSession, lineages: list[Lineage]) -> Folding:
    folding = Folding(session, lineages)
    folding.run()
    for found in lineages:
        names = found.history.shape.columns
        source = counted(expected(found.history), names)
        assert counted(found.rows, names) == source, f"seed {found.seed}"
    return folding


def check(
    session: SqlSession, shape: Shape, seeds: range, *, evolves: bool, cuts: int, count: int = 60
) -> Folding:
    if not isinstance(session, DuckSql):  # Spark compiles each query: the rounds take its time, not the rows
        seeds, cuts, count = seeds[: len(seeds) // 6], max(cuts - 1, 1), count // 2
    lineages = []
    for seed in seeds:
        rng = Random(seed)
        history = random_changes(rng, shape, count=count, evolves=evolves)
        lineages.append(lineage(seed, history, rng, cuts=cuts))
    return run(session, lineages)


def engines(*cases: tuple[Shape, str]) -> pytest.MarkDecorator:
    """Run each shape by DuckDB in both ways, and by default the first by Spark: each query is compiled."""
    by_spark = [(pytest.mark.spark,), *[(pytest.mark.spark, pytest.mark.slow)] * (len(cases) - 1)]
    found = [
        pytest.param("spark", shape, id=f"spark-{name}", marks=marks)
        for (shape, name), marks in zip(cases, by_spark, strict=True)
    ]
    ways = ("duckdb", "many")
    found += [pytest.param(way, shape, id=f"{way}-{name}") for shape, name in cases for way in ways]
    return pytest.mark.parametrize(("sql_session", "shape"), found, indirect=["sql_session"])


@engines((COMPOSITE, "composite-toasted"), (KEYED, "one"))
def test_fold_by_key_gives_the_rows_of_the_source(sql_session: SqlSession, shape: Shape) -> None:
    assert check(sql_session, shape, range(60), evolves=False, cuts=2).linked > 1


def test_fold_by_key_follows_columns_that_join_and_leave(sql_session: SqlSession) -> None:
    check(sql_session, COMPOSITE, range(100, 140), evolves=True, cuts=2)


@engines((BAG, "no-key"), (FULL_WITH_KEY, "primary-key"))
def test_multiset_gives_the_rows_of_the_source(sql_session: SqlSession, shape: Shape) -> None:
    check(sql_session, shape, range(200, 240), evolves=False, cuts=2)


def test_switched_identities_give_the_rows_of_the_source(sql_session: SqlSession) -> None:
    check(sql_session, KEYED, range(300, 312), evolves=True, cuts=1, count=40)


def arbitrary(rng: Random, shape: Shape) -> History:
    """Return changes that fit no table: of rows that are not there, onto rows that are, twice over."""

    def row() -> tuple[Text, ...]:
        return str(rng.randint(0, 3)), rng.choice(("x", "y", None)), rng.choice(("x", "T1", None))

    def change() -> ModelChange:
        new, old, op = row(), row(), rng.choice("IUUUUD")
        if op == "I":
            return ModelChange("I", shape, new=new)
        unsent = frozenset({2} if op == "U" and rng.random() < 0.6 else ())
        sent = tuple(None if i in unsent else value for i, value in enumerate(new)) if op == "U" else None
        if shape.identity == "f":
            return ModelChange(op, shape, "O", old, sent, unsent)
        key = (old[0], None, None) if op == "D" or rng.random() < 0.6 else None
        return ModelChange(op, shape, key and "K", key, sent, unsent)

    rows = [(str(key), *row()[1:]) for key in range(rng.randint(0, 3))]
    initial = [dict(zip(shape.columns, values, strict=True)) for values in rows]
    changes = [change() for _ in range(12)]
    return History(initial, changes, apply_all(initial, changes).rows, shape)


@engines((KEYED, "key"), (replace(BAG, columns=("k", "a", "big")), "no-key"))
def test_changes_that_fit_no_table_have_the_same_result_as_in_the_model(
    sql_session: SqlSession, shape: Shape
) -> None:
    histories = [arbitrary(Random(seed), shape) for seed in range(200)]
    run(sql_session, [lineage(seed, h, Random(seed), cuts=1) for seed, h in enumerate(histories)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [KEYED, COMPOSITE, BAG, FULL_WITH_KEY], ids=lambda s: s.identity + s.columns[0]
)
@pytest.mark.parametrize("evolves", [False, True])
def test_many_histories_give_the_rows_of_their_sources(
    sql_session: SqlSession, shape: Shape, evolves: bool
) -> None:
    check(sql_session, shape, range(1000, 1400), evolves=evolves, cuts=3, count=120)
