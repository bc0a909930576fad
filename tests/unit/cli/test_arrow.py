"""What a command sets before it uses Arrow."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FREED = """
from pathlib import Path
from pipeline.cli.arrow import use_lean_arrow
use_lean_arrow()
import pyarrow as pa

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

before = resident()
block = pa.allocate_buffer(30 << 20)  # from now on the C library would keep up to 60 MiB
del block
blocks = [bytearray(b"x" * (1 << 19)) for _ in range(60)]
del blocks
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries keep memory in other ways")
def test_memory_that_is_freed_goes_back_to_the_system() -> None:
    command = [sys.executable, "-c", FREED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8
