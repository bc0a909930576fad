"""Reports and records of tables that stop before they are written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pipeline.apply.planner import TablePlan
from pipeline.bronze.copy_states import CopyHistory
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifest
from pipeline.progress import TableState
from pipeline.protocol.lsn import INVALID
from pipeline.silver.decision import STOPPED_BY_RECORD, Decision, Step
from pipeline.table_name import TableName


def stopped_tables(
    manifest: Manifest, decisions: Mapping[TableName, Decision], shown: Mapping[TableName, TableState]
) -> tuple[dict[TableName, TableState], list[Event]]:
    """Return the states of tables that cannot be read or written, and events that say why they are held.

    `shown` are the states so far; a table that is not paused any more is among the returned ones, too.
    """
    entries, behind = manifest.by_name, manifest.behind
    states = {name: replace(state, paused=None) for name, state in shown.items() if state.paused}
    events = []
    for name, decision in decisions.items():
        if decision.step is Step.FAIL:
            states[name] = TableState(behind.get(name, INVALID), failure=decision.sentence)
        elif decision.row == "paused":
            before, applied = shown.get(name, TableState()), behind.get(name, manifest.lsn)
            states[name] = TableState(applied, before.changes, before.misfits, paused=decision.sentence)
        elif decision.row in STOPPED_BY_RECORD and decision.sentence:
            states[name] = TableState(behind.get(name, manifest.lsn), held=decision.sentence)
            lsn = entries[name].applied_lsn if name in entries else INVALID
            events.append(Event(*name, lsn, "held", decision.sentence))
    return states, events


def gap_events(tables: Iterable[TablePlan], history: CopyHistory) -> list[Event]:
    """Return the events of tables that lack the changes of a gap; one that is compared needs no resync."""
    compared = {n for n, found in history.open_requests.items() if all(each.compares for each in found)}
    found = ((table.facts.name, table.facts.gap) for table in tables)
    return [
        Event(*name, gap.start, "held" if name in compared else "resync", gap.table_sentence)
        for name, gap in found
        if gap
    ]
