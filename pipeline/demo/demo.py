"""`pgdelta demo`: a shop in an embedded PostgreSQL, replicated live and compared with its source at the end.

One folder holds the server, the lake and the pipeline file. Ingest and apply run continuously in this
process while the load changes the shop. When the load has ended and both jobs are past its last LSN, every
silver table is compared with its source. The server ends with this process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.delta.table import Lake
from pipeline.demo.board import Board
from pipeline.demo.outcome import DemoResult, print_outcome, short_path
from pipeline.demo.shop import MINIMUM, SCHEMA_NAME, TABLES, Load, create_shop
from pipeline.errors import ConfigError
from pipeline.operate.run import RunSummary, run_both
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.embedded import EmbeddedServer, start_server
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.replication.slot import ensure_slot
from pipeline.private_files import make_private_folder, open_private
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from pipeline.verify.reconcile import compare_at_rest

_MARKER = ".pgdelta-demo"
_REFRESH_SECONDS = 0.5
_CATCH_UP_SECONDS = 600.0
# a stop has 50 s in all
_STOPPED_CATCH_UP_SECONDS = 30.0
# its stdin ends when this process does
_WATCH = """\
read -r _
kill -INT "$0"
while kill -0 "$0"; do sleep 0.2; done
rmdir "$1"
"""
_PIPELINE = """\
# Written by `pgdelta demo`. Its server runs as long as the demo does; the lake stays.
pipeline: shop
source:
  conninfo: {conninfo}
storage:
  root: {root}
tables:
  - source: "shop.*"
"""


def run_demo(folder: str, seconds: float, *, as_json: bool, stop: threading.Event) -> int:
    """Run the demo and return 0 if silver equals the source; the server is stopped in any case."""
    started = time.monotonic()
    console = None if as_json else Console()
    root = Path(folder).resolve()
    outcome = DemoResult(root / "lake", root / "pipeline.yaml")
    with _claim(root):
        _say(console, f"an embedded PostgreSQL server in {short_path(root / 'server')}")
        with _server(root / "server") as server:
            config = _prepare(server, outcome)
            with connect(config.source.conninfo, application_name="pgdelta demo") as connection:
                _play(outcome, config, connection, console, seconds, stop)
    outcome.seconds = time.monotonic() - started
    if console is None:
        print(json.dumps(outcome.as_json()), flush=True)
    else:
        print_outcome(console, outcome)
    return outcome.exit_code


def _say(console: Console | None, what: str) -> None:
    if console is not None:
        console.print(f"starting {what}", markup=False, highlight=False, soft_wrap=True)


def _claim(root: Path) -> IO[str]:
    """Return the lock of the folder after removing an earlier demo from it; refuse any other folder."""
    marker = root / _MARKER
    if root.exists() and not marker.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is not the folder of an earlier demo. Choose another one with --root.")
    try:
        # a server that root starts runs as another account, which needs to enter the folder
        make_private_folder(root, mode=0o700 if os.geteuid() else 0o711, exist_ok=True)
        lock = open_private(marker, append=True)
    except OSError as error:
        raise ConfigError(
            f"Cannot use {root}: {error.strerror}. Choose another folder with --root."
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"Another demo is running in {root}. Stop it, or choose another folder with --root."
        ) from None
    for folder in ("server", "lake"):
        if (root / folder).exists():
            shutil.rmtree(root / folder)
    return lock


@contextmanager
def _server(folder: Path) -> Iterator[EmbeddedServer]:
    """Run a server that ends with the block, or with this process if that is killed."""
    server = start_server(folder)
    # pid, data folder, start time, port, folder of the socket, …
    lines = (server.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    watch = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, lines[0], lines[4]],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield server
    finally:
        server.stop()
        watch.kill()
        watch.communicate()


def _prepare(server: EmbeddedServer, outcome: DemoResult) -> Config:
    """Create the shop, the pipeline file, publication and slot; every change after that is captured."""
    with connect(server.conninfo) as connection:
        connection.execute("CREATE DATABASE shop")
    conninfo = server.conninfo_of("shop")
    text = _PIPELINE.format(conninfo=_quoted(conninfo), root=_quoted(str(outcome.lake)))
    with open_private(outcome.config) as file:
        file.write(text)
    config = load_config(outcome.config)
    with connect(conninfo) as connection:
        create_shop(connection)
        ensure_publication(connection, config)
        ensure_slot(connection, config, may_create=True)
    return config


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _play(
    outcome: DemoResult,
    config: Config,
    connection: Connection,
    console: Console | None,
    seconds: float,
    stop: threading.Event,
) -> None:
    """Load, replicate, catch up, end both jobs, compare."""
    load = Load(connection)
    closing, ending = threading.Event(), threading.Event()
    with Board(outcome.lake, config.pipeline, load, console) as board, ThreadPoolExecutor(2) as pool:
        running = pool.submit(
            run_both,
            config,
            trigger="continuous",
            stop=ending,
            ingest_progress=board.on_ingest,
            apply_progress=board.on_apply,
        )
        try:
            board.stage = "filling the shop"
            opened, started = load.open_shop(), time.monotonic()
            _wait_for(board, running, opened, stop, 0.0)
            board.stage = "changing the shop"
            # the tables exist, so their changes can be watched
            left = max(seconds - (time.monotonic() - started), seconds / 2)
            loading = pool.submit(load.run, left, closing)
            _watch(board, running, loading, stop, closing)
            loading.result()
            board.stage = "catching up"
            outcome.lsn = load.close_shop()
            has_caught_up = _wait_for(board, running, outcome.lsn, stop, _STOPPED_CATCH_UP_SECONDS)
            board.stage = "ending"
        finally:
            closing.set()
            ending.set()
            _watch_end(board, running)
        outcome.is_stopped = stop.is_set()
        outcome.counts = {kind: load.counts[kind] for kind in MINIMUM}
        outcome.run = running.result()
        if has_caught_up:
            board.stage = "comparing"
            board.refresh()
            names = [TableName(SCHEMA_NAME, table) for table in TABLES]
            outcome.comparisons = compare_at_rest(config, Lake(config.storage), names)
            board.stage = "done"
        board.refresh()


def _watch(
    board: Board,
    running: Future[RunSummary],
    loading: Future[None],
    stop: threading.Event,
    closing: threading.Event,
) -> None:
    """Refresh the board until the load ends; a stop, or the end of replication, ends the load."""
    both: list[Future[Any]] = [loading, running]
    while not loading.done():
        if stop.is_set() or running.done():
            closing.set()
        board.refresh()
        wait(both, _REFRESH_SECONDS, return_when=FIRST_COMPLETED)


def _wait_for(
    board: Board, running: Future[RunSummary], lsn: LSN, stop: threading.Event, patience: float
) -> bool:
    """Return whether both jobs passed the LSN in time; after a stop they have `patience` seconds."""
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    while not board.has_passed(lsn):
        if stop.is_set():
            deadline = min(deadline, time.monotonic() + patience)
            patience = math.inf
        if running.done() or time.monotonic() >= deadline:
            return False
        board.refresh()
        time.sleep(_REFRESH_SECONDS)
    return True


def _watch_end(board: Board, running: Future[RunSummary]) -> None:
    while not running.done():
        board.refresh()
        time.sleep(_REFRESH_SECONDS)
