"""The log store for local folders when a hard link fails: which failures mean that there are no links."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from tests.support.paths import ROOT
from tests.support.races.racer import java_command

SOURCE = ROOT / "tests" / "support" / "races" / "link_errors.c"
NO_LINKS = [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV]
OTHERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EACCES]


@pytest.fixture(scope="module")
def failing_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a library to preload, with which every hard link fails."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    library = tmp_path_factory.mktemp("links") / "link_errors.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)], check=True)
    return library


def error_of_commit(racer: Path, library: Path, log: Path, number: int) -> str:
    command = java_command(str(racer), "FencedWrites")
    command += [LOG_STORES["file"], "s3a://another/lake", "s3a://another/lease", "token"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "LINK_ERROR": str(number), "LC_ALL": "C"},
        input=f"file:{log}/{0:020}.json\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert list(log.iterdir()) == []
    return done.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", NO_LINKS)
def test_a_file_system_without_hard_links_is_named(
    racer: Path, failing_links: Path, tmp_path: Path, number: int
) -> None:
    assert "has no hard links" in error_of_commit(racer, failing_links, tmp_path, number)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", OTHERS)
def test_another_failure_is_passed_on(racer: Path, failing_links: Path, tmp_path: Path, number: int) -> None:
    found = error_of_commit(racer, failing_links, tmp_path, number)
    assert "hard links" not in found
    assert number == errno.EACCES or os.strerror(number) in found
    assert f"{0:020}.json" in found
