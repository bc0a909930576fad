"""Input of apply for one table: where it begins, and what each relation version has in it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.delta.sql import EPOCH
from pipeline.protocol.lsn import INVALID, LSN

SequenceKey = tuple[int, int]
"""(commit LSN, ordinal): the order of changes."""
_LAST_ORDINAL = 2**62


@dataclass(frozen=True, slots=True)
class InputStart:
    """Where a table's input begins: after an offset, or with the rows of a copy.

    The rows of a copy that `is_later` do not replace those of the table, which has rows that are gone.
    """

    offset: LSN = INVALID
    copy: CompleteCopy | None = None
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """What one relation version has in the input: operations count rows.

    A version `at_rest` has no changes: the catalog had it at the LSN.
    """

    version: int
    first: SequenceKey
    last: SequenceKey
    last_truncate: SequenceKey | None = None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    key_tuples: int = 0  # updates that carry the old key: it may have changed
    without_old_row: int = 0  # updates that do not carry the old row
    partial_inserts: int = 0  # without unchanged TOAST: an update brought the row into the row filter
    unchanged_toast: frozenset[int] = frozenset()  # 0-based columns that some change did not send
    at_rest: bool = False

    @property
    def changes(self) -> int:
        """The number of inserts, updates and deletes."""
        return self.inserts + self.updates + self.deletes

    def merged(self, other: "Survey") -> "Survey":
        """Return the survey of both inputs, which have no change in common, of the same version."""
        truncates = [key for key in (self.last_truncate, other.last_truncate) if key is not None]
        return Survey(
            version=self.version,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            last_truncate=max(truncates, default=None),
            inserts=self.inserts + other.inserts,
            updates=self.updates + other.updates,
            deletes=self.deletes + other.deletes,
            key_tuples=self.key_tuples + other.key_tuples,
            without_old_row=self.without_old_row + other.without_old_row,
            partial_inserts=self.partial_inserts + other.partial_inserts,
            unchanged_toast=self.unchanged_toast | other.unchanged_toast,
            at_rest=self.at_rest and other.at_rest,
        )


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """One relation version of one table in the input, with counts for people."""

    survey: Survey
    counts: Mapping[str, int]
    commit_time: datetime  # the latest

    def merged(self, other: "TableSurvey") -> "TableSurvey":
        """Return the survey of both inputs, which have no change in common, of the same version."""
        counts = Counter(self.counts)
        counts.update(other.counts)
        times = self.commit_time, other.commit_time
        return TableSurvey(self.survey.merged(other.survey), dict(counts), max(times))


@dataclass(frozen=True, slots=True)
class TruncatedAt:
    """A TRUNCATE of a table in its input; `micros` is its commit time, in microseconds since 1970."""

    commit_lsn: int
    ordinal: int
    micros: int

    @property
    def key(self) -> SequenceKey:
        """Its place in the order of changes."""
        return self.commit_lsn, self.ordinal


def merged(surveys: Iterable[TableSurvey]) -> list[TableSurvey]:
    """Return one survey for each relation version of one table, in the order of their first changes.

    No change may be in two of the surveys.
    """
    found: dict[int, TableSurvey] = {}
    for each in surveys:
        known = found.get(each.survey.version)
        found[each.survey.version] = known.merged(each) if known else each
    return sorted(found.values(), key=lambda each: each.survey.first)


def survey_at_rest(lsn: LSN, version: int) -> TableSurvey:
    """Return the survey of a version that the catalog had at an LSN."""
    key = int(lsn), _LAST_ORDINAL
    return TableSurvey(Survey(version, key, key, at_rest=True), {}, EPOCH)


def survey_of(copy: CompleteCopy) -> Survey:
    """Return the survey of a copy's rows."""
    first, last = (int(copy.lsn), 0), (int(copy.lsn if copy.is_whole else copy.end_lsn), _LAST_ORDINAL)
    return Survey(copy.version, first, last, inserts=copy.row_count)
