"""The status page and the details of a table at several widths, with hostile names among 58 tables.

The whole pages are in `pages/`; `python -m tests.unit.report.test_status_page` writes them.
"""

import io
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.metadata.events import Event
from pipeline.metadata.maintenance import Maintained
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import Status, TableStatus
from pipeline.report.table_details import (
    ColumnStatus,
    SourceColumnType,
    StatusDetails,
    TableDetails,
    list_columns,
    render_table_details,
)
from pipeline.table_name import TableName
from tests.support.statuses import current_table, shop_source, shop_status

PAGES = Path(__file__).parent / "pages"
WIDTHS = (80, 160)
ORDER = ("failed", "held", "refused", "behind", "copying", "detached", "current")


def printed(found: Status | StatusDetails, width: int) -> str:
    page = io.StringIO()
    found.print(Console(file=page, width=width))
    return page.getvalue()


def details() -> StatusDetails:
    """Return the details of a held table, a hostile one and a detached one."""
    status = shop_status()
    held = next(table for table in status.tables if table.state == "held")
    hostile = next(table for table in status.tables if table.copy_share is not None)
    detached = next(table for table in status.tables if table.state == "detached")
    columns = list_columns(
        {"id": "BIGINT", "price": "INT", "Größe": "STRING", "_commit_lsn": "BIGINT"},
        {"id": "id", "price": "price", "Größe": "Größe"},
        {
            "id": SourceColumnType("int8", True),
            "price": SourceColumnType("text", False),
            "new\x1b[31m": SourceColumnType("int4[]", False),
        },
        held.misfits,
    )
    return StatusDetails(
        replace(status, tables=(held, hostile, detached)),
        (
            TableDetails(hostile),
            TableDetails(detached, path="/lake/archive/old/detached_1"),
            TableDetails(held, columns, "/lake/silver/public/orders", 16_385, LSN(0x5_0000_1000), "native"),
        ),
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_58_tables_is_this_one(width: int) -> None:
    assert len(shop_status().tables) == 58
    assert printed(shop_status(), width) == (PAGES / f"status_{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_details_of_tables_are_these(width: int) -> None:
    assert printed(details(), width) == (PAGES / f"details_{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 120, 132, 160, 240])
def test_no_line_is_wider_than_the_terminal_and_a_table_is_one_line(width: int) -> None:
    page = printed(shop_status(), width)
    assert all(cell_len(line) <= width for line in page.splitlines())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", page)
    head, table, sentences = page.split("\n\n")
    assert len(table.splitlines()) == 59
    if width >= 80:
        assert len(head.splitlines()) <= 7
        assert len(sentences.splitlines()) <= 12


def test_words_are_not_broken() -> None:
    wide = printed(shop_status(), 10_000)
    words = set(wide.split())
    for paragraph in (0, 2):
        part = printed(shop_status(), 60).split("\n\n")[paragraph]
        assert set(part.split()) <= words
    state_column = {line.split()[1] for line in printed(shop_status(), 60).split("\n\n")[1].splitlines()[1:]}
    assert state_column == set(ORDER)


def test_tables_are_sorted_by_what_needs_attention() -> None:
    status = shop_status()
    lines = printed(status, 240).split("\n\n")[1].splitlines()[1:]
    states = [next(word for word in line.split() if word in ORDER) for line in lines]
    assert states == sorted(states, key=ORDER.index)
    behind = [table for table in status.tables if table.state == "behind"]
    assert [table.lag_bytes for table in sorted(behind, key=lambda table: table.attention)] == sorted(
        (table.lag_bytes for table in behind if table.lag_bytes is not None), reverse=True
    )
    assert lines[-1].startswith("public.vouchers")
    assert next(line for line in lines if "current" in line).startswith("public.rates")  # awaits a copy


def test_the_totals_count_every_table_once() -> None:
    first = printed(shop_status(), 160).splitlines()[0]
    name, total, states = first.split(": ")
    assert (name, total) == ("shop", "58 tables")
    counts = {state: int(count) for count, state in (part.split() for part in states.split(", "))}
    assert tuple(counts) == ORDER
    assert sum(counts.values()) == 58


def test_a_sentence_of_many_tables_is_printed_once() -> None:
    status = shop_status()
    waiting = tuple(
        replace(table, state="current", awaits_copy=True, sentence="The next ingest copies the table.")
        for table in status.tables
    )
    sentences = printed(replace(status, tables=waiting), 80).split("\n\n")[2]
    assert sentences.count("The next ingest copies") == 1
    assert "and 53 more:" in " ".join(sentences.split())


def test_columns_without_content_are_left_out() -> None:
    tables = (current_table(TableName("public", "a")),)
    heading = printed(replace(shop_status(), tables=tables), 80).split("\n\n")[1].splitlines()[0]
    assert "misfits" not in heading
    assert "last day" in heading


def test_full_names_and_sentences_are_in_the_json() -> None:
    status = shop_status()
    data = json.loads(json.dumps(status.as_json()))
    assert [(table["schema"], table["table"]) for table in data["tables"]] == [t.name for t in status.tables]
    assert {table["state"] for table in data["tables"]} == set(ORDER)
    by_name = {table["table"]: table for table in data["tables"]}
    assert by_name["orders"]["misfits"] == {"price": 12, "note": 3}
    assert by_name["\x1b[2J\x1b]0;title\x07[red]"]["copy_share"] == 0.3
    assert by_name["rates"]["awaits_copy"]


def test_a_source_that_was_not_read_is_one_line() -> None:
    offline = replace(shop_status(), source=None, rate=None)
    assert "source: not read. Lag is measured against bronze." in printed(offline, 80)
    unreachable = replace(offline, unreachable="Cannot connect to the source: timeout. Check conninfo.")
    assert (
        "source: Cannot connect to the source: timeout. Check conninfo. Lag is measured against bronze."
        in printed(unreachable, 100)
    )
    unknown = replace(shop_status(), source=shop_source(), rate=None)
    assert "9.7 GiB left; time remaining unknown (no recent WAL rate)" in printed(unknown, 160)


def test_maintenance_is_one_line_and_a_failure_is_named() -> None:
    def line(*done: Maintained) -> str:
        text = printed(replace(shop_status(), maintenance={each.table_name: each for each in done}), 160)
        [found] = [line for line in text.splitlines() if line.startswith("maintenance")]
        return found

    moment = datetime(2026, 11, 23, 12, 0, 5, tzinfo=timezone.utc)
    well = Maintained("bronze/changes", moment, 90, 40, 3, 1 << 20, 38, 500, 0.25)
    failed = Maintained("public.t", moment - timedelta(hours=1), 7, is_failed=True, sentence="No space left.")
    assert line(well) == "maintenance: 1 table, last at 2026-11-23 12:00:05 UTC"
    assert line(well, failed) == (
        "maintenance: 2 tables, last at 2026-11-23 12:00:05 UTC; 1 failed. public.t: No space left."
    )
    assert "maintenance" not in printed(shop_status(), 160)
    data = replace(shop_status(), maintenance={well.table_name: well}).as_json()["maintenance"]
    assert data == [
        {
            "table": "bronze/changes",
            "maintained_at": "2026-11-23T12:00:05+00:00",
            "version": 90,
            "files_before": 40,
            "files_after": 3,
            "bytes": 1 << 20,
            "removed_files": 38,
            "removed_log_files": 500,
            "seconds": 0.25,
            "failed": False,
            "sentence": None,
        }
    ]
    table = TableDetails(current_table(TableName("public", "t")), maintained=well)
    page = printed(StatusDetails(shop_status(), (table,)), 160)
    assert "2026-11-23 12:00:05 UTC: 40 to 3 data files (1.0 MiB), 538 files removed" in page
    page = printed(StatusDetails(shop_status(), (replace(table, maintained=failed),)), 160)
    assert "2026-11-23 11:00:05 UTC: No space left." in page


def test_a_pipeline_without_tables_is_a_few_lines() -> None:
    page = printed(Status("shop", LSN(0), LSN(0), None, ()), 80)
    assert page.splitlines()[0] == "shop: 0 tables"
    assert len(page.splitlines()) == 3


def test_columns_are_those_of_silver_then_those_it_lacks() -> None:
    columns = list_columns(
        {"ID": "INT", "_commit_lsn": "BIGINT"},
        {"ID": "id"},
        {"id": SourceColumnType("int4", True), "late": SourceColumnType("text", False)},
        {"id": 2, "gone": 5},
    )
    assert columns == (
        ColumnStatus("ID", "INT", "int4", True, 2),
        ColumnStatus("_commit_lsn", "BIGINT", None),
        ColumnStatus("late", None, "text"),
        ColumnStatus("gone", None, None, False, 5),
    )


def test_details_of_a_current_table_have_the_last_event() -> None:
    name = TableName("public", "a")
    table = replace(
        current_table(name), event=Event(*name, LSN(16), "evolved", "Column b was added."), lag_bytes=0
    )
    page = io.StringIO()
    render_table_details(Console(file=page, width=80), TableDetails(table), behind="bronze")
    assert page.getvalue().splitlines()[0] == "public.a: current"
    assert "last event  evolved at 0/10: Column b was added." in page.getvalue()
    assert "none behind bronze" in page.getvalue()


def test_a_notice_is_for_tables_to_act_on() -> None:
    event = Event("public", "a", LSN(16), "evolved", "Column b was added.")
    table = replace(current_table(TableName("public", "a")), sentence=event.sentence, event=event)
    assert table.notice is None
    assert replace(table, state="behind").notice is None
    assert replace(table, state="held").notice == event.sentence
    gap: TableStatus = replace(table, state="behind", event=replace(event, kind="resync"))
    assert gap.notice == event.sentence


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for size in WIDTHS:
        (PAGES / f"status_{size}.txt").write_text(printed(shop_status(), size), encoding="utf-8")
        (PAGES / f"details_{size}.txt").write_text(printed(details(), size), encoding="utf-8")
