"""What follows after a rewrite of a table, by policy and by what silver shows."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config, Silver, Source
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.rewrites import Rewrites
from pipeline.table_name import TableName

NAME = TableName("public", "t")
CONFIG = Config("shop", Source("", copy="initial"))


def settled(config: Config, folder: Path, *, is_whole: bool = True) -> tuple[list[str], list[str]]:
    """Return the kinds of the events and the reasons of the requests after a rewrite before an LSN."""
    state = CaptureState()
    rewrites = Rewrites(config, Bronze(Lake(str(folder)), "shop"), state)
    events, requests = rewrites.settle({NAME: "It was rewritten."}, LSN(0x20), is_whole=is_whole)
    assert state.required_lsn == (0x20 if requests else 0)
    return [event.kind for event in events], [request.reason for request in requests]


def test_a_rewrite_is_compared_copied_or_an_event(tmp_path: Path) -> None:
    compare = ["compare with the source after the rewrite or type change before 0/20"]
    assert settled(CONFIG, tmp_path) == (["evolved"], compare)
    resync = replace(CONFIG, silver=Silver(rewrites="resync"))
    assert settled(resync, tmp_path) == (
        ["evolved"],
        ["The table was rewritten, or a type altered, before 0/20."],
    )
    assert settled(replace(CONFIG, silver=Silver(rewrites="event")), tmp_path) == (["resync"], [])
    assert settled(replace(CONFIG, tables=()), tmp_path) == ([], [])


@pytest.mark.parametrize(
    "rule", [TableRule("*.*", on_delete="ignore"), TableRule("*.*", mode="append")], ids=["keeps", "append"]
)
def test_rows_that_are_not_those_of_the_source_are_not_compared(rule: TableRule, tmp_path: Path) -> None:
    assert settled(replace(CONFIG, tables=(rule,)), tmp_path) == (["resync"], [])


def test_what_no_copy_and_not_all_operations_bring_is_not_compared(tmp_path: Path) -> None:
    assert settled(CONFIG, tmp_path, is_whole=False) == (["resync"], [])
    never = replace(CONFIG, source=replace(CONFIG.source, copy="never"))
    assert settled(never, tmp_path) == (["resync"], [])
