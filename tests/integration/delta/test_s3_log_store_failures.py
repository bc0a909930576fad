"""The log store for S3 when an upload fails: nothing incomplete becomes a version."""

import subprocess
from pathlib import Path

import pytest

from pipeline.delta.spark.settings import LOG_STORES
from tests.support.paths import ROOT
from tests.support.races.racer import java_command


@pytest.mark.sample(1)
@pytest.mark.promise("a failed upload leaves nothing")
@pytest.mark.parametrize("mode", ["create", "overwrite"])
@pytest.mark.parametrize(("stream", "called"), [("abortable", ["aborted"]), ("plain", [])])
def test_an_upload_that_fails_is_aborted_and_not_completed(
    racer: Path, mode: str, stream: str, called: list[str]
) -> None:
    command = [*java_command(str(racer), "BrokenUpload"), LOG_STORES["s3a"], mode, stream]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == [*called, "no space for a buffer"]
