"""`pgdelta demo`: a shop in an embedded PostgreSQL, replicated before your eyes and compared at the end.

Everything lies in one folder: the server, the lake and the pipeline file. Ingest and apply run continuously
in one Spark session while the load changes the shop; then the load stops, both halves pass its last LSN, and
every silver table is held against its source. The server ends with this process, however that ends.
"""

from __future__ import annotations

import argparse
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

from pyspark.sql import SparkSession
from rich.console import Console

from pipeline.config.config import Config, load_config
from pipeline.delta.spark.session import start_session
from pipeline.delta.table import Lake
from pipeline.demo.board import Board
from pipeline.demo.compare import Comparison, compare_table
from pipeline.demo.load import MINIMUM, Load
from pipeline.demo.outcome import Outcome, print_outcome, short_path
from pipeline.demo.shop import SCHEMA_NAME, TABLES, create_shop
from pipeline.errors import ConfigError
from pipeline.operate.run import RunSummary, run_both
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.embedded import EmbeddedServer, start_server
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.replication.slot import ensure_slot
from pipeline.private_files import make_private_folder, open_private
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_MARKER = ".pgdelta-demo"
_REFRESH_SECONDS = 0.5
_CATCH_UP_SECONDS = 600.0
# after a signal there are 50 s in all
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


def run_demo(options: argparse.Namespace) -> int:
    """Run the demo and return 0 where silver equals the source; the server is stopped in any case."""
    stop: threading.Event = options.stop
    started = time.monotonic()
    console = None if options.json else Console()
    root = Path(options.root).resolve()
    outcome = Outcome(root / "lake", root / "pipeline.yaml")
    with _claim(root):
        _say(console, f"a PostgreSQL server of its own, in {short_path(root / 'server')}")
        with _server(root / "server") as server:
            config = _prepare(server, outcome)
            _say(console, "Spark")
            spark = start_session("pgdelta demo")
            with connect(config.source.conninfo, application_name="pgdelta demo") as connection:
                _play(outcome, config, spark, connection, console, options.seconds, stop)
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
    """Return the folder's lock, the folder emptied of what an earlier demo left; refuse any other folder."""
    marker = root / _MARKER
    if root.exists() and not marker.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is not the folder of an earlier demo: give another one with --root")
    try:
        # a server that root starts runs as another account, which has to pass through
        make_private_folder(root, mode=0o700 if os.geteuid() else 0o711, exist_ok=True)
        lock = open_private(marker, append=True)
    except OSError as error:
        raise ConfigError(f"{root}: {error.strerror}; give another folder with --root") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"a demo is running in {root}: stop it, or give another folder with --root"
        ) from None
    for folder in ("server", "lake"):
        if (root / folder).exists():
            shutil.rmtree(root / folder)
    return lock


@contextmanager
def _server(folder: Path) -> Iterator[EmbeddedServer]:
    """Give a running server that ends with the block, or with this process where that is killed."""
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


def _prepare(server: EmbeddedServer, outcome: Outcome) -> Config:
    """Create the shop, the pipeline file, publication and slot; every change from here on is captured."""
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
    outcome: Outcome,
    config: Config,
    spark: SparkSession,
    connection: Connection,
    console: Console | None,
    seconds: float,
    stop: threading.Event,
) -> None:
    """Load, replicate, catch up, end both halves, compare."""
    load = Load(connection)
    closing, ending = threading.Event(), threading.Event()
    with Board(outcome.lake, config.pipeline, load, console) as board, ThreadPoolExecutor(2) as pool:
        running = pool.submit(
            run_both,
            config,
            trigger="continuous",
            stop=ending,
            spark=spark,
            ingest_progress=board.on_ingest,
            apply_progress=board.on_apply,
        )
        try:
            board.stage = "filling the shop"
            opened, started = load.open_shop(), time.monotonic()
            _wait_for(board, running, opened, stop, 0.0)
            board.stage = "changing the shop"
            # Spark is warm now and the tables are there: what happens to them can be watched
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
            outcome.comparisons = _compare(connection, Lake(spark, config.storage.root))
            board.stage = "done"
        board.refresh()


def _watch(
    board: Board,
    running: Future[RunSummary],
    loading: Future[None],
    stop: threading.Event,
    closing: threading.Event,
) -> None:
    """Show the board until the load has ended; a stop, or the end of replication, ends it."""
    both: list[Future[Any]] = [loading, running]
    while not loading.done():
        if stop.is_set() or running.done():
            closing.set()
        board.refresh()
        wait(both, _REFRESH_SECONDS, return_when=FIRST_COMPLETED)


def _wait_for(
    board: Board, running: Future[RunSummary], lsn: LSN, stop: threading.Event, patience: float
) -> bool:
    """Wait until both halves have passed the LSN, after a stop for so many seconds; say whether they did."""
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


def _compare(connection: Connection, lake: Lake) -> list[Comparison]:
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return [
            compare_table(connection, lake.table("silver", SCHEMA_NAME, table), TableName(SCHEMA_NAME, table))
            for table in TABLES
        ]
