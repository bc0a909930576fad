"""What apply reads of one table: where its input begins, and what each relation version has in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.protocol.lsn import INVALID, LSN

SequenceKey = tuple[int, int]
"""(commit LSN, ordinal): the order of changes."""
_LAST_ORDINAL = 2**62


@dataclass(frozen=True, slots=True)
class InputStart:
    """Where a table's input begins: after an offset, or with the rows of a copy."""

    offset: LSN = INVALID
    copy: CompleteCopy | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What one relation version has in the input: operations count rows."""

    version: int
    first: SequenceKey
    last: SequenceKey
    last_truncate: SequenceKey | None = None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    key_tuples: int = 0  # updates that carry the old key: it may have changed
    without_old_row: int = 0  # updates that do not carry the old row
    unchanged_toast: frozenset[int] = frozenset()  # 0-based columns that some change did not send


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """One relation version of one table in the input, with counts for people."""

    survey: Survey
    counts: Mapping[str, int]
    commit_time: datetime  # the latest


def survey_of(copy: CompleteCopy) -> Survey:
    """Return the survey of a copy's rows."""
    first, last = (int(copy.lsn), 0), (int(copy.lsn if copy.is_whole else copy.end_lsn), _LAST_ORDINAL)
    return Survey(copy.version, first, last, inserts=copy.row_count)
