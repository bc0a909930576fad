"""`sync_names` syncs a folder and all folders above it, as far as they can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.delta.sync import sync_names


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths that are synced from now on."""
    paths: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    return paths


def test_a_folder_and_all_above_it_are_synced(tmp_path: Path, synced: list[str]) -> None:
    folder = tmp_path.resolve() / "a" / "b"
    folder.mkdir(parents=True)
    sync_names(folder)
    assert synced == [str(each) for each in (folder, *folder.parents)]


def test_a_folder_that_does_not_exist_is_left_out(tmp_path: Path, synced: list[str]) -> None:
    sync_names(tmp_path.resolve() / "a" / "b")
    assert synced == [str(each) for each in (tmp_path.resolve(), *tmp_path.resolve().parents)]


def test_a_folder_that_may_not_be_read_is_left_out(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int) -> int:
        if path == tmp_path:
            raise PermissionError
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    sync_names(tmp_path)
    assert synced == [str(each) for each in tmp_path.parents]
