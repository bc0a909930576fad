"""Spark and DuckDB read every text alike: value, misfit, nearest value, sidecar and key, bit for bit.

The texts are what PostgreSQL prints, numbers and times at the limits of types, numbers between two neighbours
of a float, and damaged ones. Every type reads all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.silver.types.text_parsers import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VECTOR,
    SilverType,
    array_of,
    decimal,
)
from pipeline.silver.types.types import overridden
from tests.support.seeds import seed_of_run
from tests.support.silver.odd_texts import ODD, odd_texts
from tests.support.silver.two_engines import (
    count_misfits,
    differences,
    read_in_duckdb,
    read_in_spark,
    table_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_DECIMALS = [(1, 0), (5, 2), (5, 5), (9, 4), (18, 9), (19, 1), (28, 20), (38, 0), (38, 10), (38, 38)]
SCALARS: Mapping[str, SilverType] = {
    kind.ddl: kind
    for kind in (
        *(STRING, BOOLEAN, BINARY, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DATE, TIMESTAMP, TIMESTAMP_NTZ),
        *(decimal(precision, scale) for precision, scale in _DECIMALS),
    )
} | {f"finite {ddl}": overridden(ddl) for ddl in ("FLOAT", "DOUBLE")}
ARRAYS: Mapping[str, SilverType] = {
    f"ARRAY<{name}>": array_of(kind)
    for name, kind in SCALARS.items()
    if not name.startswith("DECIMAL") or name in ("DECIMAL(5,2)", "DECIMAL(38,10)")
} | {"VECTOR": VECTOR, "boxes": array_of(STRING, ";")}


def agree(
    spark: SparkSession, folder: Path, kinds: Mapping[str, SilverType], texts: list[str | None]
) -> dict[str, int]:
    """Compare both engines, and return how many texts have a value, by type."""
    table = table_of(texts)
    native, other = read_in_duckdb(kinds, table), read_in_spark(spark, kinds, table, folder)
    found = [
        sentence
        for name, kind in kinds.items()
        for sentence in differences(name, kind, texts, other[name], native[name])
    ]
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])
    return {name: len(texts) - count_misfits(native[name]) for name in kinds}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kinds", [SCALARS, ARRAYS], ids=["scalars", "arrays"])
def test_every_type_reads_odd_texts_alike(
    spark: SparkSession, tmp_path: Path, kinds: Mapping[str, SilverType]
) -> None:
    seed = seed_of_run()
    print(f"PGDELTA_SEED={seed}")
    texts = [None, *odd_texts(Random(seed), 1_500)]
    with_value = agree(spark, tmp_path, kinds, texts)
    assert min(with_value.values()) > len(texts) / 500, with_value


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [SCALARS, ARRAYS], ids=["scalars", "arrays"])
def test_every_type_reads_many_odd_texts_alike(
    spark: SparkSession, tmp_path: Path, kinds: Mapping[str, SilverType]
) -> None:
    seed = seed_of_run()
    print(f"PGDELTA_SEED={seed}")
    agree(spark, tmp_path, kinds, [None, *odd_texts(Random(seed), 100_000)])


_CHARACTERS = st.sampled_from(ODD) | st.characters(exclude_characters="\0", exclude_categories=["Cs"])
_TEXTS = st.lists(_CHARACTERS, max_size=8).map("".join)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(_TEXTS | _TEXTS.map("{{{}}}".format), min_size=100, max_size=200))
def test_every_type_reads_any_text_alike(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, texts: list[str | None]
) -> None:
    agree(spark, tmp_path_factory.mktemp("drawn"), SCALARS, texts)
    agree(spark, tmp_path_factory.mktemp("drawn"), ARRAYS, texts)
