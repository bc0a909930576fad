"""A standby of an embedded server, made by pg_basebackup beside it, under the same account."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.postgres.embedded import EmbeddedServer, find_free_port, run_as, write_settings


@contextmanager
def standby_of(primary: EmbeddedServer, **settings: str) -> Iterator[EmbeddedServer]:
    """Give a running standby that follows a server, and take it away in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-standby-", dir="/tmp"))
    data, sockets, port = folder / "data", folder / "sockets", find_free_port()
    if primary.account is not None:
        subprocess.run(["chown", primary.account, str(folder)], check=True)
    backup = [str(primary.binaries / "pg_basebackup"), "-D", str(data), "-d", primary.conninfo]
    run_as(primary.account, [*backup, "-R", "-X", "stream", "--no-sync"])
    write_settings(data, {"port": str(port), "unix_socket_directories": str(sockets), **settings})
    standby = EmbeddedServer(primary.binaries, data, sockets, port, primary.account)
    standby.start()
    try:
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(folder)


def promote(standby: EmbeddedServer) -> None:
    """Let a standby become a primary on a timeline of its own."""
    standby.control("promote", "-w", "-s")
