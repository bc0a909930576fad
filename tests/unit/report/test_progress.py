"""Table copies under way: the text of each line, and how few of many tables are shown."""

import io
import json
import sys
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.progress import ApplySummary, CopyProgress, IngestSummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.report import progress
from pipeline.report.copy_bars import CopyBars
from pipeline.report.copy_lines import ended_lines, list_rows, list_running, total_line
from pipeline.report.progress import MAX_COPIED_LINES, CopyBoard
from pipeline.table_name import TableName

ORDERS = TableName("public", "orders")


def copy_of(chunks: int = 100, landed: int = 0, rows: int = 0, **facts: Any) -> CopyProgress:
    """Return a copy that has begun if it has rows; `landed` chunks are read, and have one page each."""
    facts = {"began": 0.0 if rows else None, "chunks_read": landed, "pages": chunks, **facts}
    return CopyProgress(chunks=chunks, chunks_landed=landed, rows=rows, rows_landed=rows, **facts)


def some() -> dict[TableName, CopyProgress]:
    """Return twelve copies: three complete, one of orders under way, eight that wait."""
    tables = {TableName("public", f"t{i}"): copy_of(1) for i in range(8)}
    for i in range(3):
        tables[TableName("public", f"done{i}")] = copy_of(1, 1, 100, is_complete=True)
    tables[ORDERS] = copy_of(100, 41, 12_299_700, seconds=68.0, bytes=3 << 30)
    return tables


def test_all_tables_are_one_line() -> None:
    assert total_line(some(), 180_000.0) == (
        "copying: 3 of 12 tables complete, public.orders 41%, 12,300,000 rows, 180,000 rows/s"
    )
    many = {TableName("public", f"t{i}"): copy_of(100, i + 1, 10) for i in range(5)}
    many[TableName("public", "bad")] = copy_of(failure="It is gone.")
    assert total_line(many, 0.0) == (
        "copying: 0 of 6 tables complete, 1 failed, public.t0 1%, public.t1 2%, public.t2 3%, "
        "2 more under way, 50 rows, 0 rows/s"
    )


def test_a_table_that_ended_is_one_line() -> None:
    done = copy_of(1, 1, 12_300_000, is_complete=True, bytes=(5 << 30) // 2, seconds=250.2)
    failed = copy_of(failure="orders cannot be copied: permission denied.")
    assert ended_lines([(ORDERS, done), (TableName("public", "new\n\x1b[2Jline"), failed)]) == [
        "copied public.orders: 12,300,000 rows, 2.5 GiB of text, 4 min 10 s",
        r"copy of public.new\n\x1b[2Jline failed: orders cannot be copied: permission denied.",
    ]


def test_many_copies_have_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    done = {TableName("public", f"t{i:03}"): copy_of(1, 1, 10, is_complete=True, bytes=9) for i in range(300)}
    failed = {TableName("public", f"f{i}"): copy_of(failure="No.") for i in range(7)}
    with CopyBoard() as board:
        board.update(summary_of(done))
        board.update(summary_of(done | failed))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_COPIED_LINES + 7
    assert lines[0].startswith("copied public.t000: 10 rows")
    assert ended_lines([*failed.items()], 5) == [
        "copy of 7 tables failed (public.f0, public.f1, public.f2, …); the first: No."
    ]
    closing = summary_of(done | failed).lines()
    assert closing[0] == (
        "copied 300 tables (public.t000, public.t001, public.t002, public.t003, public.t004 and 295 more): "
        "3,000 rows, 3 KiB of text"
    )
    assert len([line for line in closing if line.startswith("cop")]) == 8


def test_a_board_shows_few_tables_and_one_line_of_all() -> None:
    many = {TableName("public", f"t{i}"): copy_of(100, 50, 1000, seconds=10.0) for i in range(300)}
    many[TableName("public", "read")] = copy_of(1, 1, 7)
    rows = list_rows(many, 5.0, 8)
    assert len(rows) == 9
    assert (rows[0].title, rows[0].share, rows[0].rows) == ("public.t0", 0.5, "1,000 rows")
    assert (rows[0].rate, rows[0].remaining) == ("100 rows/s", "10 s left")
    assert rows[-1].title == "0 of 301 tables complete, 293 more run"
    # what only waits for capture gives its place to what is read
    assert list_running(many)[-1][0] == TableName("public", "read")
    assert list_rows({ORDERS: copy_of(1, 1, 7)}, 0.0, 8)[0].remaining == "waits for capture"
    assert list_rows({ORDERS: copy_of(2, 1, 7, chunks_read=2)}, 0.0, 8)[0].remaining == "landing"


def test_tables_that_wait_are_not_shown() -> None:
    [orders, total] = list_rows(some(), 180_000.0, 8)
    assert (orders.title, orders.size, orders.remaining) == ("public.orders", "3.0 GiB", "1 min 38 s left")
    assert (total.title, total.rows, total.rate) == (
        "3 of 12 tables complete",
        "12,300,000 rows",
        "180,000 rows/s",
    )
    assert list_rows({ORDERS: copy_of(0)}, 0.0, 8)[-1].share == 1.0


def test_the_remaining_time_follows_what_bronze_holds() -> None:
    assert copy_of(4, 1, seconds=10.0).seconds_remaining == 30.0
    assert copy_of(4, 0, 5, seconds=10.0).seconds_remaining is None
    assert copy_of(4, 4, 5, seconds=10.0).seconds_remaining is None


def test_time_counts_from_the_first_read() -> None:
    copy = CopyProgress()
    copy.landed(0, 0)
    assert copy.seconds == 0.0
    copy.begin()
    began = copy.began
    copy.begin()
    copy.read(10, 100)
    assert copy.began == began
    assert 0.0 < copy.seconds < 100


def test_the_share_of_all_is_by_pages() -> None:
    copies = {TableName("public", f"t{i}"): copy_of(1, 1, 10, is_complete=True) for i in range(50)}
    copies[ORDERS] = copy_of(2, 1, 10, pages=950)
    assert list_rows(copies, 0.0, 8)[-1].share == 0.525


def summary_of(copies: dict[TableName, CopyProgress], failure: str | None = None) -> IngestSummary:
    return IngestSummary("shop", "shop", copies=copies, copy_failure=failure)


def test_outside_a_terminal_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = summary_of(some())
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with CopyBoard() as board:
        board.update(summary)
        board.update(summary)
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(":")[0] for line in lines] == [
            *(f"copied public.done{i}" for i in range(3)),
            "copying",
        ]
        for copy in summary.copies.values():
            copy.failure = None if copy.is_complete else "It is gone."
        summary.copy_failure = "All is lost."
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count(" failed: It is gone.\n") == 9
    assert output.err.endswith("copy failed: All is lost.\n")


def test_a_repeated_failure_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    with CopyBoard() as board:
        for _ in range(3):
            board.update(summary_of({ORDERS: copy_of()}))
            board.update(summary_of({ORDERS: copy_of(failure="No.")}, "Nothing goes."))
        board.update(summary_of({ORDERS: copy_of(1, 1, 2, is_complete=True)}))
        board.update(summary_of({ORDERS: copy_of(1, 1, 3, is_complete=True, began=1.0)}))
    output = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in output] == [
        "copy of public.orders failed: No.",
        "copy failed: Nothing goes.",
        "copied public.orders: 2 rows",
        "copied public.orders: 3 rows",
    ]


def test_publication_lines_are_printed_once_and_group_tables(capsys: pytest.CaptureFixture[str]) -> None:
    summary = IngestSummary("shop", "slot")
    with CopyBoard() as board:
        board.update(summary)
        summary.published.append(TableName("public", "t"))
        board.update(summary)
        summary.unpublished = {TableName("public", f"u{n}"): "It has no key." for n in range(7)}
        board.update(summary)
    assert capsys.readouterr().err.splitlines() == [
        "added to the publication: public.t",
        "not published: public.u0, public.u1, public.u2, public.u3, public.u4 and 2 more. It has no key.",
    ]
    assert (summary.exit_code(strict=False), summary.exit_code(strict=True)) == (0, 1)


def test_with_json_stderr_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with CopyBoard(is_quiet=True) as board:
        board.update(summary_of(some(), "All is lost."))
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_bars_and_keeps_stdout_free(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    summary = summary_of(some())
    with CopyBoard(is_quiet=True) as board:
        board.update(summary)
        print(json.dumps({"captured": 3}))
        summary.copies[ORDERS].is_complete = True
        board.update(summary)
        shown = terminal.getvalue()
        assert "1 min 38 s left" in shown
        assert "3 of 12 tables complete" in shown
        assert "copied public.orders: 12,299,700 rows" in shown
        assert "public.t7" not in shown
    assert capsys.readouterr().out == '{"captured": 3}\n'
    assert terminal.getvalue().count("\x1b[?25l") < terminal.getvalue().count("\x1b[?25h")  # the cursor


class Closed(io.StringIO):
    """A stderr whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_stderr_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    with CopyBoard() as board:
        board.update(summary_of(some()))


def many_rows() -> dict[TableName, CopyProgress]:
    return {TableName("public", f"t{i}"): copy_of(100, 50, 1000, seconds=10.0) for i in range(20)}


@pytest.mark.parametrize(("width", "shown"), [(80, ""), (120, "3.0 GiB")])
def test_the_board_fits_a_small_terminal(width: int, shown: str) -> None:
    console = Console(file=io.StringIO(), width=width)
    copies = some() | {
        TableName("public", "a_table_with_quite_a_long_name"): copy_of(100, 7, 9_000_000, seconds=9.0)
    }
    bars = CopyBars(console)
    bars.update(list_rows(many_rows(), 1.0, 8))
    bars.update(list_rows(copies, 180_000.0, 8))
    console.print(bars.progress.get_renderable())
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) == 3
    for part in ("41%", "12,299,700 rows", "180,878 rows/s", "1 min 38 s left", shown):
        assert part in lines[0]
    assert ("…" in lines[1]) == (width == 80)


def test_a_rebuild_names_its_tables_and_what_it_applied_before() -> None:
    summary = ApplySummary("shop", LSN(16), {TableName("public", "orders"): TableState(LSN(16))})
    summary.rebuilt = [TableName("public", "orders"), TableName("public", "items")]
    rebuilt = "rebuild shop: 2 tables built again from bronze: public.items, public.orders; silver shows 0/10"
    assert summary.lines() == [rebuilt]
    summary.tables[TableName("public", "orders")].changes = 3
    assert summary.lines() == ["apply shop: 3 changes to 1 table; silver shows 0/10", rebuilt]


def test_a_rebuild_of_many_or_no_tables_has_no_names() -> None:
    summary = ApplySummary("shop", LSN(16), rebuilt=[TableName("public", f"t{i}") for i in range(6)])
    assert summary.lines() == ["rebuild shop: 6 tables built again from bronze; silver shows 0/10"]
    held = {TableName("public", "orders"): TableState(held="Table public.orders is held.")}
    assert ApplySummary("shop", LSN(16), held, rebuilt=[]).lines() == [
        "rebuild shop: 0 tables built again from bronze; silver shows 0/10",
        "held: Table public.orders is held.",
    ]


@pytest.mark.parametrize(("is_together", "count"), [(True, 1), (False, 2)])
def test_what_was_printed_in_the_run_is_not_printed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_together: bool, count: int
) -> None:
    monkeypatch.setattr("pipeline.report.progress.is_same_output", lambda: is_together)
    summary = IngestSummary("shop", "shop")
    failed = TableName("public", "secret")
    sentence = "The table public.secret cannot be copied: permission denied."
    summary.copies = {failed: copy_of(failure=sentence)}
    summary.passed_over = {TableName("public", "seen"): "It is a view."}
    with CopyBoard() as board:
        board.update(summary)
    lines = [*capsys.readouterr().err.splitlines(), *summary.lines()]
    assert lines.count(f"copy failed: {sentence}") == count
    assert lines.count("not followed: public.seen. It is a view.") == count


def test_a_sentence_that_names_its_table_gets_no_prefix() -> None:
    name = TableName("public", "t")
    assert name.introduce("The table public.t is locked.", "The copy of public.t failed: ") == (
        "The table public.t is locked."
    )
    assert name.introduce("public.table is locked.", "public.t: ") == "public.t: public.table is locked."
