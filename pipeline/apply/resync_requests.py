"""Copies that nobody asked for: of tables that an event says only a copy helps, or that wait for one."""

from pipeline.apply.planner import BatchPlan
from pipeline.bronze.copies import Copies
from pipeline.bronze.copy_states import DROPPED, READING, CopyRequest
from pipeline.config.config import Config
from pipeline.metadata.registry import Records


def request_after_events(config: Config, records: Records, copies: Copies) -> None:
    """Ask, where the configuration says so, for tables that were not copied since their event.

    One that is copied just now, under a snapshot from before the event, is asked for again afterwards.
    """
    if config.silver.resync != "auto" or not (told := records.events.resyncs()):
        return
    history = copies.read()
    older = {n for n, lsn in told.items() if config.rule_for(n) and history.is_older(n, lsn)}
    wanted = sorted(older - history.open_requests().keys())
    copies.request([CopyRequest.of(name, "an event said so") for name in wanted])
    records.events.forget_resyncs({name: lsn for name, lsn in told.items() if name not in older})


def request_replaced(pending: BatchPlan, copies: Copies) -> None:
    """Ask for tables that wait since the last pass, as another had their name, and that nobody copies.

    Ingest copies what it finds under a name, but sees no other where the name came back meanwhile.
    """
    waiting = pending.replaced & pending.manifest.behind.keys()
    history = copies.read()
    last = {name: history.last(name) for name in sorted(waiting - history.open_requests().keys())}
    wanted = [name for name, state in last.items() if state is None or state.state not in (READING, DROPPED)]
    copies.request(
        [CopyRequest.of(name, "another table had its name since it was copied") for name in wanted]
    )
