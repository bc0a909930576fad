"""What the processes of a run share: data directories of PostgreSQL, and JARs that tests need.

A copy is a system of its own: it gets another system identifier, which is in `global/pg_control`, guarded
by a CRC-32C, and in the first page of the WAL.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import SystemRandom

from pipeline.postgres import embedded

FOLDER = "PGDELTA_TEST_TEMPLATES"
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed
_WAL_IDENTIFIER = 24  # its offset in the first page


def make_folder() -> None:
    """Make the folder of this run's templates, which its processes share."""
    path = Path(tempfile.mkdtemp(prefix="pgdelta-templates-"))
    path.chmod(0o711)
    os.environ[FOLDER] = str(path)


def remove_folder() -> None:
    """Remove the folder of this run's templates."""
    shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def made_once(name: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the run, which the first process that needs it fills."""
    folder = Path(os.environ[FOLDER], name)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            scratch = folder.with_suffix(".new")
            scratch.mkdir(mode=0o700)
            fill(scratch)
            scratch.rename(folder)
    return folder


def copy_template(binaries: Path, data: Path, account: str | None, *, identifier: int | None = None) -> None:
    """Fill a data directory with that of a new server, whose system identifier is random unless given."""

    def fill(folder: Path) -> None:
        shutil.copystat(data, folder)
        os.chown(folder, data.stat().st_uid, data.stat().st_gid)
        embedded.initialize(binaries, folder, account)

    template = made_once(sha256(str(binaries).encode()).hexdigest()[:16], fill)
    subprocess.run(["cp", "-a", f"{template}/.", str(data)], check=True)
    _identify(data, identifier or SystemRandom().randrange(1, 2**62))


def _identify(data: Path, identifier: int) -> None:
    """Give the system in a data directory, which has not run yet, another identifier."""
    control = data / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    end = next(n for n in range(200, 600, 4) if _crc(content[:n]) == struct.unpack_from("<I", content, n)[0])
    struct.pack_into("<Q", content, 0, identifier)
    struct.pack_into("<I", content, end, _crc(content[:end]))
    control.write_bytes(content)
    (segment,) = (data / "pg_wal").glob("0*1")
    with segment.open("r+b") as file:
        file.seek(_WAL_IDENTIFIER)
        file.write(struct.pack("<Q", identifier))


def _crc(content: bytes | bytearray) -> int:
    found = 0xFFFFFFFF
    for byte in content:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (_POLYNOMIAL if found & 1 else 0)
    return found ^ 0xFFFFFFFF


start_server = partial(embedded.start_server, make_data=copy_template)
"""Start a new server as `embedded.start_server` does, with the data of a template."""
