"""Have something done in the middle of a commit, whoever makes it: pgdelta itself or Spark."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta import commit_files, data_files, native_commit
from pipeline.delta.log import now_milliseconds
from pipeline.delta.store import files
from pipeline.delta.sync import sync_folder
from pipeline.delta.table import LakeTable


def commit_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Spark commit, as on storage that is not this machine's."""
    monkeypatch.setattr(LakeTable, "writes_natively", lambda *arguments, **options: False)


def do_before_commit(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have something done once, after the next commit has read the log and before it is made."""
    is_done = False
    now = now_milliseconds

    def act() -> int:
        nonlocal is_done
        if not is_done:
            is_done = True
            action()
        return now()

    for module, name in (
        (commit_files, "_now"),
        (native_commit, "now_milliseconds"),
        (data_files, "now_milliseconds"),
    ):
        monkeypatch.setattr(module, name, act)


def do_before_reading_back(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], object]) -> None:
    """Have something done with each version that was committed, before it is read back."""
    native, by_spark = native_commit._read_back, commit_files._read_back

    def read_back_natively(table: Any, version: int, txn_id: str) -> None:
        action(version)
        native(table, version, txn_id)

    def read_back_by_spark(table: Any, transaction: Any, version: int) -> None:
        action(version)
        by_spark(table, transaction, version)

    monkeypatch.setattr(native_commit, "_read_back", read_back_natively)
    monkeypatch.setattr(commit_files, "_read_back", read_back_by_spark)


def fail_to_sync_logs(monkeypatch: pytest.MonkeyPatch, under: Path = Path("/")) -> None:
    """Have commits fail once they are made, when the folders of their logs are synced."""

    def fail(folder: Path) -> None:
        if folder.name == "_delta_log" and folder.is_relative_to(under):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_folder(folder)

    monkeypatch.setattr(files, "sync_folder", fail)
