"""The fold on Spark gives the rows of the source, for random histories of every kind of table."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.model import BAG, COMPOSITE, FULL_WITH_KEY, KEYED, Shape, random_changes
from tests.silver.folding import Folding, counted, expected, lineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def check(
    spark: SparkSession, shape: Shape, seeds: range, *, evolves: bool, cuts: int, count: int = 60
) -> Folding:
    lineages = []
    for seed in seeds:
        rng = Random(seed)
        history = random_changes(rng, shape, count=count, evolves=evolves)
        lineages.append(lineage(seed, history, rng, cuts=cuts))
    folding = Folding(spark, lineages)
    folding.run()
    for found in lineages:
        names = found.history.shape.columns
        source = counted(expected(found.history), names)
        assert counted(found.rows, names) == source, f"seed {found.seed}"
    return folding


@pytest.mark.parametrize("shape", [KEYED, COMPOSITE], ids=["one", "composite-toasted"])
def test_fold_by_key_gives_the_rows_of_the_source(small: SparkSession, shape: Shape) -> None:
    assert check(small, shape, range(60), evolves=False, cuts=2).linked > 1


def test_fold_by_key_follows_columns_that_join_and_leave(small: SparkSession) -> None:
    check(small, COMPOSITE, range(100, 140), evolves=True, cuts=2)


@pytest.mark.parametrize("shape", [BAG, FULL_WITH_KEY], ids=["no-key", "primary-key"])
def test_bag_gives_the_rows_of_the_source(small: SparkSession, shape: Shape) -> None:
    check(small, shape, range(200, 240), evolves=False, cuts=2)


def test_switched_identities_give_the_rows_of_the_source(small: SparkSession) -> None:
    check(small, KEYED, range(300, 312), evolves=True, cuts=1, count=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [KEYED, COMPOSITE, BAG, FULL_WITH_KEY], ids=lambda s: s.identity + s.columns[0]
)
@pytest.mark.parametrize("evolves", [False, True])
def test_many_histories_give_the_rows_of_their_sources(
    small: SparkSession, shape: Shape, evolves: bool
) -> None:
    check(small, shape, range(1000, 1400), evolves=evolves, cuts=3, count=120)
