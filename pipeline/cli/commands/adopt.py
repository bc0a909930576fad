"""`pgdelta adopt`: take over a Delta table that another program wrote."""

import threading

import click

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import TABLES, config_option, output_options, refuse_both, strict_option
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind


@command(
    "adopt",
    section="Repair",
    short_help="Start a table from a Delta table that another program wrote.",
    examples=[
        (
            "compare first; nothing is changed",
            "pgdelta adopt --config conf/pipeline.yaml --table public.orders \\\n"
            "    --dry-run /data/airbyte/orders",
        ),
        (
            "adopt it, without the columns that the other program added",
            "pgdelta adopt --config conf/pipeline.yaml --table public.orders \\\n"
            "    --ignore-column _airbyte_raw_id /data/airbyte/orders",
        ),
        (
            "request it; the next ingest and apply do it",
            "pgdelta adopt --config conf/pipeline.yaml --table public.orders \\\n"
            "    --no-run s3://old-lake/orders",
        ),
    ],
    exit_codes={
        0: "adopted, requested with --no-run, or compared with --dry-run",
        1: "failed, or not adopted yet; run again to continue",
    },
    kind=CommandKind.ONCE,
)
@config_option
@option(
    "--table",
    "table",
    group=TABLES,
    metavar="SCHEMA.TABLE",
    required=True,
    help="The table of the source. A part with a dot is double-quoted.",
)
@click.argument("path", metavar="PATH")
@option(
    "--ignore-column",
    "ignored",
    group=TABLES,
    multiple=True,
    metavar="NAME",
    help="Leave out this column of the Delta table, which the source does not have. Repeatable.",
)
@flag("--dry-run", group="Run", help="Compare only, and show how much would be copied.")
@flag("--no-run", group="Run", help="Only request it. The next ingest and apply do it.")
@strict_option
@output_options
def adopt(
    config: str,
    table: str,
    path: str,
    ignored: tuple[str, ...],
    dry_run: bool,
    no_run: bool,
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Start a table from the Delta table at PATH, which another program wrote, instead of a complete copy.

    The Delta table is compared with the source under one snapshot, while both go on. Only rows that differ
    are read from the source; bronze and silver are then those of a complete copy. PATH is only read, and is
    not needed afterwards. Run it before the first ingest of the table. Without --no-run, no other job of the
    pipeline may be running. A command that ended early continues when it runs again.
    """
    refuse_both({"--dry-run": dry_run, "--no-run": no_run})
    loaded = load_config(config)
    from pipeline.operate.adopt import run_adopt
    from pipeline.report.progress import CopyBoard

    with CopyBoard(is_quiet=as_json) as board:
        summary = run_adopt(
            loaded,
            table,
            path,
            ignored=ignored,
            is_dry_run=dry_run,
            runs=not no_run,
            progress=board.update,
            stop=stop,
        )
    return unless_stopped(finish(summary, as_json=as_json, strict=strict), stop)
