"""The events of a lake are read once for `pgdelta status`."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.table import LakeTable
from pipeline.metadata.events import DETACHED, UNPUBLISHED, Event
from pipeline.protocol.lsn import LSN
from pipeline.report.status import read_status
from pipeline.report.status_page import UNPUBLISHED as UNPUBLISHED_STATE
from tests.support.native_lakes import NativeLake


def test_status_reads_the_events_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = NativeLake(tmp_path / "lake", 3)
    lake.records.events.record(
        [
            Event("public", "t0000", LSN(5), "evolved", "A column was added."),
            Event("public", "t0001", LSN(6), UNPUBLISHED, "It has no replica identity."),
            Event("public", "t0002", LSN(7), UNPUBLISHED, "It has no replica identity."),
        ]
    )
    lake.records.events.record([Event("public", "t0002", LSN(8), DETACHED, "It was dropped.")])
    newest = lake.records.events.newest()
    assert {name.table: event.kind for name, event in newest.tables.items()} == {"t0000": "evolved"}
    assert {name.table for name in newest.unpublished} == {"t0001"}
    reads = []
    rows = LakeTable.rows

    def count_reads(table: LakeTable, *arguments: Any, **options: Any) -> Any:
        reads.append("/".join(table.path.split("/")[-2:]))
        return rows(table, *arguments, **options)

    monkeypatch.setattr(LakeTable, "rows", count_reads)
    states = {table.name.table: table.state for table in read_status(lake.config, is_offline=True).tables}
    assert states["t0001"] == UNPUBLISHED_STATE
    assert reads.count("_pgdelta/events") == 1
