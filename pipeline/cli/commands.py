"""What each subcommand does: load the configuration, call one function, print what came of it.

What a function needs is imported when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import one_line
from pipeline.key_ranges import KeyRange
from pipeline.tail.request import request_of

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.config.config import Config


class Summary(Protocol):
    """What a run leaves to be said."""

    def lines(self) -> list[str]:
        """Return the closing lines for people."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""

    def exit_code(self, strict: bool) -> int:
        """Return 0 or 1; `strict` counts what a recorded policy held or refused as a failure."""


class Printable(Protocol):
    """What a command found."""

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""

    def print(self, console: Console) -> None:
        """Print it for people."""


def _load(options: argparse.Namespace) -> Config:
    from pipeline.config.config import load_config

    return load_config(options.config)


def _finish(summary: Summary, options: argparse.Namespace) -> int:
    print(
        json.dumps(summary.as_json()) if options.json else "\n".join(map(one_line, summary.lines())),
        flush=True,
    )
    return summary.exit_code(options.strict)


def ingest(options: argparse.Namespace, stop: threading.Event) -> int:
    """Capture."""
    config = _load(options)
    from pipeline.ingest.job import run_ingest
    from pipeline.report.watch import Observers

    with Observers(config, options, "ingest") as watch:
        summary = run_ingest(config, trigger=options.trigger, stop=stop, progress=watch.on_ingest)
    return watch.end(_finish(summary, options))


def apply(options: argparse.Namespace, stop: threading.Event) -> int:
    """Apply."""
    config = _load(options)
    from pipeline.apply.job import run_apply
    from pipeline.report.watch import Observers

    with Observers(config, options, "apply") as watch:
        summary = run_apply(config, trigger=options.trigger, stop=stop, progress=watch.on_apply)
    return watch.end(_finish(summary, options))


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    """Capture and apply."""
    config = _load(options)
    from pipeline.operate.run import run_both
    from pipeline.report.watch import Observers

    with Observers(config, options, "run") as watch:
        summary = run_both(
            config,
            trigger=options.trigger,
            stop=stop,
            ingest_progress=watch.on_ingest,
            apply_progress=watch.on_apply,
        )
    return watch.end(_finish(summary, options))


def status(options: argparse.Namespace, stop: threading.Event) -> int:
    """Print how far each table is."""
    del stop
    config = _load(options)
    if options.prove:
        return _prove(config, options)
    from pipeline.report.status import read_status

    status = read_status(config, is_offline=options.offline)
    _show(status, options)
    return int(options.strict and status.is_held)


def _prove(config: Config, options: argparse.Namespace) -> int:
    """Print whether bronze is whole, and return 1 where it is not."""
    from pipeline.verify.audit import run_audit

    proof = run_audit(config)
    _show(proof, options)
    return proof.exit_code(options.strict)


def plan(options: argparse.Namespace, stop: threading.Event) -> int:
    """Print what the next apply would do."""
    del stop
    config = _load(options)
    from pipeline.operate.plan import make_plan

    _show(make_plan(config), options)
    return 0


def retry(options: argparse.Namespace, stop: threading.Event) -> int:
    """Apply once more, or write tables anew."""
    config = _load(options)
    from pipeline.operate.retry import run_retry

    summary = run_retry(config, options.table, rewrites=options.rewrite, confirms=options.confirm, stop=stop)
    return _unless_stopped(_finish(summary, options), stop)


def resync(options: argparse.Namespace, stop: threading.Event) -> int:
    """Ask for tables to be copied anew."""
    config = _load(options)
    from pipeline.operate.resync import run_resync
    from pipeline.report.progress import CopyBoard

    with CopyBoard(is_quiet=options.json) as board:
        summary = run_resync(
            config,
            options.table,
            key_ranges=_key_ranges(options),
            runs=options.run,
            progress=board.update,
            stop=stop,
        )
    return _unless_stopped(_finish(summary, options), stop)


def _unless_stopped(code: int, stop: threading.Event) -> int:
    """Return the exit code of what nobody else goes on with."""
    if stop.is_set() and code == 0:
        print("pgdelta: stopped before all was done: run the same command again", file=sys.stderr)
        return 1
    return code


def _key_ranges(options: argparse.Namespace) -> list[KeyRange]:
    keys = [KeyRange(tuple(values), tuple(values)) for values in options.key or ()]
    if options.from_key or options.to_key:
        keys.append(KeyRange(tuple(options.from_key or ()), tuple(options.to_key or ())))
    return keys


def reconcile(options: argparse.Namespace, stop: threading.Event) -> int:
    """Hold silver against its source."""
    config = _load(options)
    from pipeline.verify.reconcile import run_reconcile

    found = run_reconcile(
        config, options.table, wait=options.wait, runs=options.run, repairs=options.repair, stop=stop
    )
    _show(found, options)
    return found.exit_code


def optimize(options: argparse.Namespace, stop: threading.Event) -> int:
    """Merge small files."""
    config = _load(options)
    from pipeline.operate.optimize import Optimized, run_optimize

    def show(table: Optimized) -> None:
        if sys.stderr.isatty() and not options.json:
            print(one_line(table.line()), file=sys.stderr, flush=True)

    options.strict = False
    summary = run_optimize(config, options.table, vacuums=options.vacuum, stop=stop, progress=show)
    return _unless_stopped(_finish(summary, options), stop)


def as_of(options: argparse.Namespace, stop: threading.Event) -> int:
    """Print which version of each silver table shows one commit."""
    del stop
    config = _load(options)
    from pipeline.operate.as_of import read_silver

    silver = read_silver(config, lsn=options.lsn, timestamp=options.timestamp)
    _show(silver, options)
    return silver.exit_code


def _show(found: Printable, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(found.as_json()), flush=True)
        return
    from rich.console import Console

    found.print(Console())


def demo(options: argparse.Namespace, stop: threading.Event) -> int:
    """Run the demo."""
    options.stop = stop
    from pipeline.demo.demo import run_demo

    exit_code: int = run_demo(options)
    return exit_code


def check(options: argparse.Namespace, stop: threading.Event) -> int:
    """Check machine and server, print what was found, and return 1 where something is missing."""
    del stop
    config = _load(options)
    from pipeline.operate.machine_checks import check_machine
    from pipeline.postgres.checks.source_checks import run_checks

    checks = [*check_machine(config), *run_checks(config)]
    is_ready = all(check.ok for check in checks)
    if options.json:
        rows = [{"name": c.name, "ok": c.ok, "sentence": c.sentence, "fix": c.fix} for c in checks]
        print(json.dumps({"ok": is_ready, "checks": rows}), flush=True)
        return 0 if is_ready else 1
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "", "check", "found", "what to do", title=f"{config.pipeline}: {config.path}", title_justify="left"
    )
    for check in checks:
        mark = "[green]✔[/]" if check.ok else "[red]✘[/]"
        # plain cells: names of the server's objects may hold brackets that rich would take for markup
        table.add_row(mark, *map(_plain, (check.name, check.sentence, check.fix)))
    console = Console()
    console.print(table)
    failures = sum(not check.ok for check in checks)
    console.print("ready" if is_ready else f"{failures} of {len(checks)} checks failed")
    return 0 if is_ready else 1


def tail(options: argparse.Namespace, stop: threading.Event) -> int:
    """Print what the slot says."""
    config = None if options.config is None else _load(options)
    from pipeline.tail.follow import run_tail

    return run_tail(request_of(options, config), stop)


def _plain(text: str | None) -> str:
    from pipeline.report.status_page import escape

    return escape(text or "")
