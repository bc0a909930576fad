"""Copies that are asked for without anybody: of tables of which an event said that only a copy helps."""

from pipeline.config import Config
from pipeline.lake.bronze.copies import Copies
from pipeline.lake.bronze.copy_states import Request
from pipeline.lake.records import Records


def ask_for_copies(config: Config, records: Records, copies: Copies) -> None:
    """Ask, where the configuration says so, for tables that were not copied since their event.

    One that is copied just now, under a snapshot from before the event, is asked for again afterwards.
    """
    if config.silver.resync != "auto" or not (told := records.resyncs()):
        return
    history = copies.read()
    older = {n for n, lsn in told.items() if config.rule_for(*n) and history.is_older(n, lsn)}
    wanted = sorted(older - history.open_requests().keys())
    copies.request([Request.of(name, "an event said so") for name in wanted])
    records.forget_resyncs({name: lsn for name, lsn in told.items() if name not in older})
