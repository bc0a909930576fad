"""The demo's board: one line a table in 80 columns, and one line elsewhere."""

import io
import re
from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipeline.delta.table import LakeTable
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.demo import board as board_module
from pipeline.demo.board import Board
from pipeline.demo.shop import TABLES, Load
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.progress import ApplySummary, IngestSummary, TableState
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


class FixedLoad:
    """What the board reads of a load."""

    def __init__(self) -> None:
        self.counts = Counter(inserts=1_234_567)
        self.rows = Counter(dict.fromkeys(TABLES, 1_234_567))

    def lag_of(self, offset: LSN) -> tuple[float, int]:
        return (0.0, 0) if offset >= 900 else (612.34, 1_073_000_000 - int(offset))


def make_board(tmp_path: Path, console: Console) -> Board:
    board = Board(tmp_path, "shop", cast(Load, FixedLoad()), console)
    board.stage = "changing the shop"
    summary = ApplySummary("shop", LSN(900))
    summary.tables[TableName("shop", "order_items")] = TableState(LSN(5), 987_654, failure="No.")
    summary.tables[TableName("shop", "orders")] = TableState(LSN(5), 3, held="A type.")
    board.on_ingest(IngestSummary("shop", "shop", changes=1_234_000))
    board.on_apply(summary)
    return board


def test_a_terminal_of_80_columns_has_one_line_a_table(tmp_path: Path) -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True)
    with make_board(tmp_path, console) as board:
        board.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue()).replace("\r", "\n")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    assert all(cell_len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[2:8]] == [f"shop.{table}" for table in TABLES]
    by_table = {line.split()[0]: line.split()[1:] for line in lines[2:8]}
    assert by_table["shop.order_items"] == [
        *("failed", "1,234,567", "0", "987,654", "612.3", "s", "1023.3", "MiB"),
    ]
    assert by_table["shop.orders"][0] == "held"
    assert by_table["shop.carts"] == ["1,234,567", "0", "0", "0.0", "s", "0", "B"]
    assert "…" not in text
    assert "1,234,567 changes made, 1,234,000 in bronze" in text


def test_elsewhere_it_is_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "_LINE_SECONDS", 0.0)
    file = io.StringIO()
    with make_board(tmp_path, Console(file=file, width=80)) as board:
        board.refresh()
    [line] = file.getvalue().splitlines()
    assert line.partition(", ")[2] == (
        "changing the shop: 7,407,402 rows in source, 0 in silver, 987,657 changes applied, "
        "lag 612.3 s, 1023.3 MiB of WAL"
    )


def test_silver_has_passed_an_lsn_once_no_table_is_being_written(tmp_path: Path) -> None:
    board = make_board(tmp_path, Console(file=io.StringIO()))
    ingested, applied = board.ingested, board.applied
    assert ingested is not None
    assert applied is not None
    ingested.captured_offset = LSN(900)

    def show(*behind: str) -> None:
        entries = [ManifestEntry("shop", t, f"/lake/{t}", 1, LSN(5), t in behind) for t in TABLES]
        applied.show(Manifest(LSN(900), None, tuple(entries)))

    show()
    assert board.has_passed(LSN(900))
    assert not board.has_passed(LSN(901))
    show("carts")
    assert not board.has_passed(LSN(900))
    lags = {lag.table: lag.lag_seconds for lag in board.table_lags()}
    assert lags["carts"] > 600
    assert lags["customers"] == 0
    show("orders", "order_items")  # held, and failed
    assert board.has_passed(LSN(900))
    ingested.captured_offset = LSN(899)
    assert not board.has_passed(LSN(900))


def test_rows_and_the_offset_are_those_of_the_silver_table(tmp_path: Path) -> None:
    carts = LakeTable(str(tmp_path / "silver" / "shop" / "carts"))
    carts.ensure("id BIGINT")
    carts.append_rows([{"id": 1}, {"id": 2}], "id BIGINT", TableCommit(TxnId("shop"), LSN(700)))
    carts.append_rows([{"id": 3}], "id BIGINT", TableCommit(TxnId("other"), LSN(900)))
    board = Board(tmp_path, "shop", cast(Load, FixedLoad()), None)
    found = {lag.table: (lag.silver_rows, lag.lag_bytes) for lag in board.table_lags()}
    assert found["carts"] == (3, 1_073_000_000 - 700)
    assert found["orders"] == (0, 1_073_000_000)
