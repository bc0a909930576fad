"""Chains of bronze commits."""

from itertools import pairwise
from typing import Any

from pipeline.delta.txn import TxnId
from pipeline.protocol.lsn import LSN
from pipeline.verify.commit_chain import LoggedCommit

APP = TxnId("shop")


FACTS = {"slot": "shop", "system_identifier": "7", "timeline": 1, "database": "shop"}


CREATED = LoggedCommit(0, "WRITE", metadata={"pgdelta": 1, "operation": "create"})


def link(version: int, start: int, end: int, **facts: Any) -> LoggedCommit:
    """Return a commit as ingest makes it."""
    segment = {"pgdelta": 1, "app_id": str(APP), "lsn": str(LSN(end)), "from_lsn": str(LSN(start))}
    return LoggedCommit(version, "WRITE", metadata={**segment, "to_lsn": str(LSN(end)), **FACTS, **facts})


def chain(*ends: int, first: int = 1) -> list[LoggedCommit]:
    """Return commits from the first LSN to the second, from that to the third, and so on."""
    links = pairwise(ends)
    return [link(first + i, a, b, transactions=int(b > a), changes=b - a) for i, (a, b) in enumerate(links)]


WHOLE = [CREATED, *chain(100, 100, 130, 150, 190)]
