"""Pause tables, so that apply writes nothing to them, and resume them.

Capture goes on: bronze keeps the changes, and a table that is resumed has all of them after the next batch.
What was paused is recorded in the lake, so it stays paused for every job until it is resumed. Both commands
can be repeated; the events have what they did.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.sql import utc_text
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.metadata.events import PAUSED, RESUMED, Event
from pipeline.metadata.pauses import Pause, paused_names
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import INVALID
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class PauseSummary:
    """What one command did: the tables that it paused or resumed, and all that are paused now."""

    pipeline: str
    verb: str  # paused or resumed
    done: tuple[TableName, ...]
    paused: tuple[Pause, ...]

    def lines(self) -> list[str]:
        lines = [f"{self.pipeline}: {format_count(len(self.done), 'table')} {self.verb}"]
        lines += [f"  {self.verb}: {name}" for name in self.done]
        return [*lines, *(f"  {each.sentence(each.name)}" for each in self.paused)]

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            self.verb: [name._asdict() for name in self.done],
            "now_paused": [
                {
                    "schema": each.schema_name,
                    "table": each.table_name,
                    "reason": each.reason,
                    "paused_at": utc_text(each.paused_at),
                    "lsn": str(each.lsn),
                }
                for each in self.paused
            ],
        }


def pause_tables(config: Config, globs: Sequence[str], *, reason: str | None = None) -> PauseSummary:
    """Pause the tables that globs match; raise ConfigError if none does."""
    if reason is not None and (len(reason) > _LONGEST_REASON or not reason.isprintable()):
        raise ConfigError(f"--reason is one line of at most {_LONGEST_REASON} characters. Shorten it.")
    matches = match_tables(globs)
    lake, bronze, records = _open(config, "pause")
    relations = bronze.source_relations().values() if bronze.relations.exists() else ()
    oids = {relation.name: relation.oid for relation in sorted(relations, key=lambda each: each.lsn)}
    known = {*records.tables.read(), *oids}
    names = [name for name in sorted(known) if config.rule_for(name) is not None and matches(name)]
    if not names:
        raise no_match(lake, config, globs)
    offset = bronze.captured_offset()
    now = datetime.now(timezone.utc)
    lsn = offset.lsn if offset else INVALID
    added = records.pauses.pause([Pause(*name, oids.get(name), lsn, reason, now) for name in names])
    paused = records.pauses.read()
    _record(records, PAUSED, [each for each in paused if each.name in names])
    done = tuple(each.name for each in added)
    return PauseSummary(config.pipeline, "paused", done, tuple(paused))


def resume_tables(config: Config, globs: Sequence[str]) -> PauseSummary:
    """Resume the paused tables that globs match by a present or an earlier name.

    Raises ConfigError if none does.
    """
    matches = match_tables(globs)
    _, bronze, records = _open(config, "resume")
    pauses = records.pauses.read()
    names_by_oid: dict[int, set[TableName]] = {}
    for relation in bronze.source_relations().values() if pauses and bronze.relations.exists() else ():
        names_by_oid.setdefault(relation.oid, set()).add(relation.name)
    wanted = {each for name, each in paused_names(pauses, names_by_oid).items() if matches(name)}
    if not wanted:
        paused = ", ".join(str(each.name) for each in pauses)
        raise ConfigError(
            "No paused table matches --table. "
            + (f"Paused are: {paused}." if paused else "No table is paused, so there is nothing to resume.")
        )
    _record(records, RESUMED, sorted(wanted, key=lambda each: each.name))
    done = records.pauses.resume({each.name for each in wanted})
    names = tuple(each.name for each in done)
    return PauseSummary(config.pipeline, "resumed", names, tuple(records.pauses.read()))


def _open(config: Config, command: str) -> tuple[Lake, Bronze, Records]:
    lake = Lake.for_writing(config.storage, application=f"pgdelta {command} {config.pipeline}")
    return lake, Bronze(lake, config.pipeline), Records(lake)


def _record(records: Records, kind: str, pauses: Collection[Pause]) -> None:
    """Record events; those of an earlier run that ended before its end are recorded once."""
    records.events.ensure()
    events = []
    for each in pauses:
        since = f"{each.paused_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f} UTC"
        sentence = f"Table {each.name} was resumed; it had been paused since {since}."
        if kind == PAUSED:
            reason = f" Reason: {each.reason}." if each.reason else ""
            sentence = f"Table {each.name} was paused at {since}.{reason}"
        events.append(Event(*each.name, each.lsn, kind, sentence))
    records.events.record(events)
