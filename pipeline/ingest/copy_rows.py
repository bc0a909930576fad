"""The rows of `bronze/copies`, one for each thing that happens to a copy."""

from collections.abc import Sequence
from dataclasses import asdict

from pipeline.ingest.copy_round import TableCopy
from pipeline.lake.bronze.copy_history import CopyHistory
from pipeline.lake.bronze.copy_states import ABANDONED, COMPLETE, GONE, READING, CopyState, key_range_rows
from pipeline.protocol.lsn import LSN
from pipeline.rules import TableName

Row = dict[str, object]


def gone_row(copies: CopyHistory, name: TableName, lsn: LSN) -> Row:
    """Say that a table is not there; whoever asked for it waits no longer."""
    last = copies.last(name)
    is_begun = last is not None and last.state == READING
    state = last if last is not None and is_begun else CopyState(copies.next_id(), name, GONE)
    requests = [request.id for request in copies.open_requests().get(name, [])]
    sentence = f"{'.'.join(name)} is not published (any more)"
    return {**_identity(state), "state": GONE, "lsn": lsn, "requests": requests, "sentence": sentence}


def reading_row(table: TableCopy) -> Row:
    """Say that a table is read, under which snapshot, and what."""
    reading = table.reading
    return {
        **_identity(table.state),
        "relation_id": table.table.relation.oid,
        "membership": table.state.membership,
        "relation_version": table.place.version.id,
        "state": READING,
        "lsn": reading.lsn,
        "running": list(reading.running),
        "ranges_before": reading.ranges_before,
        "ranges": [asdict(each) for each in reading.ranges],
        "key_ranges": key_range_rows(table.state.key_ranges),
        "requests": list(table.state.requests),
    }


def complete_row(table: TableCopy, late: Sequence[LSN]) -> Row:
    """Say that all was read, and which transactions before it the snapshot lacks."""
    state = table.state
    return {
        **_identity(state),
        "state": COMPLETE,
        "late": [int(lsn) for lsn in late],
        "row_count": state.row_count,
        "requests": list(state.requests),
    }


def abandoned_row(state: CopyState, sentence: str) -> Row:
    """Say why what was read does not count."""
    return {**_identity(state), "state": ABANDONED, "requests": list(state.requests), "sentence": sentence}


def _identity(state: CopyState) -> Row:
    return {"copy_id": state.id, "schema_name": state.name[0], "table_name": state.name[1]}
