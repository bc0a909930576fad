"""Request table copies automatically: after an event or a type change, or if a name changed hands.

Reads the events and the copies in bronze, and appends requests that the next ingest fulfils. It copies no
rows and writes no silver table. Requests made with `pgdelta resync` are not handled here.
"""

from pipeline.apply.planner import BatchPlan
from pipeline.bronze.copies import Copies
from pipeline.bronze.copy_states import DROPPED, READING, CopyHistory, CopyRequest, rewritten_before
from pipeline.config.config import Config
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


def request_after_events(config: Config, records: Records, copies: Copies) -> None:
    """With `silver.resync: auto`, request a copy of each table that was not copied since its `resync` event.

    A table whose copy is in progress under a snapshot older than the event is requested again afterwards.
    """
    if config.silver.resync != "auto" or not (events := records.events.resyncs()):
        return
    history = copies.read()
    older = {n for n, lsn in events.items() if config.rule_for(n) and history.is_older(n, lsn)}
    names = sorted(name for name in older if not _is_requested(name, history))
    copies.request([CopyRequest.of(name, "An event requires a resync.") for name in names])
    records.events.forget_resyncs({name: lsn for name, lsn in events.items() if name not in older})


def request_after_type_change(name: TableName, lsn: LSN, copies: Copies) -> None:
    """Request a copy of a table that stops before a type change, unless one was requested for it."""
    history = copies.read()
    if history.is_dropped(name):
        return  # no copy can be made
    requests = history.open_requests.get(name, ())
    if all(request.type_change != lsn for request in requests):
        copies.request([CopyRequest.after_type_change(name, lsn)])


def request_replaced(pending: BatchPlan, copies: Copies) -> None:
    """Request copies of tables that wait because another table had their name, unless a copy is in progress.

    Ingest copies the table that it finds under a name. It does not detect that another table had the name for
    a while if the name has been restored since.
    """
    waiting = pending.replaced & pending.manifest.behind.keys()
    history = copies.read()
    last = {name: history.last(name) for name in sorted(waiting) if not _is_requested(name, history)}
    names = [name for name, state in last.items() if state is None or state.state not in (READING, DROPPED)]
    copies.request(
        [CopyRequest.of(name, "Another table had the name after the last copy.") for name in names]
    )


def _is_requested(name: TableName, history: CopyHistory) -> bool:
    """Return whether a request is open, except to compare a table once silver has what precedes a rewrite.

    A table that is held before it is not compared; another request has it copied.
    """
    found = history.open_requests.get(name, ())
    return bool(found) and rewritten_before(found) is None
