"""Estimates what an initial copy takes: time, the room of the lake, and the WAL written meanwhile.

Some rows of the largest tables are read for about two seconds and encoded as bronze has them, in memory,
by the code of the copy itself; nothing of them is kept or shown. Where the role may read no table, the rate
is that of the benchmark. Nothing is changed at the source.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from pipeline.bronze.relations import relation_version
from pipeline.bronze.staged_files import open_parquet
from pipeline.errors import SourceError
from pipeline.postgres.checks.source_facts import SourceFacts, SourceTable
from pipeline.postgres.connection import Connection
from pipeline.postgres.snapshot.read_table import CopyReader, LeafPages
from pipeline.postgres.snapshot.sampled_tables import SampledTable, list_sampled
from pipeline.postgres.wal_rate import WalMeter, WalRate
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.reader_pool import GROUP_BYTES, CopyHeader, block_table
from pipeline.units import format_about_duration, format_about_size, format_count

BENCHMARK_RATE = 90 << 20  # bytes of tables per second: docs/operations/performance.md, "Copy"
_SECONDS = 2.0
_READING = 0.8  # of the time; the rest encodes what was read last
_TABLES = 4
_SMALL = 16 << 20  # bytes of all tables, below which a rate says nothing
_LEAST_SAMPLE = 1 << 20  # bytes
_MAX_PAGES = 8192  # of one statement
_RANGE_SECONDS = 0.1  # ranges grow while one takes less
# what the copy and the first apply of an empty table take: docs/operations/performance.md, "Many tables"
_TABLE_SECONDS = 0.03
_APPLY_SECONDS = 0.12
_DAY = 86_400
_IDLE = 1 << 20  # bytes of WAL a day: not worth a sentence


@dataclass(frozen=True, slots=True)
class SampledPart:
    """A table's size, the bytes of it that were read, seconds, and the bytes that bronze has of them."""

    table_bytes: int
    bytes: int
    seconds: float
    bronze_bytes: int


@dataclass(frozen=True, slots=True)
class CopySample:
    """What was read of the largest tables, at least one; each counts by its size."""

    parts: Sequence[SampledPart]

    @property
    def bytes(self) -> int:
        """The bytes read, as the source has them."""
        return sum(part.bytes for part in self.parts)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(part.seconds for part in self.parts)

    @property
    def rate(self) -> float:
        """Bytes of tables per second."""
        return self._size / sum(part.table_bytes * part.seconds / part.bytes for part in self.parts)

    @property
    def bronze_share(self) -> float:
        """The bytes of bronze for each byte of tables."""
        found = sum(part.table_bytes * part.bronze_bytes / part.bytes for part in self.parts)
        return found / self._size

    @property
    def _size(self) -> int:
        return sum(part.table_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class CopyEstimate:
    """What the copy of some tables takes; `bytes` are theirs with TOAST, without indexes.

    The first of the WAL's rates is the newest. `slot_wal_limit` is None if a slot keeps all WAL.
    """

    tables: int
    bytes: int
    user: str  # who read the sample
    sample: CopySample | None
    wal_rates: tuple[WalRate, ...]
    slot_wal_limit: int | None
    is_logical: bool = True  # wal_level is what it will be

    @property
    def seconds(self) -> float:
        """The time that ingest takes for the copy."""
        return self.bytes / self.rate + self.tables * _TABLE_SECONDS

    @property
    def apply_seconds(self) -> float:
        """The time that apply then takes: on one machine, it has the rate of the copy."""
        return self.bytes / self.rate + self.tables * _APPLY_SECONDS

    @property
    def rate(self) -> float:
        """Bytes of tables per second."""
        return self._measured.rate if self._measured else BENCHMARK_RATE

    @property
    def bronze_bytes(self) -> int | None:
        """The size of the copy in bronze; None if too little was read."""
        return round(self.bytes * self._measured.bronze_share) if self._measured else None

    @property
    def _measured(self) -> CopySample | None:
        """The sample, if it is large enough to say something."""
        return self.sample if self.sample and self.sample.bytes >= _LEAST_SAMPLE else None

    @property
    def wal_rate(self) -> float | None:
        """The greatest of the WAL's rates, in bytes per second; None if none is known."""
        return max((each.per_second for each in self.wal_rates), default=None)

    def as_json(self) -> dict[str, Any]:
        """Return it as data: bytes, seconds, and bytes per second."""
        sample = self.sample
        return {
            "table_bytes": self.bytes,
            "copy_seconds": round(self.seconds),
            "apply_seconds": round(self.apply_seconds),
            "copy_rate": round(self.rate),
            "sample": sample
            and {
                "tables": len(sample.parts),
                "bytes": sample.bytes,
                "seconds": round(sample.seconds, 2),
            },
            "bronze_bytes": self.bronze_bytes,
            "wal": [
                {
                    "since": each.since,
                    "bytes": each.bytes,
                    "seconds": round(each.seconds),
                    "rate": round(each.per_second),
                }
                for each in self.wal_rates
            ],
            "wal_during_copy": None if self.wal_rate is None else round(self.wal_rate * self.seconds),
            "slot_wal_limit": self.slot_wal_limit,
        }

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield labels and sentences."""
        is_small = self.bytes < _SMALL
        basis = "" if is_small else self._basis(format_about_size(self.rate))
        size, count = format_about_size(self.bytes), format_count(self.tables, "table")
        then = f" Apply then takes {format_about_duration(self.apply_seconds)}."
        yield (
            "initial copy",
            f"{format_about_duration(self.seconds)}: {size} in {count}{basis}."
            f"{then if self.apply_seconds >= 60 else ''}",
        )
        if self.bronze_bytes is not None and not is_small:
            yield (
                "lake",
                (
                    f"{format_about_size(self.bronze_bytes)} in bronze, by the same rows, and about as much"
                    " in silver."
                ),
            )
        yield "WAL", " ".join(self._wal())

    def _basis(self, rate: str) -> str:
        sample = self._measured
        if sample is None:
            why = "the largest are too small" if self.sample else f"the role {self.user} could read no rows"
            return (
                f" at {rate}/s. That is the benchmark of docs/operations/performance.md: {why}, so nothing"
                " was measured here"
            )
        return (
            f" at {rate}/s, as one session read {format_about_size(sample.bytes)} of"
            f" {format_count(len(sample.parts), 'table')} in {sample.seconds:.1f} s and encoded them"
        )

    def _wal(self) -> Iterator[str]:
        if self.wal_rate is None:
            yield "Its rate is not known yet: the server has just started, or does not give it."
            return
        names = {
            "checkpoint": "since the last checkpoint, {}",
            "statistics": "on average of {}",
            "session": "in {}",
        }
        rates = (
            f"{format_about_size(each.per_second)}/s {names[each.since].format(_period(each.seconds))}"
            for each in self.wal_rates
        )
        yield f"{'; '.join(rates)}."
        meanwhile, day = self.wal_rate * self.seconds, self.wal_rate * _DAY
        if day < _IDLE:
            yield "The server is idle; a slot keeps all WAL that is written while ingest does not run."
            return
        copied = f"{format_about_size(meanwhile)} during the copy, which ingest reads meanwhile, and "
        yield (
            f"That is {copied if meanwhile >= _IDLE else ''}{format_about_size(day)} for each day without"
            " ingest, which the slot keeps."
        )
        if not self.is_logical:
            yield "With wal_level = logical it is more."
        if self.slot_wal_limit is not None:
            lasts = format_about_duration(self.slot_wal_limit / self.wal_rate) if self.wal_rate else "forever"
            yield f"max_slot_wal_keep_size, {format_about_size(self.slot_wal_limit)}, lasts {lasts}."


def estimate_copy(
    connection: Connection, conninfo: str, facts: SourceFacts, tables: Sequence[SourceTable]
) -> CopyEstimate:
    """Return the estimate for tables, after a sample of about `_SECONDS`."""
    meter = WalMeter(connection)
    sampled = list_sampled(connection, [table.name for table in tables], _TABLES)
    sample = _sample(conninfo, sampled) if sampled else None
    return CopyEstimate(
        tables=len(tables),
        bytes=sum(table.table_bytes for table in tables),
        user=facts.user,
        sample=sample,
        wal_rates=tuple(meter.rates()),
        slot_wal_limit=facts.slot_wal_limit,
        is_logical=facts.wal_level == "logical",
    )


def _sample(conninfo: str, sampled: Sequence[SampledTable]) -> CopySample | None:
    """Read and encode rows of each table for its share of the time."""
    parts = []
    try:
        with closing(CopyReader(conninfo, statement_seconds=_SECONDS)) as reader:
            for each in sampled:
                began = time.monotonic()
                try:
                    pages, size = _encode(reader, each, began + _READING * _SECONDS / len(sampled))
                except SourceError:  # locked, altered, or too slow: the others say enough
                    continue
                read = max(1, round(each.bytes * pages / each.leaf.pages))
                parts.append(SampledPart(each.bytes, read, time.monotonic() - began, size))
    except SourceError:  # the session was lost
        return None
    return CopySample(parts) if parts else None


def _encode(reader: CopyReader, sampled: SampledTable, deadline: float) -> tuple[int, int]:
    """Encode rows of a table until the deadline, from a third of it on; return how many pages had them.

    Also return their bytes in bronze, without the footer of the file, which a few rows would not outweigh.
    """
    table, leaf = sampled.table, sampled.leaf
    version = relation_version(table.relation, None, LSN(1))
    header = CopyHeader(1, version, LSN(1), datetime.now(timezone.utc))
    first = position = leaf.pages // 3 if leaf.pages > 3 * _MAX_PAGES else 0
    rows = waiting = 0
    blocks: list[pa.Table] = []
    count = 1
    sink = _CountingSink()
    with open_parquet(sink) as parquet:
        while position < leaf.pages and (position == first or time.monotonic() < deadline):
            began = time.monotonic()
            end = min(leaf.pages, position + count)
            for block in reader.read(None, table, LeafPages(leaf, position, end)):
                blocks.append(block_table(block, header, rows))
                rows += block.row_count
                waiting += block.byte_count
            if waiting >= GROUP_BYTES:
                parquet.write_table(pa.concat_tables(blocks).combine_chunks())
                blocks, waiting = [], 0
            position = end
            if time.monotonic() - began < _RANGE_SECONDS:
                count = min(2 * count, _MAX_PAGES)
        if blocks:
            parquet.write_table(pa.concat_tables(blocks).combine_chunks())
        return position - first, sink.size


class _CountingSink:
    """A binary file that keeps nothing but its size."""

    closed = False

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _period(seconds: float) -> str:
    return format_about_duration(seconds) if seconds >= 60 else f"{seconds:.0f} s"
