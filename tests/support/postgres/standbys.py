"""A standby of an embedded server, made by pg_basebackup on the same host, under the same account."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from pipeline.postgres.embedded import EmbeddedServer, find_free_port, run_as, write_settings


@contextmanager
def standby_of(primary: EmbeddedServer, **settings: str) -> Iterator[EmbeddedServer]:
    """Give a running standby that follows a server, and take it away in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgdelta-standby-", dir="/tmp"))
    data, sockets, port = folder / "data", folder / "sockets", find_free_port()
    if primary.account is not None:
        subprocess.run(["chown", primary.account, str(folder)], check=True)
    backup = [str(primary.binaries / "pg_basebackup"), "-D", str(data), "-d", primary.conninfo]
    run_as(primary.account, [*backup, "-R", "-X", "stream", "--no-sync", "-c", "fast"])
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


@contextmanager
def syncing_standby_of(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Give a standby that keeps the failover slots of a server, which has the physical slot `standby`."""
    settings = {"sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby"}
    with standby_of(primary, **settings, primary_conninfo=f"dbname=postgres {primary.conninfo}") as standby:
        yield standby


def wait_for_slot(
    standby: EmbeddedServer,
    slot: str,
    source: psycopg.Connection[Any],
    move: Callable[[], object] = lambda: None,
) -> None:
    """Wait until the standby keeps the slot, at any LSN; `source` is a session of the primary.

    `move` moves the slot, which the standby refuses while it needs rows of the catalog that are gone there.
    """
    deadline = time.monotonic() + 180
    moved = time.monotonic()
    with psycopg.connect(standby.conninfo, autocommit=True) as session:
        while True:
            row = session.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots "
                "WHERE slot_name = %s AND synced AND NOT temporary",
                (slot,),
            ).fetchone()
            if row:
                return
            assert time.monotonic() < deadline
            source.execute("SELECT pg_log_standby_snapshot()")
            time.sleep(0.5)
            if time.monotonic() - moved > 5:
                move()
                moved = time.monotonic()
