"""What a seal of the spool hands over for one commit to bronze: staged files of complete transactions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from pipeline.bronze.relations import RelationVersion
from pipeline.bronze.staged_files import StagedFile
from pipeline.protocol import events
from pipeline.protocol.lsn import LSN

PreparedOutcome: TypeAlias = events.CommittedPrepared | events.RolledBackPrepared


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """The file of a prepared transaction, which is kept apart until its outcome is known."""

    gid: str
    xid: int
    file: StagedFile


@dataclass(frozen=True, slots=True)
class StagedTransactions:
    """Complete transactions that end after `start_lsn` (exclusive), up to `end_lsn` (inclusive).

    `versions` must be recorded before `files`, whose rows name them. `outcomes` are those of prepared
    transactions, in the order of the stream. `commit_time` is that of the newest transaction so far, None if
    there is none or Python's calendar does not have it.
    """

    start_lsn: LSN
    end_lsn: LSN
    files: tuple[StagedFile, ...] = ()
    versions: tuple[RelationVersion, ...] = ()
    prepared: tuple[PreparedFile, ...] = ()
    outcomes: tuple[PreparedOutcome, ...] = ()
    transaction_count: int = 0
    change_count: int = 0
    commit_time: datetime | None = None
