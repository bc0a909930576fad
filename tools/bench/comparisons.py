"""The comparisons of `python -m tools.bench --only …`: figures without a limit."""

from pathlib import Path

import psycopg

from pipeline.delta.spark.session import start_session
from pipeline.postgres.embedded import EmbeddedServer
from tools.bench.apply import measure_apply
from tools.bench.capture import create_schema, measure_capture, measure_sync
from tools.bench.copy import measure_copy
from tools.bench.join import measure_join
from tools.bench.layout import measure_layouts
from tools.bench.memory import measure_delay, measure_memory, measure_streams
from tools.bench.modes import MODES, WRITERS, measure_modes

MODE_ROUNDS = 4


def print_comparison(name: str, server: EmbeddedServer, folder: Path, scale: float) -> None:
    """Measure one of `COMPARISONS` and print it."""
    create_schema(server)
    COMPARISONS[name](server, folder, scale)


def _capture(server: EmbeddedServer, folder: Path, scale: float) -> None:
    found = measure_capture(start_session("bench"), server, folder, int(200_000 * scale))
    print(f"capture: {found.changes} changes in {found.transactions} transactions, {found.messages} messages")
    reference = found.messages / found.reference_seconds
    print(f"  pg_recvlogical   {found.reference_seconds:6.2f} s {reference:9.0f}/s")
    print(
        f"  WAL -> bronze    {found.capture_seconds:6.2f} s {found.messages / found.capture_seconds:9.0f}/s"
    )
    print(f"  ratio            {found.ratio:6.2f}   (aim: at least 0.5)", flush=True)


def _sync(server: EmbeddedServer, folder: Path, scale: float) -> None:
    found = measure_sync(start_session("bench"), server, folder, int(100_000 * scale), rounds=5)
    print(f"sync: capture of {found.messages} messages, each of 5 rounds, commits forced to disk or not")
    for name, seconds in (("on", found.on_seconds), ("off", found.off_seconds)):
        print(f"  sync {name:11s} " + " ".join(f"{each:6.2f}" for each in seconds) + " s")
    print(f"  ratio of medians {found.ratio:6.2f}   (aim: at least 0.95)", flush=True)


def _apply(server: EmbeddedServer, folder: Path, scale: float) -> None:
    found = measure_apply(
        start_session("bench"),
        server,
        folder,
        rows=int(1_000_000 * scale),
        changes=int(100_000 * scale),
        rounds=5,
    )
    print(f"apply: {found.changes} net changes into {found.rows} rows, each of 5 rounds (the first is cold)")
    print("  apply            " + " ".join(f"{seconds:6.2f}" for seconds in found.apply_seconds) + " s")
    print("  ideal MERGE      " + " ".join(f"{seconds:6.2f}" for seconds in found.ideal_seconds) + " s")
    print(f"  ratio of medians {found.ratio:6.2f}   (aim: at most 1.5)", flush=True)


def _memory(server: EmbeddedServer, folder: Path, scale: float) -> None:
    print("memory: ingest of one transaction, peak resident MiB")
    for rows in (1_000_000, 5_000_000):
        peak = measure_memory(server, folder, int(rows * scale))
        print(
            f"  {peak.rows:8d} rows     Python {peak.python_mib:5d}   JVM {peak.jvm_mib:5d}   "
            f"{peak.seconds:6.1f} s with the JVM's start",
            flush=True,
        )


def _delay(server: EmbeddedServer, folder: Path, scale: float) -> None:
    print(
        "delay: one transaction while it is written, from its COMMIT to its bronze commit, peak resident MiB"
    )
    for streaming in ("on", "off"):
        peak = measure_delay(server, folder, int(10_000_000 * scale), streaming)
        print(
            f"  {peak.rows:8d} rows, streaming {streaming:3s}   {peak.seconds:6.1f} s   "
            f"Python {peak.python_mib:5d}   JVM {peak.jvm_mib:5d}",
            flush=True,
        )


def _streams(server: EmbeddedServer, folder: Path, scale: float) -> None:
    print(
        "streams: transactions that are open at once, every other one committed in the end, peak resident MiB"
    )
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
        connection.execute("SELECT pg_reload_conf()")
    for count in (5, 50):
        found = measure_streams(server, folder, count, int(50_000 * scale))
        print(
            f"  {found.streams:3d} streams, {found.data_mib:5d} MiB   {found.seconds:6.1f} s   "
            f"Python {found.python_mib:5d}   JVM {found.jvm_mib:5d}   open files {found.files:3d}",
            flush=True,
        )


def _layout(server: EmbeddedServer, folder: Path, scale: float) -> None:
    del server
    rows, changes = int(2_000_000 * scale), int(10_000 * scale)
    print(f"layout: medians of 3 rounds, {changes} changes into {rows} rows, seconds")
    for found in measure_layouts(start_session("bench"), folder, rows=rows, changes=changes, rounds=3):
        seconds = "  ".join(f"{what} {taken:5.2f}" for what, taken in found.seconds.items())
        print(f"  {found.name:20s} {seconds}  files {found.files}", flush=True)


def _modes(server: EmbeddedServer, folder: Path, scale: float) -> None:
    rows, changes = int(1_000_000 * scale), int(100_000 * scale)
    found = measure_modes(
        start_session("bench"), server, folder, rows=rows, changes=changes, rounds=MODE_ROUNDS
    )
    medians = {(cost.mode, cost.writer): cost.median for cost in found}
    print(f"modes: {changes} changes into {rows} rows, medians of {MODE_ROUNDS} rounds, next to mirror")
    print("  mode             native  ratio      Spark  ratio")
    for mode in MODES:
        cells = (
            f"{medians[mode, writer]:7.2f} s {medians[mode, writer] / medians['mirror', writer]:6.2f}"
            for writer in WRITERS
        )
        print(f"  {mode:12s} {'  '.join(cells)}", flush=True)


def _copy(server: EmbeddedServer, folder: Path, scale: float) -> None:
    found = measure_copy(start_session("bench"), server, folder, int(2_000_000 * scale))
    print(f"copy: {found.rows} rows of 10 tables, under {found.changes} changes")
    for name, seconds in (
        ("copied to bronze", found.copy_seconds),
        ("psql, COPY", found.psql_seconds),
        ("Spark alone", found.spark_seconds),
    ):
        print(f"  {name:16s} {seconds:6.1f} s {found.rows / seconds:9.0f} rows/s")
    print(f"  ratio to Spark   {found.spark_seconds / found.copy_seconds:6.2f}   (aim: at least 0.8)")
    print(f"  peak MiB         Python {found.python_mib}, JVM {found.jvm_mib}; lag {found.lag_mib:.1f} MiB")
    print(f"  apply            {found.apply_seconds:6.1f} s; equal: {found.is_equal}", flush=True)


def _join(server: EmbeddedServer, folder: Path, scale: float) -> None:
    found = measure_join(start_session("bench"), server, folder, int(5_000_000 * scale))
    print(
        f"join: {found.rows} rows join a live pipeline in {found.seconds:.1f} s; lag of the others, seconds"
    )
    for name, (median, most) in (("before", found.before), ("meanwhile", found.during)):
        print(f"  {name:10s} median {median:5.1f}   most {most:5.1f}")
    print(f"  equal: {found.is_equal}", flush=True)


COMPARISONS = {
    "capture": _capture,
    "sync": _sync,
    "apply": _apply,
    "memory": _memory,
    "delay": _delay,
    "streams": _streams,
    "copy": _copy,
    "join": _join,
    "layout": _layout,
    "modes": _modes,
}
