"""What a command sets before it uses Arrow, and the memory that it holds after work on many rows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.paths import ROOT

HAS_JEMALLOC = os.uname().machine == "x86_64"  # Arrow's wheels


RESIDENT = """
from pathlib import Path
from pipeline.cli.arrow import use_lean_arrow
use_lean_arrow()
import pyarrow as pa

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
"""
FREED = """
before = resident()
block = pa.allocate_buffer(30 << 20)  # from now on the C library would keep up to 60 MiB
del block
blocks = [bytearray(b"x" * (1 << 19)) for _ in range(60)]
del blocks
print(resident() - before)
"""


REUSED = """
import resource
messages = [b"x" * 4000] * 2000

def decode():
    blocks = b"".join(messages), b"".join(messages)

decode()
before, faults = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    decode()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries keep memory in other ways")
def test_ingest_gets_the_memory_of_its_blocks_once() -> None:
    start = RESIDENT.replace("use_lean_arrow()", "use_lean_arrow(reuses_blocks=True)")
    command = [sys.executable, "-c", start + REUSED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    faults, kept = map(int, done.stdout.split())
    assert faults < 4_000, "20 times two blocks of 8 MB are 80,000 pages"
    assert kept < 48


FOLDED = """
from pipeline.silver.fold.duckdb_sql import DuckSql
values = [f"{number:08d}" + "x" * 700 for number in range(200_000)]
rows = pa.table({"key": [number % 50_000 for number in range(200_000)], "value": values})
DuckSql()
before = resident()
session = DuckSql()
session.has_many = True
session.add("rows", rows)
session.compute("newest", "SELECT key, arg_max({'value': value}, value) AS newest FROM rows GROUP BY key")
session.close()
print(resident() - before)
"""


@pytest.mark.promise("bounded memory")
@pytest.mark.parametrize(("work", "kept"), [(FREED, 8), (FOLDED, 32)], ids=["blocks", "folded"])
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries keep memory in other ways")
def test_memory_that_is_freed_goes_back_to_the_system(work: str, kept: int) -> None:
    command = [sys.executable, "-c", RESIDENT + work]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < kept


READ = """
import sys
from pathlib import Path
from pipeline.cli.arrow import use_lean_arrow
use_lean_arrow()
import pyarrow.parquet as pq

def reserved():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096 >> 20

before = reserved()
pq.ParquetFile(sys.argv[1], pre_buffer=True).read()
print(reserved() - before)
"""


@pytest.mark.skipif(not HAS_JEMALLOC, reason="Arrow's wheels have jemalloc for x86-64 only")
def test_no_reader_uses_an_allocator_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": ["x" * 100] * 100_000}), file)
    command = [sys.executable, "-c", READ, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 900  # Arrow's own reserves 1 GiB at once


STATISTICS = """
from pipeline.cli.arrow import use_lean_arrow
use_lean_arrow()
import pyarrow as pa
pa.default_memory_pool().print_stats()
"""


@pytest.mark.skipif(not HAS_JEMALLOC, reason="Arrow's wheels have jemalloc for x86-64 only")
def test_freed_memory_is_kept_in_two_places_at_most() -> None:
    done = subprocess.run([sys.executable, "-c", STATISTICS], cwd=ROOT, capture_output=True, text=True)
    assert re.search(r"^Arenas: 2$", done.stderr + done.stdout, re.MULTILINE)
