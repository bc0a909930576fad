"""The command line: `pgdelta` and the jobs share one parser and one way to end.

A subcommand is a row of `_COMMANDS`: its help, its arguments and the function that does the work. What a
function needs is imported when it runs, so that `--help` answers at once. Exit codes: 0 done, 1 failed, 2
usage or config.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pipeline import __version__
from pipeline.guard import main_guard
from pipeline.operate.tail_request import TAIL, request_of, take_tail

if TYPE_CHECKING:
    from pipeline.config import Config

_ABOUT = """\
Replicate PostgreSQL into Delta Lake: every change to bronze, tables equal to the source in silver.

  pgdelta check  --config conf/pipeline.yaml    is the server ready? what to do where it is not
  pgdelta ingest --config conf/pipeline.yaml    PostgreSQL -> bronze
  pgdelta apply  --config conf/pipeline.yaml    bronze -> silver
  pgdelta run    --config conf/pipeline.yaml    both, in one Spark session
  pgdelta tail   --config conf/pipeline.yaml    what does the slot say?
"""
_ENDING = """\
exit codes: 0 done; 1 failed; 2 a mistake in the command line or the configuration.
Ctrl-C or SIGTERM finishes the commit under way and ends with 0; a second one ends at once.
"""
_READER_ENDING = """\
exit codes: 0 done; 1 failed; 2 a mistake in the command line or the configuration.
Ctrl-C or SIGTERM ends at once with 0, and so does a reader that closes the pipe.
"""


class Summary(Protocol):
    """What a run leaves to be said."""

    def lines(self) -> list[str]:
        """Return the closing lines for people."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as data."""

    def exit_code(self, strict: bool) -> int:
        """Return 0 or 1; `strict` counts what a recorded policy held or refused as a failure."""


@dataclass(frozen=True, slots=True)
class Command:
    """Name a subcommand, what it teaches, what it takes and what it calls."""

    help: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    call: Callable[[argparse.Namespace, threading.Event], int]
    json_help: str = "print the result as one JSON object"
    commits: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    options = make_parser().parse_args(arguments)
    command: Command = options.command
    return main_guard(lambda stop: command.call(options, stop), debug=options.debug, commits=command.commits)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command and all its subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="pgdelta", description=_ABOUT, epilog=_ENDING, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"pgdelta {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=_ENDING if command.commits else _READER_ENDING,
            formatter_class=raw,
            # --acknowledge must not be guessed from its first letters
            allow_abbrev=False,
        )
        command.arguments(sub)
        sub.add_argument("--json", action="store_true", help=command.json_help)
        sub.add_argument("--debug", action="store_true", help="show stack traces and Spark's warnings")
        sub.set_defaults(command=command)
    return parser


def _take_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="the pipeline's YAML file")


def _take_run(parser: argparse.ArgumentParser) -> None:
    _take_config(parser)
    parser.add_argument(
        "--trigger",
        choices=("available-now", "continuous"),
        default="available-now",
        help="end when what is there at the start is done (default), or go on until a signal",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 also where a recorded policy held or refused a table"
    )


def _take_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="FOLDER", default=".demo", help="where lake and server live (%(default)s)"
    )
    parser.add_argument(
        "--seconds", metavar="N", type=int, default=60, help="length of the load (%(default)s)"
    )


def _load(options: argparse.Namespace) -> Config:
    from pipeline.config import load_config

    return load_config(options.config)


def _finish(summary: Summary, options: argparse.Namespace) -> int:
    print(json.dumps(summary.as_json()) if options.json else "\n".join(summary.lines()), flush=True)
    return summary.exit_code(options.strict)


def _ingest(options: argparse.Namespace, stop: threading.Event) -> int:
    config = _load(options)
    from pipeline.operate.ingest import run_ingest

    return _finish(run_ingest(config, trigger=options.trigger, stop=stop), options)


def _apply(options: argparse.Namespace, stop: threading.Event) -> int:
    config = _load(options)
    from pipeline.operate.apply import run_apply

    return _finish(run_apply(config, trigger=options.trigger, stop=stop), options)


def _run(options: argparse.Namespace, stop: threading.Event) -> int:
    config = _load(options)
    from pipeline.operate.run import run_both

    return _finish(run_both(config, trigger=options.trigger, stop=stop), options)


def _demo(options: argparse.Namespace, stop: threading.Event) -> int:
    options.stop = stop
    from pipeline.operate.demo import run_demo

    exit_code: int = run_demo(options)
    return exit_code


def _check(options: argparse.Namespace, stop: threading.Event) -> int:
    del stop
    config = _load(options)
    from pipeline.postgres.checks import run_checks

    checks = run_checks(config)
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
        table.add_row(mark, *map(_plain, (check.name, check.sentence, "" if check.ok else check.fix)))
    console = Console()
    console.print(table)
    failures = sum(not check.ok for check in checks)
    console.print("ready" if is_ready else f"{failures} of {len(checks)} checks failed")
    return 0 if is_ready else 1


def _tail(options: argparse.Namespace, stop: threading.Event) -> int:
    config = None if options.config is None else _load(options)
    from pipeline.operate.tail import run_tail

    return run_tail(request_of(options, config), stop)


def _plain(text: str | None) -> str:
    from rich.markup import escape

    return escape(text or "")


_COMMANDS = {
    "check": Command(
        "check that server, publication and slot are ready, and say what to do where not",
        "Run every start-up check against the server and print passes and fixes. Changes nothing.",
        _take_config,
        _check,
    ),
    "ingest": Command(
        "PostgreSQL -> bronze",
        "Capture every committed change into {root}/bronze. A missing publication and slot are\n"
        "created where the configuration allows it; the slot is told only of what bronze holds.",
        _take_run,
        _ingest,
    ),
    "apply": Command(
        "bronze -> silver",
        "Bring every silver table to the last transaction that bronze holds. Safe to repeat at any time.",
        _take_run,
        _apply,
    ),
    "run": Command(
        "ingest and apply in one Spark session",
        "Run ingest and apply side by side in one Spark session: for a laptop or a demo.",
        _take_run,
        _run,
    ),
    "tail": Command(
        "what a slot says, message by message, live",
        TAIL,
        take_tail,
        _tail,
        json_help="print one JSON object a line: every field, every value whole",
        commits=False,
    ),
    "demo": Command(
        "watch a shop in an embedded PostgreSQL being replicated",
        "Start an embedded PostgreSQL, load a small shop with changes, replicate it before your eyes,\n"
        "and compare every table with its source at the end. Needs the `demo` extra; two minutes.",
        _take_demo,
        _demo,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
