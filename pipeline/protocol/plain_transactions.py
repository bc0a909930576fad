"""Read plain transactions many at a time: Begin, changes of described relations, Commit, and nothing else.

Most transactions are plain, and the smaller they are, the more their Begin and Commit cost, which are decoded
here by columns. Whatever is not plain, or not as it has to be, is left to `Assembler.receive`, message by
message: it knows what to make of it, and says what is wrong.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

_RUN = re.compile(rb"(?:B[IUD]*C)+")
_BEGIN = struct.Struct(">xQqI")  # final LSN, commit time, xid
_COMMIT = struct.Struct(">xBQQq")  # flags, commit LSN, end LSN, commit time
_ROW_TYPES = frozenset(b"IUD")
_BEGIN_TYPE, _COMMIT_TYPE = b"BC"


class PlainTransactions(NamedTuple):
    """Plain transactions in the order of their commits: lists with an entry for each transaction.

    `changes` are the messages of all, undecoded, and `oids` the four bytes that name the relation of each.
    Times are microseconds since 2000-01-01 UTC.
    """

    xids: Sequence[int]
    commit_lsns: Sequence[int]
    end_lsns: Sequence[int]
    commit_times: Sequence[int]
    change_counts: Sequence[int]
    changes: Sequence[bytes]
    oids: Sequence[bytes]


def type_bytes(messages: Sequence[bytes]) -> bytes:
    """Return the type byte of each message; no bytes at all if one of them has none."""
    kinds = b"".join([message[:1] for message in messages])
    return kinds if len(kinds) == len(messages) else b""


def find_runs(kinds: bytes) -> Iterator[tuple[int, int]]:
    """Find the messages that can be plain transactions, by their type bytes: start and end of each run."""
    for run in _RUN.finditer(kinds):
        yield run.span()


def read_run(
    messages: Sequence[bytes], kinds: bytes, described: Container[bytes], first_lsn: int
) -> PlainTransactions | None:
    """Return the transactions of a run; None if one of them has to be read message by message.

    That is one that is malformed, names a relation that is not `described`, or was committed before
    `first_lsn`.
    """
    begins = [message for message in messages if message[0] == _BEGIN_TYPE]
    commits = [message for message in messages if message[0] == _COMMIT_TYPE]
    if {*map(len, begins)} != {_BEGIN.size} or {*map(len, commits)} != {_COMMIT.size}:
        return None
    changes = [*compress(messages, map(_ROW_TYPES.__contains__, kinds))]
    oids = [message[1:5] for message in changes]
    if not all(oid in described for oid in set(oids)):
        return None
    final_lsns, _, xids = zip(*_BEGIN.iter_unpack(b"".join(begins)), strict=True)
    flags, commit_lsns, end_lsns, commit_times = zip(*_COMMIT.iter_unpack(b"".join(commits)), strict=True)
    if any(flags) or commit_lsns != final_lsns or min(commit_lsns) < first_lsn:
        return None
    if any(map(int.__lt__, end_lsns, commit_lsns)):
        return None
    counts = [len(transaction) - 1 for transaction in kinds.split(b"C")[:-1]]
    return PlainTransactions(xids, commit_lsns, end_lsns, commit_times, counts, changes, oids)
