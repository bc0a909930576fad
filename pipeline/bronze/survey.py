"""What one relation version has among the changes of a range of LSNs."""

from dataclasses import dataclass

from pipeline.bronze.copied_rows import CompleteCopy

SequenceKey = tuple[int, int]  # (commit LSN, ordinal)


_LAST_ORDINAL = 2**62


@dataclass(frozen=True, slots=True)
class Survey:
    """What one relation version has in the input; ops count rows, places are (commit LSN, ordinal)."""

    version: int
    first: SequenceKey
    last: SequenceKey
    last_truncate: SequenceKey | None = None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    key_tuples: int = 0  # updates that carry the old key: it may have changed
    without_old_row: int = 0  # updates that do not carry the old row
    unchanged_toast: frozenset[int] = frozenset()


def survey_of(copy: CompleteCopy) -> Survey:
    """Return the survey of a copy's rows."""
    first, last = (int(copy.lsn), 0), (int(copy.lsn if copy.is_whole else copy.end_lsn), _LAST_ORDINAL)
    return Survey(copy.version, first, last, inserts=copy.row_count)
