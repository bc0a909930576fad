"""What a table that is written beside another tells: events of what nobody has been shown yet."""

from __future__ import annotations

from typing import Any, cast

from pipeline.delta.table import Lake
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import LSN
from pipeline.silver.swap import BufferedRecords


def test_only_what_was_not_shown_yet_is_news_and_only_where_rows_are_missing() -> None:
    records = BufferedRecords(Records(Lake(cast("Any", None), "file:/lake")))
    happened = [
        Event("public", "t", LSN(lsn), kind, f"{kind} at {lsn}")
        for lsn in (40, 50, 60)
        for kind in ("evolved", "resync", "diverged")
    ]
    records.record_events(happened[:4])
    records.record_events(happened[4:])
    assert [event.sentence for event in records.news(LSN(50))] == ["resync at 60", "diverged at 60"]
    assert records.news(LSN(60)) == []
