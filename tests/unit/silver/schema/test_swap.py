"""The records of a table that is rebuilt: only resyncs after the LSN that readers have seen are new."""

from typing import Any, cast

from pipeline.delta.table import Lake
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.swap import BufferedRecords


def test_only_resyncs_after_the_shown_lsn_are_returned() -> None:
    records = BufferedRecords(Records(Lake("file:/lake", cast("Any", None))))
    events = [
        Event("public", "t", LSN(lsn), kind, f"{kind} at {lsn}")
        for lsn in (40, 50, 60)
        for kind in ("evolved", "resync", "diverged")
    ]
    records.events.record(events[:4])
    records.events.record(events[4:])
    after = records.events.resyncs_after(LSN(50))
    assert [event.sentence for event in after] == ["resync at 60", "diverged at 60"]
    assert records.events.resyncs_after(LSN(60)) == []
