"""What is made on this host is its user's alone, whatever the umask; and no link is followed to make it."""

import ast
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline.bronze import staged_files
from pipeline.bronze.staged_files import StagedFileWriter, StagingFolder
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.postgres.embedded import copy_binaries, find_binaries, start_server
from pipeline.private_files import lock_folder, make_private_folder, open_private, remove_unless_locked
from tests.support.paths import ROOT
from tests.support.sources import FILES, tree_of

# Calls that make something with the mode that the umask leaves, and why that is right there.
BY_UMASK = {
    "pipeline/bronze/pieces.py": {"self._path.open('ab')"},  # in the staging folder, which is private
    # the lake's
    "pipeline/bronze/staged_files.py": {"runs.mkdir(parents=True, exist_ok=True)"},
    # the lake's too: whoever may write its tables takes turns
    "pipeline/delta/locks.py": {"path.parent.mkdir(parents=True, exist_ok=True)"},
    # a table's
    "pipeline/delta/ended_history.py": {"written.write_text(json.dumps(found), encoding='utf-8')"},
    "pipeline/delta/native_commit.py": {"log.mkdir(parents=True, exist_ok=True)"},
    "pipeline/delta/data_files.py": {"self._path.parent.mkdir(parents=True, exist_ok=True)"},
    "pipeline/delta/filesystem.py": {"target.parent.mkdir(parents=True, exist_ok=True)"},
    "pipeline/delta/store/files.py": {"target.parent.mkdir(parents=True, exist_ok=True)"},
    # in a mirror's folder, which is private
    "pipeline/delta/store/hdfs_store.py": {"open(path, 'xb')"},
    "pipeline/delta/store/object_store.py": {"open(path, 'xb')"},
    "pipeline/delta/store/mirror.py": {
        "open(temporary, 'xb')",
        "os.makedirs(os.path.dirname(path), exist_ok=True)",
    },
    # a silver table's: whoever may write it claims it
    "pipeline/silver/write/shared_tables.py": {
        "path.parent.mkdir(parents=True, exist_ok=True)",
        "temporary.write_text(text, encoding='utf-8')",
    },
    # links to the log beside it, which are as private as that
    "pipeline/delta/checkpoints.py": {"links.mkdir(parents=True)"},
    # setup writes into the environment that it runs in, dist into a folder that is to be copied
    "pipeline/delta/spark/jars.py": {
        "path.parent.mkdir(exist_ok=True)",
        "path.write_text(text)",
        "settings.write_text(_IVY_SETTINGS)",
        "module.write_text(_IVY_MODULE.format(''.join((_IVY_DEPENDENCY.format(*jar) for jar in jars))))",
    },
    "pipeline/delta/spark/class_archive.py": {"_conf(spark_home).mkdir(parents=True, exist_ok=True)"},
    "pipeline/delta/spark/dist.py": {
        "(folder / 'jobs').mkdir(parents=True)",
        "(folder / S3_FOLDER).mkdir(exist_ok=True)",
        "(folder / 'log4j2.properties').write_text(LOG4J_PROPERTIES)",
        "(folder / 'README.txt').write_text(text)",
    },
    # the user's, and without a secret
    "pipeline/report/web/write_page.py": {"open(temporary, 'xb')"},  # a web server reads it
    "pipeline/operate/init.py": {"open(path, 'x', encoding='utf-8')"},
    # in a data folder of mode 0700
    "pipeline/postgres/embedded.py": {"(data / 'postgresql.conf').open('a', encoding='utf-8')"},
}


MAKERS = ("mkdir", "makedirs", "write_text", "write_bytes", "touch")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the process's umask for the test: the most open one first."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.promise("private files")
def test_a_private_folder_is_closed_and_what_is_above_cannot_be_changed(tmp_path: Path, umask: int) -> None:
    make_private_folder(tmp_path / "a" / "b" / "c")
    assert mode_of(tmp_path / "a" / "b" / "c") == 0o700
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o755 & ~umask
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "a")
    make_private_folder(tmp_path / "a", exist_ok=True)
    make_private_folder(tmp_path / "d", mode=0o711)
    assert mode_of(tmp_path / "d") == 0o711 & ~umask


@pytest.mark.promise("private files")
@pytest.mark.usefixtures("umask")
def test_a_private_file_is_closed_and_no_link_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    for append in (False, True):
        with open_private(file, append=append) as opened:
            opened.write("x")
    assert (mode_of(file), file.read_text()) == (0o600, "xx")
    (tmp_path / "link").symlink_to(file)
    for append in (False, True):
        with pytest.raises(OSError, match="symbolic"):
            open_private(tmp_path / "link", append=append)
    assert file.read_text() == "xx"


@pytest.mark.promise("private files")
@pytest.mark.postgres
def test_a_server_of_ours_is_closed(tmp_path: Path, umask: int) -> None:
    # the folder that pytest made must be open for the server's own account
    folder = tmp_path / "server"
    server = start_server(folder)
    try:
        assert mode_of(server.data) == 0o700
        assert mode_of(server.socket_folder) == 0o700
        assert mode_of(folder) == (0o700 if os.geteuid() else 0o711) & ~umask
        # what others may enter, they may not look into
        assert not mode_of(server.data.parent) & 0o066
    finally:
        server.stop()


@pytest.mark.postgres
def test_binaries_are_not_taken_from_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        copied = copy_binaries(find_binaries())
    finally:
        os.umask(before)
    [installed] = [path for path in tmp_path.iterdir() if path.is_dir()]
    for path in (installed, copied, copied / "postgres"):
        assert not mode_of(path) & 0o022
    installed.rename(tmp_path / "elsewhere")
    installed.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="is not a folder of the current user"):
        copy_binaries(find_binaries())


@pytest.mark.promise("private files")
@pytest.mark.parametrize("is_local", [True, False])
def test_staged_files_are_private_and_landed_files_follow_the_umask(
    tmp_path: Path, umask: int, is_local: bool
) -> None:
    nothing: Any = None
    root = f"file:{tmp_path}/lake" if is_local else "s3a://bucket/lake"
    lake = Lake(root, nothing, verifies=False)  # no store answers
    staging = StagingFolder(lake)
    try:
        assert mode_of(staging.path) == 0o700
        if is_local:
            # other users may write to a lake that they share
            assert mode_of(staging.path.parent) == mode_of(tmp_path / "lake") == 0o777 & ~umask
            table = lake.table("bronze", "changes")
            Path(tmp_path, "lake", "bronze", "changes").mkdir(parents=True)
            file = StagedFileWriter(staging.path).close()
            staging.move(file, table)
            assert mode_of(Path(tmp_path, "lake", "bronze", "changes", file.path.name)) == 0o666 & ~umask
    finally:
        staging.close()
    assert not staging.path.exists()


def local_lake(folder: Path) -> Lake:
    nothing: Any = None
    return Lake(f"file:{folder}/lake", nothing)


def test_runs_stage_apart_and_only_what_dead_ones_left_is_removed(tmp_path: Path) -> None:
    lake = local_lake(tmp_path)
    runs = Path(tmp_path, "lake", "_pgdelta", "staging")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (runs / "dead").mkdir(parents=True)
    for left in ("dead/file", "file"):
        (runs / left).touch()
    (runs / "link").symlink_to(precious)
    first = StagingFolder(lake)
    assert list(runs.iterdir()) == [first.path]
    (first.path / "file").touch()
    second = StagingFolder(lake)
    assert (first.path / "file").exists(), "the first run is alive"
    first.close()
    assert list(runs.iterdir()) == [second.path]
    second.close()
    assert not runs.exists()
    assert (precious / "file").exists()


def test_no_folder_that_is_there_already_is_taken_for_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = local_lake(tmp_path)
    runs = Path(tmp_path, "lake", "_pgdelta", "staging")
    name = uuid4()
    (runs / name.hex).mkdir(parents=True)

    def remove_and_be_late(path: Path) -> None:
        remove_unless_locked(path)
        path.mkdir(mode=0o777)

    monkeypatch.setattr(staged_files, "remove_unless_locked", remove_and_be_late)
    monkeypatch.setattr(staged_files, "uuid4", lambda: name)
    with pytest.raises(FileExistsError):
        StagingFolder(lake)


def test_a_link_in_the_place_of_the_staging_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake" / "_pgdelta").mkdir(parents=True)
    (tmp_path / "lake" / "_pgdelta" / "staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LakeError, match=r"is a symbolic link, and others could .* Remove the link"):
        StagingFolder(local_lake(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def made_by(path: Path) -> set[str]:
    """Return the calls of a file that make a folder or open a file to write."""
    found: set[str] = set()
    if not re.search(rf"\b(?:open|{'|'.join(MAKERS)})\(", path.read_text(encoding="utf-8")):
        return found
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        writes = name == "open" and any(set(mode) & set("wax") and len(mode) < 4 for mode in modes)
        explicit = any(keyword.arg == "mode" for keyword in node.keywords)
        if (writes or name in MAKERS) and not explicit:
            text = ast.unparse(node)
            found.add("settings.write_text" if len(text) > 120 else text)
    return found


@pytest.mark.promise("private files")
def test_nothing_else_is_made_with_the_mode_that_the_umask_leaves() -> None:
    found = {path.relative_to(ROOT).as_posix(): made_by(path) for path in FILES}
    assert {name: calls for name, calls in found.items() if calls} == BY_UMASK


def test_a_folder_stays_where_the_file_system_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = tmp_path / "run"
    folder.mkdir()
    os.close(lock_folder(folder))
    remove_unless_locked(folder)
    assert folder.exists()
