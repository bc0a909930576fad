"""The next step of a silver table, as one pure decision.

`decide` receives what is known of a table, and returns the step of the first row of `TABLE` whose condition
holds. apply carries the step out, `pgdelta plan` shows it, `pgdelta rebuild` leaves out the tables that it
blocks, and `pgdelta status` shows by it why a table waits. The facts come from `lake_facts`. Nothing is read
or written here.

A decision is made twice in a batch: before bronze is surveyed, with `counts` None, to know which tables need
a survey; and again with the survey's result.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.bronze.copy_states import CompleteCopy, Gap
from pipeline.config.tables import NO_LIMITS, Guards
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.fold.policies import find_excess
from pipeline.table_name import TableName


class Step(enum.Enum):
    """What a batch does to a table."""

    SKIP = "nothing to do"
    WAIT = "wait for a copy"
    START_FROM_COPY = "start from a copy"
    APPLY = "apply changes"
    PARTIAL_RESYNC = "put copied keys"
    REBUILD = "rebuild from bronze"
    WRITING = "being written"
    PAUSE = "wait for an operator"
    POSTPONE = "wait for its interval"
    BACK_OFF = "try again later"
    HOLD = "hold"
    FAIL = "fail"

    @property
    def writes(self) -> bool:
        """Whether the step writes to the table."""
        return self in _WRITING


STOPPED = (Step.WAIT, Step.HOLD, Step.FAIL, Step.POSTPONE, Step.BACK_OFF, Step.WRITING, Step.PAUSE)
STOPPED_BY_RECORD = ("folder taken", "keeps past", "other mode")
"""The rows that stop a table without an attempt to write it, for a reason that a person removes."""
_WRITING = frozenset({Step.START_FROM_COPY, Step.APPLY, Step.PARTIAL_RESYNC, Step.REBUILD})


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """Why the last attempt to write a table ended without it, and the seconds until the next attempt."""

    sentence: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known of a table that bronze has and the configuration follows.

    `offset` is the LSN up to which its rows are complete, INVALID if it has none. Texts are sentences for
    people; None means that the fact does not hold.
    """

    name: TableName
    end_lsn: LSN  # bronze is complete up to here
    offset: LSN = INVALID
    is_behind: bool = False  # in the newest manifest
    is_being_written: bool = False  # an earlier batch of this run still writes it; nothing else was read
    paused: str | None = None  # by an operator
    waits: bool = False  # for a copy that is not complete yet
    unreadable: str | None = None  # its log cannot be read
    folder: str | None = None  # its folder belongs to another table, or another table was put there
    lost: str | None = None  # its folder lacks rows that were written
    foreign: str | None = None  # another writer changed its rows, or removed columns
    copy: CompleteCopy | None = None  # the newest complete copy, if the table has not started from it yet
    past: str | None = None  # it has rows that a copy would remove
    other_mode: str | None = None  # its rows are kept in another mode than the configuration's
    gap: Gap | None = None  # the stream lacks changes, and no copy covers them
    type_change: LSN | None = None  # it stopped before this one, and its copy is requested
    has_key_requests: bool = False  # some of its keys wait for a copy
    rewrite: LSN | None = None  # it was rewritten before this one, and waits for its comparison
    partial_copies: tuple[CompleteCopy, ...] = ()  # complete copies of keys that are not applied yet
    counts: Mapping[str, int] | None = None  # pending changes by operation; None before the survey
    is_altered: bool = False  # its columns or identity changed, maybe without a change of its rows
    is_replaced: bool = False  # changes of another table were recorded under its name
    guards: Guards = NO_LIMITS
    is_confirmed: bool = False  # a person lifted the guards
    min_interval: int = 0  # least seconds between two writes
    since_write: float | None = None  # seconds since this run wrote it; None: not yet, or it need not wait
    last_stop: FailedAttempt | None = None  # it was held or failed, and its next attempt is not due

    @property
    def excess(self) -> str | None:
        """Why the guards hold the table; a table without rows has none to lose."""
        if self.is_confirmed or self.offset == INVALID or not self.counts:
            return None
        return find_excess(self.name, self.counts, self.guards)

    @property
    def backs_off(self) -> bool:
        """Whether the next attempt is not due; while guards hold the table, that is why it stops."""
        return self.last_stop is not None and (self.copy is not None or self.excess is None)

    @property
    def is_early(self) -> bool:
        """Whether pending changes wait because the last write is younger than the interval.

        Before the survey that is known of a table which the manifest shows to be behind.
        """
        is_recent = self.since_write is not None and self.since_write < self.min_interval
        return is_recent and self.has_changes and (self.counts is not None or self.is_behind)

    @property
    def has_changes(self) -> bool:
        """Whether changes are known to be pending, of rows or of columns."""
        if self.counts is None:
            return self.offset < self.end_lsn
        return self.is_altered or any(self.counts.values())


@dataclass(frozen=True, slots=True)
class Decision:
    """The step of a table, the row of `TABLE` that gave it, and a sentence if the table stops."""

    step: Step
    row: str
    sentence: str | None = None
    blocks_rebuild: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a name, when it holds, what follows."""

    name: str
    holds: Callable[[TableFacts], object]
    step: Step
    sentence: Callable[[TableFacts], str | None] = lambda facts: None
    blocks_rebuild: bool = False  # bronze lacks rows of it, its folder is not its own, or it is paused


TABLE = (
    Row("being written", lambda t: t.is_being_written, Step.WRITING, lambda t: _is_being_written(t.name)),
    Row("paused", lambda t: t.paused, Step.PAUSE, lambda t: t.paused, True),
    Row("copy awaited", lambda t: t.waits, Step.WAIT, lambda t: awaits_copy(t.name), True),
    Row("log unreadable", lambda t: t.unreadable, Step.FAIL, lambda t: t.unreadable),
    Row("folder taken", lambda t: t.folder, Step.HOLD, lambda t: t.folder, True),
    Row("table replaced", lambda t: t.is_replaced, Step.WAIT, lambda t: awaits_copy(t.name), True),
    Row("backs off", lambda t: t.backs_off, Step.BACK_OFF, lambda t: _awaits_attempt(t)),
    Row("keeps past", lambda t: t.copy and t.past, Step.HOLD, lambda t: t.past),
    Row("copy complete", lambda t: t.copy, Step.START_FROM_COPY),
    Row("other mode", lambda t: t.other_mode, Step.HOLD, lambda t: t.other_mode),
    Row("gap", lambda t: t.gap, Step.HOLD, lambda t: t.gap.table_sentence if t.gap else None, True),
    Row("type change", lambda t: t.type_change, Step.WAIT, lambda t: _awaits_copy_after(t)),
    Row("keys awaited", lambda t: t.has_key_requests, Step.WAIT, lambda t: _awaits_keys(t.name)),
    Row("comparison awaited", lambda t: t.rewrite, Step.WAIT, lambda t: _awaits_comparison(t)),
    Row("guards", lambda t: t.excess, Step.HOLD, lambda t: t.excess),
    Row(
        "rows lost", lambda t: t.lost and (t.has_changes or t.partial_copies), Step.REBUILD, lambda t: t.lost
    ),
    Row("foreign commit", lambda t: t.foreign, Step.FAIL, lambda t: t.foreign),
    Row("keys complete", lambda t: t.partial_copies, Step.PARTIAL_RESYNC),
    Row("written recently", lambda t: t.is_early, Step.POSTPONE, lambda t: _awaits_interval(t)),
    Row("changes pending", lambda t: t.has_changes, Step.APPLY),
    Row("up to date", lambda t: True, Step.SKIP),
)
"""The first row that holds decides."""


def decide(facts: TableFacts) -> Decision:
    """Return the next step of a table."""
    row = next(row for row in TABLE if row.holds(facts))
    return Decision(row.step, row.name, row.sentence(facts), row.blocks_rebuild)


def awaits_copy(name: TableName) -> str:
    """Return the sentence for a table whose copy is not complete."""
    return f"Table {name} waits for its copy. Run pgdelta ingest to complete it."


def _awaits_copy_after(facts: TableFacts) -> str:
    return (
        f"Table {facts.name} waits for its copy, because silver cannot follow the type change at "
        f"{facts.type_change}. Run pgdelta ingest to complete it."
    )


def _is_being_written(name: TableName) -> str:
    return f"An earlier batch still writes table {name}. A later batch applies the changes that follow."


def _awaits_interval(facts: TableFacts) -> str:
    return (
        f"Table {facts.name} was written less than {facts.min_interval} s ago, its min_interval. A later"
        " batch applies its changes."
    )


def _awaits_attempt(facts: TableFacts) -> str | None:
    stop = facts.last_stop
    return f"{stop.sentence} The next attempt is in {stop.seconds:.0f} s." if stop else None


def _awaits_keys(name: TableName) -> str:
    return f"Table {name} waits for the copy of some of its keys. Run pgdelta ingest to complete it."


def _awaits_comparison(facts: TableFacts) -> str:
    return (
        f"Table {facts.name} waits for its comparison with the source, where rows changed without a message"
        f" before {facts.rewrite}. Run pgdelta ingest to complete it."
    )
