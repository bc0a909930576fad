"""What a table that is written beside another tells: events of what nobody has been shown yet."""

from __future__ import annotations

from typing import Any, cast

from pipeline.lake.records import Event, Records
from pipeline.lake.silver.beside import RecordsBeside
from pipeline.lake.tables import Lake
from pipeline.protocol.lsn import LSN


def test_only_what_was_not_shown_yet_is_news_and_only_where_rows_are_missing() -> None:
    records = RecordsBeside(Records(Lake(cast("Any", None), "file:/lake")))
    happened = [
        Event("public", "t", LSN(lsn), kind, f"{kind} at {lsn}")
        for lsn in (40, 50, 60)
        for kind in ("evolved", "resync", "diverged")
    ]
    records.record_events(happened[:4])
    records.record_events(happened[4:])
    assert [event.sentence for event in records.news(LSN(50))] == ["resync at 60", "diverged at 60"]
    assert records.news(LSN(60)) == []
