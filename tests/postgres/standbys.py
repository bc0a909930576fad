"""A standby of an embedded server, made without pg_basebackup: a copy of the data of a stopped primary."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from pipeline.postgres.embedded import EmbeddedServer, _find_port, _write_settings


def start_standby(primary: EmbeddedServer) -> EmbeddedServer:
    """Start a standby that streams from the primary, which is stopped for a moment."""
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-standby-", dir="/tmp"))
    folder.chmod(0o755)
    data, port = folder / "data", _find_port()
    primary._end("fast")
    try:
        subprocess.run(["cp", "-a", str(primary.data), str(data)], check=True)
    finally:
        primary.start()
    settings = {
        "port": str(port),
        "unix_socket_directories": str(folder / "sockets"),
        "primary_conninfo": f"host=127.0.0.1 port={primary.port} user=postgres",
    }
    _write_settings(data, settings)
    (data / "standby.signal").touch()
    standby = EmbeddedServer(primary.binaries, data, folder / "sockets", port, primary._account)
    standby.start()
    return standby


def promote(standby: EmbeddedServer) -> None:
    """Let a standby become a primary on a timeline of its own."""
    standby._control("promote", "-w", "-s")


def remove(standby: EmbeddedServer) -> None:
    """Stop the standby and remove its data."""
    standby.stop()
    shutil.rmtree(standby.data.parent)
