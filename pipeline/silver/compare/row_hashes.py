"""Hashes of silver's rows: sums by range, and single rows.

The other side of the comparison is `postgres.snapshot.hashed_rows`, which computes the same hashes in
PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.engine import Engine
from pipeline.fingerprint import Fingerprint
from pipeline.postgres.snapshot.hashed_rows import RowHash
from pipeline.silver.compare.compared_rows import ComparedRows, FrameRows
from pipeline.silver.types.comparable_text import text_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A compared column of silver: name, DDL, and the delimiter of its array elements."""

    name: str
    ddl: str
    delimiter: str = ","

    @property
    def is_plain(self) -> bool:
        """Whether no value has a comma in its text."""
        return self.ddl != "STRING" and not self.ddl.startswith(("ARRAY<", "MAP<"))


class SilverHashes:
    """The rows of a silver table with hashes of the compared columns; `key` are the indexes of the key's.

    `text_bytes` is the size of all values as texts, once the sums of all rows were read.
    """

    text_bytes = 0

    def __init__(self, rows: ComparedRows, columns: Sequence[SilverColumn], key: Sequence[int]) -> None:
        self._engine = rows.engine
        self._rows = rows
        self._names = [f"c{i}" for i in range(len(columns))]
        self._parts = _parts(columns)
        self._key = [self._names[i] for i in key]
        hashed = _hashed(rows.engine, rows.source, columns)
        key_hash = _hash([self._parts[i] for i in key], rows.engine) if key else "r"
        self._hashed = f"SELECT *, {key_hash} AS k FROM ({hashed}) AS h"

    def sums(self, digits: int, within: Sequence[str] | None = None) -> dict[str, Fingerprint]:
        """Return the sums of each range, a prefix of so many digits, for all rows or those in some ranges."""
        engine, prefix = self._engine, f"substr(k, 1, {digits})"
        parts = ", ".join(f"sum({engine.hex_number(f'substr(r, {at}, 15)')})" for at in (1, 17))
        zero = engine.cast("0", "BIGINT")
        sizes = [f"coalesce({engine.byte_count(name)}, 0)" for name in self._names]
        # in groups, because DuckDB refuses a sum that is nested 1,000 times
        groups = [[zero, *sizes[at : at + 100]] for at in range(0, len(sizes), 100)]
        size = " + ".join([zero, *(f"({' + '.join(group)})" for group in groups)])
        found = self._rows.query(
            f"SELECT {prefix}, count(*), {parts}, sum({size}) FROM ({self._within(within)}) AS q "
            f"GROUP BY {prefix}"
        )
        if within is None:
            self.text_bytes = sum(int(row[4]) for row in found)
        return {row[0]: Fingerprint.of(*row[1:4]) for row in found}

    def rows(self, within: Sequence[str]) -> list[RowHash]:
        """Return the rows in some ranges."""
        engine = self._engine
        short = engine.array(*(f"substr({_hash([part], engine)}, 1, 8)" for part in self._parts))
        texts = engine.array(*self._key)
        found = self._rows.query(f"SELECT k, r, {short}, {texts} FROM ({self._within(within)}) AS q")
        return [RowHash(key, row, tuple(columns), tuple(texts)) for key, row, columns, texts in found]

    def texts_without(self, keys: DataFrame) -> DataFrame:
        """Return the values of each row as the array `new`, without rows whose key's hash is in `keys.k`.

        Only rows that Spark reads have them.
        """
        from pyspark.sql import functions as F

        assert isinstance(self._rows, FrameRows)
        rest = self._rows.frame(self._hashed).join(F.broadcast(keys), "k", "left_anti")
        return rest.select(F.array(*self._names).alias("new"))

    def _within(self, ranges: Sequence[str] | None) -> str:
        if ranges is None:
            return self._hashed
        listed = ", ".join(map(self._engine.literal, ranges))
        return f"SELECT * FROM ({self._hashed}) AS a WHERE substr(k, 1, {len(ranges[0])}) IN ({listed})"


def fingerprint_sql(engine: Engine, source: str, columns: Sequence[SilverColumn]) -> str:
    """Return the query for the number of rows and the fingerprint of a relation: `str(Fingerprint)`."""
    sums = [f"sum({engine.hex_number(f'substr(r, {at}, 15)')}) % {1 << 60}" for at in (1, 17)]
    digits = ", ".join(engine.hex_digits(engine.cast(each, "BIGINT"), 15) for each in sums)
    hashed = _hashed(engine, source, columns)
    return f"SELECT count(*) AS rows, concat({digits}) AS fingerprint FROM ({hashed}) AS q"


def _hashed(engine: Engine, source: str, columns: Sequence[SilverColumn]) -> str:
    """Return the query for the values c0… of each row of a relation, and its hash r."""
    names = [f"c{i}" for i in range(len(columns))]
    forms = [text_sql(c.ddl, engine.quoted(c.name), c.delimiter, engine) for c in columns]
    values = ", ".join(f"{form} AS {name}" for form, name in zip(forms, names, strict=True))
    return f"SELECT *, {_hash(_parts(columns), engine)} AS r FROM (SELECT {values} FROM {source}) AS v"


def _parts(columns: Sequence[SilverColumn]) -> list[str]:
    """Return SQL for each of the values c0… as it is hashed; a text is preceded by its length."""
    sized = "length(c{0}) || ':' || c{0}"
    texts = (("c{0}" if column.is_plain else sized).format(i) for i, column in enumerate(columns))
    return [f"coalesce({text}, '')" for text in texts]


def _hash(parts: Sequence[str], engine: Engine) -> str:
    """Return SQL for the MD5 of values with commas between them, without those at the end."""
    joined = ", ',', ".join(parts)
    return engine.md5(engine.trimmed(f"concat({joined})", ","))
