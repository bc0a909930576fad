"""Events of an assembler, made up: transactions of given changes at positions that grow."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.bronze.relations import RelationVersion, relation_version
from pipeline.bronze.spool import Spool
from pipeline.bronze.staged_files import StagedFile
from pipeline.bronze.staged_transactions import StagedTransactions
from pipeline.protocol.events import Began, Change, Committed, Emitted, Truncation
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Insert, LogicalMessage, Origin, Relation
from tests.support.protocol.encode import encode


def relation(oid: int, name: str = "t", *, namespace: str = "public", width: int = 2) -> Relation:
    columns = tuple(Column(i == 0, f"c{i}", 25, -1) for i in range(width))
    return Relation(oid, namespace, name, "d", columns)


def version(of: Relation) -> RelationVersion:
    return relation_version(of, None, LSN(1))


class Session:
    """Feeds a spool: transaction `n` has its commit record at 100 n and its end at 100 n + 50."""

    def __init__(self, directory: Path, *relations: Relation) -> None:
        self.spool = Spool(directory)
        self.relations = relations
        for described in relations:
            self.spool.describe(version(described))
        self.n = 0
        self.ordinal = 0

    def begin(self) -> None:
        self.n += 1
        self.ordinal = 0
        self.spool.begin(Began(self.n, LSN(100 * self.n), self.n))

    def commit(self) -> LSN:
        end = LSN(100 * self.n + 50)
        self.spool.commit(Committed(self.n, LSN(100 * self.n), end, self.n, self.ordinal))
        return end

    def seal(self) -> StagedTransactions:
        staged = self.spool.seal()
        assert staged is not None
        return staged

    def change(self, *cells: bytes | None, of: int = 0, origin: Origin | None = None) -> None:
        to = self.relations[of]
        self.spool.add_change(Change(self.ordinal, to, origin, encode(Insert(to.oid, cells or (b"k", b"v")))))
        self.ordinal += 1

    def changes(self, count: int) -> None:
        for _ in range(count):
            self.change()

    def truncate(self, *which: int, options: int = 0, origin: Origin | None = None) -> None:
        relations = tuple(self.relations[i] for i in which)
        self.spool.add_truncation(Truncation(self.ordinal, relations, options, origin))
        self.ordinal += len(relations)

    def message(
        self, content: bytes, sequence: int, *, transactional: bool = True, prefix: str = "p"
    ) -> None:
        lsn = LSN(100 * self.n + 60 + sequence)
        message = LogicalMessage(transactional, lsn, prefix, content)
        self.spool.add_message(Emitted(sequence, message, transactional))

    def transaction(self, count: int) -> LSN:
        self.begin()
        self.changes(count)
        return self.commit()


def rows_of(staged: StagedTransactions | None) -> list[dict[str, Any]]:
    """Return the staged rows in commit order."""
    assert staged is not None
    return rows_of_files(staged.files)


def rows_of_files(files: Sequence[StagedFile]) -> list[dict[str, Any]]:
    """Return the rows of staged files in commit order."""
    rows = [row for file in files for row in pq.read_table(file.path).to_pylist()]
    assert len(rows) == row_count_of(files)
    return sorted(rows, key=lambda row: (row["commit_lsn"], row["op"] == "M", row["ordinal"]))


def row_count_of(files: Sequence[StagedFile]) -> int:
    """Return how many rows staged files have, as Delta's log will say."""
    return sum(file.data.row_count for file in files)


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return [(row["commit_lsn"], row["end_lsn"], row["ordinal"]) for row in rows]


def expected_places(*counts: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield the places of transactions given as (number, change count)."""
    for n, count in counts:
        yield from ((100 * n, 100 * n + 50, ordinal) for ordinal in range(count))
