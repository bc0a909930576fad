"""The command line: `pgdelta` and the jobs share one parser and one way to end.

A subcommand is a row of `_COMMANDS`: its help, its arguments and the function that does the work. Exit codes:
0 done, 1 failed, 2 usage or config.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline import __version__
from pipeline.cli import commands
from pipeline.cli.as_of_options import AS_OF, add_as_of
from pipeline.cli.metrics_options import add_offline, add_watch
from pipeline.cli.options import add_config
from pipeline.cli.signals import Kind, main_guard
from pipeline.tail.request import TAIL, add_tail

_ABOUT = """\
Replicate PostgreSQL into Delta Lake: every change to bronze, tables equal to the source in silver.

  pgdelta check  --config conf/pipeline.yaml    is the server ready? what to do where it is not
  pgdelta ingest --config conf/pipeline.yaml    PostgreSQL -> bronze
  pgdelta apply  --config conf/pipeline.yaml    bronze -> silver
  pgdelta run    --config conf/pipeline.yaml    both, in one Spark session
  pgdelta status --config conf/pipeline.yaml    how far is each table, and why not further?
  pgdelta plan   --config conf/pipeline.yaml    what would apply do next, and what does it cost?
  pgdelta retry  --config conf/pipeline.yaml    apply once more what was held, or write it anew
  pgdelta resync --config conf/pipeline.yaml    copy tables anew from the source
  pgdelta reconcile --config conf/pipeline.yaml does silver equal the source, and where not?
  pgdelta optimize --config conf/pipeline.yaml  merge the small files of all tables
  pgdelta as-of  --config conf/pipeline.yaml    which versions of silver show one commit?
  pgdelta tail   --config conf/pipeline.yaml    what does the slot say?
"""
_ENDING = """\
exit codes: 0 done; 1 failed; 2 a mistake in the command line or the configuration.
Ctrl-C or SIGTERM {}
"""


@dataclass(frozen=True, slots=True)
class Command:
    """Name a subcommand, what it teaches, what it takes and what it calls."""

    help: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    call: Callable[[argparse.Namespace, threading.Event], int]
    json_help: str = "print the result as one JSON object"
    kind: Kind = Kind.JOB


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    options = make_parser().parse_args(arguments)
    command: Command = options.command
    return main_guard(lambda stop: command.call(options, stop), debug=options.debug, kind=command.kind)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command and all its subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="pgdelta", description=_ABOUT, epilog=_ENDING.format(Kind.JOB.value), formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"pgdelta {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in _COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=_ENDING.format(command.kind.value),
            formatter_class=raw,
            # --acknowledge must not be guessed from its first letters
            allow_abbrev=False,
        )
        command.arguments(sub)
        sub.add_argument("--json", action="store_true", help=command.json_help)
        sub.add_argument("--debug", action="store_true", help="show stack traces and Spark's warnings")
        sub.set_defaults(command=command)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--trigger",
        choices=("available-now", "continuous"),
        default="available-now",
        help="end when what is there at the start is done (default), or go on until a signal",
    )
    _add_strict(parser)
    add_watch(parser)


def _add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 also where a recorded policy held or refused a table"
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "tables", nargs="*", metavar="TABLE", help="show these tables in detail: `schema.table` globs"
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 where something holds a table")
    parser.add_argument(
        "--prove",
        action="store_true",
        help="walk the commits of bronze instead: is everything there that was committed between its first "
        "LSN and its last? exit 1 where the chain is broken",
    )
    add_offline(parser)


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table",
        action="append",
        metavar="GLOB",
        help="only these tables: `schema.table` as in the configuration; may be repeated",
    )


def _add_retry(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    _add_tables(parser)
    parser.add_argument(
        "--rewrite",
        action="store_true",
        help="write the tables anew from all that bronze has of them, as the configuration says now",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="apply what waits for the tables that --table names, whatever their guards say",
    )
    _add_strict(parser)


def _add_resync(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    _add_tables(parser)
    parser.add_argument(
        "--key",
        action="append",
        nargs="+",
        metavar="VALUE",
        help="only the rows of this key of one table: a value for each column of the key, or for the first "
        "ones; may be repeated",
    )
    parser.add_argument("--from-key", nargs="+", metavar="VALUE", help="only the rows from this key on")
    parser.add_argument(
        "--to-key", nargs="+", metavar="VALUE", help="only the rows up to this key, with its own"
    )
    parser.add_argument(
        "--run", action="store_true", help="ingest and apply at once; not beside a running job"
    )
    _add_strict(parser)


def _add_reconcile(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    _add_tables(parser)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="have the rows that differ copied anew by the next ingest, put in place by the apply after it",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="capture what the comparison needs, and do what --repair asks for; not beside a running job",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=int,
        default=150,
        help="how long to wait until bronze is as far as the source's snapshot (%(default)s)",
    )


def _add_optimize(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    _add_tables(parser)
    parser.add_argument(
        "--vacuum",
        action="store_true",
        help="also remove the files that left a table longer ago than delta.deletedFileRetentionDuration, a "
        "week unless set: as-of reads no further back then",
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="FOLDER", default=".demo", help="where lake and server live (%(default)s)"
    )
    parser.add_argument(
        "--seconds", metavar="N", type=int, default=60, help="length of the load (%(default)s)"
    )


_COMMANDS = {
    "check": Command(
        "check that machine, server, publication and slot are ready; say what to do where not",
        "Run every start-up check, print passes and fixes. Changes nothing.",
        add_config,
        commands.check,
        kind=Kind.ANSWER,
    ),
    "ingest": Command(
        "PostgreSQL -> bronze",
        "Capture every committed change into {root}/bronze. A missing publication and slot are\n"
        "created where the configuration allows it; the slot is told only of what bronze holds.",
        _add_run,
        commands.ingest,
    ),
    "apply": Command(
        "bronze -> silver",
        "Bring every silver table to the last transaction that bronze holds. Safe to repeat at any time.",
        _add_run,
        commands.apply,
    ),
    "run": Command(
        "ingest and apply in one Spark session",
        "Run ingest and apply side by side in one Spark session: for a laptop or a demo.",
        _add_run,
        commands.run,
    ),
    "status": Command(
        "how far each table is applied, and why not further",
        "Show each silver table as of the newest manifest: how far it is applied and behind the source, in\n"
        "seconds (since the newest commit that it shows; 0 where it shows all) and bytes of WAL; what was\n"
        "committed to it within the last 24 hours, by the source's commit times; values that did not fit;\n"
        "whether it is held, and why. And the source's slot: the WAL that it keeps, and how long until\n"
        "max_slot_wal_keep_size is reached. A source that does not answer within seconds is left out.\n"
        "With --prove: whether bronze is whole, commit by commit, and exit code 1 where it is not.",
        _add_status,
        commands.status,
        kind=Kind.ANSWER,
    ),
    "plan": Command(
        "what the next apply would do, and what it costs",
        "Show what waits in bronze for each silver table: changes by operation, and every step by which its\n"
        "columns change, with its cost and with what it loses. Changes nothing.",
        add_config,
        commands.plan,
        kind=Kind.ANSWER,
    ),
    "retry": Command(
        "apply once more what was held, or write tables anew from bronze",
        "Apply what waits for the tables, in order, as every apply does; for tables that were held, after\n"
        "the configuration was mended. With --confirm the guards of the tables that --table names are\n"
        "lifted for this once. With --rewrite each table is written anew from bronze, under the types and\n"
        "policies that the configuration has now: readers see the rows from before until one commit\n"
        "replaces them. Not beside a running apply.",
        _add_retry,
        commands.retry,
        kind=Kind.ONCE,
    ),
    "resync": Command(
        "copy tables anew from the source",
        "Ask for tables to be copied anew: the next ingest (or one that runs) reads all their rows from the\n"
        "source while capture goes on, the apply after it puts them in silver by one commit a table. Until\n"
        "then readers see what is there, and it goes on following the source.",
        _add_resync,
        commands.resync,
        kind=Kind.ONCE,
    ),
    "reconcile": Command(
        "prove that silver equals the source, and find the rows that differ",
        "Hold silver against the source at one LSN, while both go on: rows are hashed where they are, under\n"
        "one snapshot of the source and the versions of silver that hold the same transactions. Rows that\n"
        "differ are found by their keys, in _pgdelta/differences; what became of each table is in\n"
        "_pgdelta/reconciliations. Exit code 1 where a table differs, or could not be compared.",
        _add_reconcile,
        commands.reconcile,
        kind=Kind.ONCE,
    ),
    "optimize": Command(
        "merge the small files of all tables",
        "Merge the small files of bronze, of the pipeline's own tables and of silver, or of the silver\n"
        "tables that --table names; with --vacuum remove files that no version needs any more. Safe while\n"
        "ingest and apply go on; no row changes. Exit code 1 where a table could not be done; the others\n"
        "are.",
        _add_optimize,
        commands.optimize,
        kind=Kind.ONCE,
    ),
    "as-of": Command(
        "which version of each silver table shows one commit of the source",
        AS_OF,
        add_as_of,
        commands.as_of,
        kind=Kind.ANSWER,
    ),
    "tail": Command(
        "what a slot says, message by message, live",
        TAIL,
        add_tail,
        commands.tail,
        json_help="print one JSON object a line: every field, every value whole",
        kind=Kind.READER,
    ),
    "demo": Command(
        "watch a shop in an embedded PostgreSQL being replicated",
        "Start an embedded PostgreSQL, load a small shop with changes, replicate it before your eyes,\n"
        "and compare every table with its source at the end. Needs the `demo` extra; two minutes.",
        _add_demo,
        commands.demo,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
