"""One apply of a lake at a time: a lock that ends with the process, however that ends."""

import errno
import fcntl
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.delta.locks import find_running_apply, lock_apply, refuse_while_apply_runs
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from tests.support.paths import ROOT
from tests.support.processes import ended

HOLD = """\
import sys, time
from types import SimpleNamespace
from pipeline.delta.locks import lock_apply

with lock_apply(SimpleNamespace(local_root=sys.argv[1], root=sys.argv[1]), "shop"):
    print("held", flush=True)
    time.sleep(600)
"""


def lake_at(folder: Path | None) -> Lake:
    """Return the part of a lake that a lock uses; None is a lake on other storage."""
    return cast(
        Lake,
        SimpleNamespace(local_root=folder and str(folder), root=f"file:{folder}" if folder else "ofs://b"),
    )


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that holds the lock of the lake in the test's folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lake")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_a_second_apply_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    lake = lake_at(tmp_path / "not" / "there" / "yet")
    errors: list[BaseException] = []

    def second() -> None:
        try:
            refuse_while_apply_runs(lake)
        except LakeError as error:
            errors.append(error)

    with lock_apply(lake, "shop"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert "Another apply is writing the silver tables of file:" in str(errors)
    refuse_while_apply_runs(lake)


def test_the_lock_is_released_by_every_exception(tmp_path: Path) -> None:
    lake = lake_at(tmp_path)

    def fail(error: BaseException) -> None:
        with lock_apply(lake, "shop"):
            raise error

    for error in (KeyboardInterrupt(), SystemExit(1), ValueError()):
        with pytest.raises(type(error)):
            fail(error)
        refuse_while_apply_runs(lake)
    with lock_apply(lake, "shop"), pytest.raises(LakeError):
        refuse_while_apply_runs(lake)
    refuse_while_apply_runs(lake)


@pytest.mark.promise("one job at a time")
def test_the_holder_is_named_and_a_kill_releases_the_lock(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    lake = lake_at(tmp_path / "lake")
    with pytest.raises(LakeError, match=rf"\(process {holder.pid} on .*\)\. Stop it"):
        refuse_while_apply_runs(lake)
    assert (find_running_apply(lake) or "").startswith(f"process {holder.pid} on ")
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    assert (tmp_path / "lake" / "_pgdelta" / "locks" / "apply").read_text(), (
        "the holder's name is still there"
    )
    assert find_running_apply(lake) is None
    refuse_while_apply_runs(lake)


def test_a_copy_of_a_locked_lake_is_not_locked(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert holder.poll() is None
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    refuse_while_apply_runs(lake_at(tmp_path / "copy"))
    with pytest.raises(LakeError):
        refuse_while_apply_runs(lake_at(tmp_path / "lake"))


def test_on_other_storage_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lock_apply(lake_at(None), "shop"):
        refuse_while_apply_runs(lake_at(None))
    assert not list(tmp_path.iterdir())


def test_on_a_file_system_without_locks_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, number: int = errno.ENOLCK) -> None:
        raise OSError(number, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_apply(lake_at(tmp_path), "shop"):
        refuse_while_apply_runs(lake_at(tmp_path))
    monkeypatch.setattr(fcntl, "flock", lambda *arguments: refuse(number=errno.EIO))
    with pytest.raises(OSError, match="no locks"):
        refuse_while_apply_runs(lake_at(tmp_path))


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    path.write_text("no folder")
    with pytest.raises(
        LakeError, match=f"The lock file {path}/_pgdelta/locks/apply cannot be opened: .* Give apply"
    ):
        refuse_while_apply_runs(lake_at(path))
