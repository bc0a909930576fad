"""Tables that may differ from the source since an event, until a copy or a comparison settles it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.bronze.copy_states import CopyHistory
from pipeline.metadata.events import NEEDS_RESYNC, Event
from pipeline.metadata.reconciliations import Compared, ComparedAt
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a table may differ, and since when; `sentence` is that of the newest event and says what to do."""

    since: datetime
    lsn: LSN
    sentence: str


def find_doubts(
    events: Iterable[Event], history: CopyHistory, compared: Mapping[TableName, Compared]
) -> dict[TableName, Doubt]:
    """Return the tables in doubt: by the events of all tables, oldest first, or by their last comparison.

    An event is settled by a copy of all rows or a comparison under a later snapshot, by the copy of the rows
    that a later comparison found to differ, or by a later comparison that found none; a comparison that found
    some by such a copy. A table that is not published any more is not in doubt.
    """
    found: dict[TableName, Doubt] = {}
    settled: dict[TableName, LSN] = {}
    for event in events:
        name = event.name
        if event.kind not in NEEDS_RESYNC or history.is_dropped(name):
            continue
        if name not in settled:
            equal = compared[name].equal if name in compared else None
            settled[name] = max(history.settled(name), equal.lsn if equal else INVALID)
        if settled[name] < event.lsn:
            since = found[name].since if name in found else event.recorded_at
            found[name] = Doubt(since, event.lsn, event.sentence)
    for name, (_, _, different) in compared.items():
        if different is None or history.is_dropped(name) or history.settled(name) >= different.lsn:
            continue
        since = found[name].since if name in found else different.at
        found[name] = Doubt(since, different.lsn, _differs(name, different))
    return found


def _differs(name: TableName, found: ComparedAt) -> str:
    repair = f"{name.command('reconcile')} --repair"
    return f"Table {name} differed from its source at {found.lsn} ({found.method}). Run {repair}."
