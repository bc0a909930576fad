"""Alert rules: a table over the facts of status, of what needs a person. Pure.

`RULES` has a row for each condition. `find_alerts` returns an alert for each table, or for the pipeline, for
which one holds, and the rules whose facts are not known now: what they found before may still hold. A limit
that was exceeded counts as exceeded until half of it is reached, so that an alert does not come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pipeline.config.alerts import Alerting
from pipeline.errors import one_line
from pipeline.metadata.events import HOLDING, NEEDS_RESYNC
from pipeline.metadata.status import FAILED
from pipeline.protocol.lsn import INVALID
from pipeline.report.status_page import (
    BEHIND,
    CURRENT,
    IN_DOUBT,
    UNPUBLISHED,
    Status,
    TableStatus,
    seconds_until_limit,
)
from pipeline.table_name import TableName
from pipeline.units import format_duration, format_size

EXIT_CODE = 3
"""The exit code of `pgdelta status --alert` if there is an alert."""
DEFAULT_SILENCE = 3600
"""Seconds without an ingest after which the slot counts as unread, if no `lag` is configured."""
_SHORTEST_SILENCE = 150.0  # an idle ingest commits once a minute
_MIN_SHARE = 0.2  # of max_slot_wal_keep_size that is left
_MIN_SECONDS = 3600.0  # until the limit, at the present rate
_MAX_LINES = 500


class Alert(NamedTuple):
    """What needs a person: the rule that found it, the table, and what to do."""

    rule: str
    kind: str
    table: TableName | None
    sentence: str

    @property
    def key(self) -> str:
        """What identifies the alert while it lasts."""
        return f"{self.rule} {self.table}" if self.table else self.rule

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "kind": self.kind,
            "schema": self.table and self.table.schema,
            "table": self.table and self.table.table,
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """What the rules read.

    `captured_at` and `applied_at` are when bronze and the newest manifest were written, by the clock of
    `now`. `pending` has the age in seconds of the oldest change that waits for each table. `copy_failures`
    are those of an ingest that runs here, None in another process. `known` are the keys of alerts that began.
    """

    status: Status
    settings: Alerting
    now: datetime
    captured_at: datetime | None = None
    applied_at: datetime | None = None
    pending: Mapping[TableName, float] = field(default_factory=dict)
    copy_failures: Mapping[TableName | None, str] | None = None
    known: Collection[str] = ()

    def age(self, moment: datetime | None) -> float | None:
        """Return the seconds since a moment, None if it is not known."""
        return None if moment is None else max(0.0, (self.now - moment) / timedelta(seconds=1))

    def limit(self, value: float, key: str) -> float:
        """Return a limit, or half of it if it was exceeded before."""
        return value / 2 if key in self.known else value


Found = Iterator[tuple[TableName | None, str]]


class AlertRule(NamedTuple):
    """A condition: the word that turns it on, whether its facts are known, and what it finds."""

    name: str
    kind: str
    is_known: Callable[[AlertFacts], bool]
    find: Callable[[AlertFacts], Found]


def _always(facts: AlertFacts) -> bool:
    return True


def _has_source(facts: AlertFacts) -> bool:
    return facts.status.source is not None


def _tables(*states: str) -> Callable[[AlertFacts], Found]:
    """Return a finder of the tables in some states, with the sentences that status has for them."""

    def find(facts: AlertFacts) -> Found:
        for table in facts.status.tables:
            if table.state in states:
                yield table.name, table.sentence or f"Table {table.name} is {table.state}."

    return find


def _failed_tables(facts: AlertFacts) -> Found:
    for name, sentence in _tables(FAILED)(facts):
        yield name, f"{sentence} Apply tries again; correct the cause, or run {_apply(name)}."


def _apply(name: TableName | None) -> str:
    return "pgdelta apply" if name is None else name.command("apply")


def _unsynced(facts: AlertFacts) -> Found:
    for table in facts.status.tables:
        is_stuck = table.state == BEHIND and not table.awaits_copy
        if is_stuck and table.event is not None and table.event.kind in NEEDS_RESYNC:
            yield table.name, table.sentence or f"Run {table.name.command('resync')}."


def _failed_copies(facts: AlertFacts) -> Found:
    yield from (facts.copy_failures or {}).items()


def _failed_maintenance(facts: AlertFacts) -> Found:
    failed = sorted(each.table_name for each in facts.status.maintenance.values() if each.is_failed)
    if failed:
        rest = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        sentence = facts.status.maintenance[failed[0]].sentence or ""
        yield (
            None,
            f"Maintenance of {failed[0]}{rest} failed: {sentence} Rows are not affected, but files and logs"
            " grow. Correct the cause, and run pgdelta maintain.",
        )


def _missing_slot(facts: AlertFacts) -> Found:
    source, status = facts.status.source, facts.status
    if source is not None and source.slot is None and status.captured != INVALID:
        yield (
            None,
            f"The slot {status.slot_name} does not exist: it was dropped, or the server is another one. See"
            " source.lost_slot.",
        )


def _lost_slot(facts: AlertFacts) -> Found:
    source = facts.status.source
    if source is not None and source.slot is not None and source.slot.is_lost:
        reason = f" ({source.slot.invalidation_reason})" if source.slot.invalidation_reason else ""
        yield (
            None,
            f"The slot {source.slot.name} is lost{reason}, and the WAL that it retained is gone. See"
            " source.lost_slot.",
        )


def _restored_source(facts: AlertFacts) -> Found:
    if (sentence := facts.status.refusal) is not None:
        yield None, sentence


def _near_limit(facts: AlertFacts) -> Found:
    source, rate = facts.status.source, facts.status.rate
    if source is None or source.slot is None or source.slot.is_lost:
        return
    if source.keep_size is None or source.safe_size is None:
        return
    seconds = seconds_until_limit(source, rate)
    slack = 1.25 if "slot_limit" in facts.known else 1.0
    is_small = source.safe_size <= source.keep_size * _MIN_SHARE * slack
    if not is_small and (seconds is None or seconds > _MIN_SECONDS * slack):
        return
    rest = f", {format_duration(seconds)} at the present rate" if seconds else ""
    yield (
        None,
        f"The slot {source.slot.name} is lost when {format_size(max(0, source.safe_size))} more of WAL are"
        f" written{rest}. Run pgdelta ingest, or raise max_slot_wal_keep_size.",
    )


def _idle_slot(facts: AlertFacts) -> Found:
    source = facts.status.source
    left = None if source is None else source.idle_seconds_left
    if source is None or source.idle_timeout is None or left is None or source.slot is None:
        return
    limit = source.idle_timeout / timedelta(seconds=1)
    if left <= limit * _MIN_SHARE and not source.slot.is_lost:
        yield (
            None,
            f"The slot {source.slot.name} is lost unless a job reads it within"
            f" {format_duration(max(0.0, left))}: idle_replication_slot_timeout is {format_duration(limit)}."
            " Run pgdelta ingest now, and then more often; or raise that setting.",
        )


def _silence(facts: AlertFacts, rule: str) -> float | None:
    """Return for how long bronze has not grown although the source wrote WAL, None if that is short."""
    age, source = facts.age(facts.captured_at), facts.status.source
    limit = max(float(facts.settings.lag_limit or DEFAULT_SILENCE), _SHORTEST_SILENCE)
    if age is None or age <= facts.limit(limit, rule):
        return None
    return None if source is not None and source.wal_lsn <= facts.status.captured else age


def _is_unread(facts: AlertFacts) -> bool:
    source = facts.status.source
    if source is None or source.slot is None:
        return False
    return not source.slot.is_active and not source.slot.is_lost


def _unread_slot(facts: AlertFacts) -> Found:
    source = facts.status.source
    age = _silence(facts, "slot_unread")
    if source is not None and age is not None and _is_unread(facts):
        retained = source.retained_size
        size = "" if retained is None else f", and the server retains {format_size(retained)} of WAL for it"
        yield (
            None,
            f"No job has read the slot {facts.status.slot_name} for {format_duration(age)}{size}. Run pgdelta"
            " ingest, or drop the slot if the pipeline is not needed any more.",
        )


def _held_wal(facts: AlertFacts) -> Found:
    source = facts.status.source
    if source is not None and source.holder is not None:
        yield None, source.holder.sentence


def _large_wal(facts: AlertFacts) -> Found:
    source, limit = facts.status.source, facts.settings.wal_limit
    retained = source.retained_size if source is not None else None
    if retained is not None and limit is not None and retained > facts.limit(limit, "wal"):
        if any(_held_wal(facts)):
            yield from () if "slot" in facts.settings.on else _held_wal(facts)
            return
        yield (
            None,
            f"The server retains {format_size(retained)} of WAL for the slot {facts.status.slot_name}, more"
            f" than {format_size(limit)}. Check for an ingest that does not run or commit, and for"
            " transactions that are open for long.",
        )


def _late_capture(facts: AlertFacts) -> Found:
    age = _silence(facts, "capture")
    if age is None or ("slot" in facts.settings.on and _is_unread(facts)):
        return
    status = facts.status
    why = f" {status.unreachable}" if status.unreachable else ""
    yield (
        None,
        f"Bronze has been complete up to {status.captured} only for {format_duration(age)}.{why} Read the"
        " log of pgdelta ingest, and check for a large transaction that is open.",
    )


def _idle_apply(facts: AlertFacts) -> Found:
    oldest, age = max(facts.pending.values(), default=None), facts.age(facts.applied_at)
    limit = facts.limit(float(facts.settings.lag_limit or 0), "apply")
    if oldest is not None and oldest > limit and (age is None or age > limit):
        since = "never" if age is None else f"{format_duration(age)} ago"
        yield (
            None,
            f"Apply has last written to silver {since}, and the oldest change in bronze waits for"
            f" {format_duration(oldest)}. Run pgdelta apply, or read its log.",
        )


def _late_tables(facts: AlertFacts) -> Found:
    limit = float(facts.settings.lag_limit or 0)
    for name, age in sorted(facts.pending.items()):
        if age > facts.limit(limit, f"lag {name}"):
            yield (
                name,
                f"Table {name} is {format_duration(age)} behind bronze, more than {format_duration(limit)}."
                " Read the log of pgdelta apply, and check for a min_interval or a schedule that is longer.",
            )


def _apply_writes(facts: AlertFacts) -> bool:
    return not any(_idle_apply(facts))


RULES = (
    AlertRule("held", "held", _always, _tables(*HOLDING)),
    AlertRule("resync", "held", _always, _unsynced),
    AlertRule("doubt", "held", _always, _tables(IN_DOUBT)),
    AlertRule("failed", "failed", _always, _failed_tables),
    AlertRule("copy", "failed", lambda facts: facts.copy_failures is not None, _failed_copies),
    AlertRule("maintenance", "failed", _always, _failed_maintenance),
    AlertRule("unpublished", "unpublished", _always, _tables(UNPUBLISHED)),
    AlertRule("slot_missing", "slot", _has_source, _missing_slot),
    AlertRule("slot_lost", "slot", _has_source, _lost_slot),
    AlertRule("source_restored", "slot", _has_source, _restored_source),
    AlertRule("slot_limit", "slot", _has_source, _near_limit),
    AlertRule("slot_idle", "slot", _has_source, _idle_slot),
    AlertRule("slot_unread", "slot", _has_source, _unread_slot),
    AlertRule("slot_held", "slot", _has_source, _held_wal),
    AlertRule("wal", "wal", _has_source, _large_wal),
    AlertRule(
        "capture", "lag", lambda facts: bool(facts.status.source or facts.status.unreachable), _late_capture
    ),
    AlertRule("apply", "lag", _always, _idle_apply),
    # While apply writes to no table, each of them is late for the same reason.
    AlertRule("lag", "lag", _apply_writes, _late_tables),
)
"""Every condition, the most urgent first."""


class Alerts(NamedTuple):
    """The alerts of a pipeline, and the rules whose facts are not known."""

    pipeline: str
    found: Sequence[Alert]
    unknown: Collection[str] = ()

    def lines(self) -> list[str]:
        """Return one line for each alert, none if nothing needs a person."""
        lines = [f"{each.kind}: {one_line(each.sentence)}" for each in self.found[:_MAX_LINES]]
        rest = len(self.found) - len(lines)
        return [*lines, f"{rest} more alerts: run pgdelta status"] if rest else lines

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "alerts": [each.as_json() for each in self.found],
            "unknown": sorted(self.unknown),
        }

    def exit_code(self, strict: bool) -> int:
        """Return 0 if nothing needs a person, else `EXIT_CODE`."""
        return EXIT_CODE if self.found else 0


def find_alerts(facts: AlertFacts) -> Alerts:
    """Return what the rules find whose kinds are configured, and the rules that cannot be decided now."""
    kinds = {each.partition(">")[0].strip() for each in facts.settings.on}
    found: list[Alert] = []
    unknown: set[str] = set()
    for rule in RULES:
        if rule.kind not in kinds:
            continue
        if rule.is_known(facts):
            for name, sentence in rule.find(facts):
                named = sentence if name is None else name.introduce(sentence, f"{name}: ")
                found.append(Alert(rule.name, rule.kind, name, named))
        else:
            unknown.add(rule.name)
    return Alerts(facts.status.pipeline, found, unknown)


def awaited_tables(tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables whose changes apply is to write: not held, failed, paused, copied or detached."""
    return [each for each in tables if each.state in (CURRENT, IN_DOUBT, BEHIND) and not each.awaits_copy]
