"""`sync_names` syncs a folder and all folders above it, as far as they can be read."""

import os
import time
from pathlib import Path

import pytest

from pipeline.delta import sync
from pipeline.delta.sync import sync_names


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths that are synced from now on."""
    paths: list[str] = []
    monkeypatch.setattr(sync, "_synced", {})  # as in a new process
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


def test_folders_without_new_names_are_synced_once(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "_SETTLED_SECONDS", -1.0)
    above, folder = tmp_path.resolve(), tmp_path.resolve() / "a"
    folder.mkdir()
    time.sleep(0.02)  # longer than a tick of the clock of files
    sync_names(folder)
    synced.clear()
    sync_names(folder)
    assert synced == []
    (above / "b").mkdir()
    sync_names(folder)
    assert synced == [str(above)]


def test_a_folder_with_a_name_of_now_is_synced_again(tmp_path: Path, synced: list[str]) -> None:
    for _ in range(2):  # the time of a folder is too coarse to show a second name of the same moment
        sync_names(tmp_path.resolve())
    assert synced.count(str(tmp_path.resolve())) == 2
