"""A standby of an embedded server, made by pg_basebackup beside it, under the same account."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.postgres.embedded.server import EmbeddedServer, _find_port, _write_settings, run_as


@contextmanager
def standby_of(primary: EmbeddedServer, **settings: str) -> Iterator[EmbeddedServer]:
    """Give a running standby that follows a server, and take it away in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-standby-", dir="/tmp"))
    data, sockets, port = folder / "data", folder / "sockets", _find_port()
    if primary._account is not None:
        subprocess.run(["chown", primary._account, str(folder)], check=True)
    backup = [str(primary.binaries / "pg_basebackup"), "-D", str(data), "-d", primary.conninfo]
    run_as(primary._account, [*backup, "-R", "-X", "stream", "--no-sync"])
    _write_settings(data, {"port": str(port), "unix_socket_directories": str(sockets), **settings})
    standby = EmbeddedServer(primary.binaries, data, sockets, port, primary._account)
    standby.start()
    try:
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(folder)


def promote(standby: EmbeddedServer) -> None:
    """Let a standby become a primary on a timeline of its own."""
    standby._control("promote", "-w", "-s")
