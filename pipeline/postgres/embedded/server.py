"""A PostgreSQL server of our own, for the demo, the bench and the tests: no server to install.

A server started by root runs as an unprivileged user, because PostgreSQL refuses root; its files then lie
where that user can reach them. It listens on 127.0.0.1 and a socket, trusts whoever connects, and is not made
to keep data safe.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import SourceError
from pipeline.postgres.embedded.binaries import binaries_of, copy_binaries, find_binaries, is_reachable
from pipeline.private_files import make_private_folder

__all__ = ["EmbeddedServer", "binaries_of", "find_binaries", "start_server"]

_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
    "fsync": "off",
    "full_page_writes": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_SUPERUSER = "postgres"
_START_SECONDS = 60


class EmbeddedServer:
    """A running server; stopped at the latest when this process ends."""

    def __init__(self, binaries: Path, data: Path, sockets: Path, port: int, account: str | None) -> None:
        self.binaries = binaries
        self.data = data
        self.port = port
        self._sockets = sockets
        self._account = account
        self._is_running = False

    @property
    def conninfo(self) -> str:
        """A conninfo of the superuser and the database postgres."""
        return self.conninfo_of("postgres")

    def conninfo_of(self, database: str, user: str = _SUPERUSER) -> str:
        """Return a conninfo of another database or role, by TCP."""
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user}"

    @property
    def socket_conninfo(self) -> str:
        """A conninfo by the Unix-domain socket."""
        return f"host={self._sockets} port={self.port} dbname=postgres user={_SUPERUSER}"

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        if not self._sockets.exists():
            _make_folder(self._sockets, self._account)
        log = self.data / "server.log"
        command = ["start", "-w", "-t", str(_START_SECONDS), "-l", str(log), "-s"]
        try:
            self._control(*command)
        except SourceError:
            shutil.rmtree(self._sockets, ignore_errors=True)
            raise
        self._is_running = True
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop the server and end its sessions; idempotent."""
        self._end("fast")
        shutil.rmtree(self._sockets, ignore_errors=True)

    def kill_immediate(self) -> None:
        """End the server as a crash would, without a checkpoint."""
        self._end("immediate")

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop and start again, with these settings from now on."""
        self._end("fast")
        if settings:
            _write_settings(self.data, settings)
        self.start()

    def _end(self, mode: str) -> None:
        if self._is_running:
            self._is_running = False
            atexit.unregister(self.stop)
            self._control("stop", "-w", "-m", mode, "-s")

    def _control(self, *arguments: str) -> None:
        # A server keeps what it inherits: a pipe would never come to its end.
        run_as(self._account, [str(self.binaries / "pg_ctl"), "-D", str(self.data), *arguments])


def start_server(
    directory: Path, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Return a new running server with its data in `directory`, or near it in the temporary folder.

    The latter when the unprivileged account cannot reach `directory`. `binaries` is a folder with initdb,
    pg_ctl and postgres, by default that of the wheel. `settings` go over the ones here (logical WAL, no
    fsync).
    """
    account = _find_account() if os.geteuid() == 0 else None
    folder = binaries if binaries is not None else find_binaries()
    # the server's own account has to pass through, but need not look around
    make_private_folder(directory, mode=0o700 if account is None else 0o711, exist_ok=True)
    if account is not None:
        if not is_reachable(folder):
            folder = copy_binaries(folder)
        if not is_reachable(directory):
            directory = Path(tempfile.mkdtemp(prefix="pgdelta-"))
            directory.chmod(0o711)
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    _make_folder(data, account)
    # The path of a socket has 107 bytes at most.
    sockets = Path(tempfile.mkdtemp(prefix="pgs-", dir="/tmp"))
    sockets.rmdir()
    arguments = [
        *("--pgdata", str(data), "--username", _SUPERUSER, "--auth", "trust"),
        *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
    ]
    run_as(account, [str(folder / "initdb"), *arguments])
    port = _find_port()
    places = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(sockets),
    }
    _write_settings(data, {**_SETTINGS, **places, **(settings or {})})
    server = EmbeddedServer(folder, data, sockets, port, account)
    server.start()
    return server


def run_as(account: str | None, command: list[str]) -> None:
    """Run a server command as `account` (None: as we are); a failure is a SourceError with its last words."""
    identity: dict[str, object] = {}
    environment = {**os.environ, "LC_ALL": "C"}
    if account is not None:
        entry = pwd.getpwnam(account)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        environment["HOME"] = "/"
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(  # type: ignore[call-overload]
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=environment,
            **identity,
        )
        output.seek(0)
        lines = output.read().decode(errors="replace").split("\n")
    if done.returncode:
        words = " ".join(line.strip() for line in lines[-6:]).strip()
        raise SourceError(f"The embedded server failed ({Path(command[0]).name}): {words}")


def _make_folder(path: Path, account: str | None) -> None:
    path.mkdir(mode=0o700)
    if account is not None:
        entry = pwd.getpwnam(account)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _write_settings(data: Path, settings: Mapping[str, str]) -> None:
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        for name, value in settings.items():
            quoted = value.replace("'", "''")
            file.write(f"{name} = '{quoted}'\n")


def _find_account() -> str:
    for name in ("postgres", "nobody"):
        try:
            if pwd.getpwnam(name).pw_uid:
                return name
        except KeyError:
            continue
    raise SourceError("PostgreSQL does not run as root, and there is no user postgres or nobody: create one.")


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
