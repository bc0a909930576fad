"""Tables whose rows are copied, and a load on them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest

from pipeline.bronze.copy_states import Chunk
from pipeline.bronze.staged_files import StagedFile
from pipeline.postgres.snapshot.read_table import CopyReader
from pipeline.table_copy.reader_pool import ReaderPool, TableCopy
from tests.support.pipelines import Pipeline
from tests.support.threads import in_threads

BIG = "(SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 90) j)"


ORDERS = (
    "CREATE TABLE orders (id int8 PRIMARY KEY, n int, big text, price numeric(12,2), at timestamptz)",
    "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
)


FILL = (
    f"INSERT INTO orders SELECT i, i % 7, CASE WHEN i % 3 > 0 THEN {BIG} END, i / 7.0, "
    "timestamptz '2020-01-01' + i * interval '1 hour' FROM generate_series(1, {}) i"
)


BAG = ("CREATE TABLE bag (a int, b text)", "ALTER TABLE bag REPLICA IDENTITY FULL")


FILL_BAG = "INSERT INTO bag SELECT i % 50, repeat('x', i % 3) FROM generate_series(1, 20000) i"


@contextmanager
def load(pipeline: Pipeline, seed: int) -> Iterator[None]:
    """Change `orders` and the multiset all the time, by two sessions."""

    def change(random: Random, stop: threading.Event) -> None:
        with pipeline.database.connect() as source:
            while not stop.wait(0.01):
                i = random.randrange(1, 4000)
                with source.transaction():
                    for _ in range(random.randrange(1, 4)):
                        source.execute(statement(random, i).encode())

    with in_threads(*(partial(change, Random(seed + number)) for number in range(2))):
        yield


def statement(random: Random, i: int) -> str:
    return random.choice(
        [
            f"UPDATE orders SET n = n + 1 WHERE id = {i}",
            f"UPDATE orders SET big = repeat('y', {random.randrange(5000)}) WHERE id = {i}",
            f"UPDATE orders SET id = {random.randrange(10**9)} WHERE id = {i}",
            f"DELETE FROM orders WHERE id = {i}",
            f"INSERT INTO orders SELECT i, 1, {BIG}, 1 FROM (SELECT {random.randrange(10**9)} AS i) s "
            "ON CONFLICT DO NOTHING",
            f"UPDATE bag SET a = {i % 50} WHERE ctid = (SELECT ctid FROM bag WHERE a = {i % 50} LIMIT 1 "
            "FOR UPDATE SKIP LOCKED)",
            f"DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = {i % 50} LIMIT 1 "
            "FOR UPDATE SKIP LOCKED)",
            f"INSERT INTO bag VALUES ({i % 50}, 'new')",
        ]
    )


def stop_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Let copying end by a failure once so many chunks of a table were read, always the same ones."""
    stage = ReaderPool._stage

    def stage_or_stop(
        self: ReaderPool, reader: CopyReader, table: TableCopy, chunk: Chunk
    ) -> StagedFile | None:
        if table.snapshot.chunks.index(chunk) >= chunks:
            raise OSError("cut off")
        return stage(self, reader, table, chunk)

    monkeypatch.setattr(ReaderPool, "_stage", stage_or_stop)
