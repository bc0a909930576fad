"""`pgdelta resync`: tables, or some of their keys, copied again from the source."""

import threading

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import config_option, output_options, strict_option, tables_option
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind
from pipeline.key_ranges import KeyRange

_ROWS = "Rows"


@command(
    "resync",
    section="Repair",
    short_help="Copy tables, or some keys, again from the source.",
    examples=[
        ("have one table copied", "pgdelta resync --config conf/pipeline.yaml --table public.orders"),
        (
            "copy two keys of it at once",
            "pgdelta resync --config conf/pipeline.yaml --table public.orders \\\n"
            "    --key 17 --key 42 --run",
        ),
        (
            "copy a range of a key of two columns",
            "pgdelta resync --config conf/pipeline.yaml --table public.items \\\n"
            "    --from-key 17 1 --to-key 17 9",
        ),
    ],
    exit_codes={0: "requested, or done with --run", 1: "failed, or --run could not copy or apply a table"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Copy these tables only (default: all).")
@option(
    "--key",
    "keys",
    group=_ROWS,
    takes_many=True,
    metavar="VALUE...",
    multiple=True,
    help="Copy only the rows of this key of one table: a value for each column of the key, or for the first "
    "ones. Repeatable.",
)
@option(
    "--from-key",
    group=_ROWS,
    takes_many=True,
    metavar="VALUE...",
    help="Copy only the rows from this key on.",
)
@option(
    "--to-key",
    group=_ROWS,
    takes_many=True,
    metavar="VALUE...",
    help="Copy only the rows up to this key, which is included.",
)
@flag("--run", group="Run", help="Ingest and apply at once. No other job may be running.")
@strict_option
@output_options
def resync(
    config: str,
    tables: tuple[str, ...],
    keys: tuple[tuple[str, ...], ...],
    from_key: tuple[str, ...],
    to_key: tuple[str, ...],
    run: bool,
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Request that tables are copied again: the next ingest reads all their rows from the source while
    capture goes on, and the apply after it replaces the rows in silver by one commit a table.

    Until then silver keeps its rows and goes on following the source. A continuous ingest starts the copy
    within seconds.
    """
    key_ranges = [KeyRange(values, values) for values in keys]
    if from_key or to_key:
        key_ranges.append(KeyRange(from_key, to_key))
    loaded = load_config(config)
    from pipeline.operate.resync import run_resync
    from pipeline.report.progress import CopyBoard

    with CopyBoard(is_quiet=as_json) as board:
        summary = run_resync(
            loaded, tables, key_ranges=key_ranges, runs=run, progress=board.update, stop=stop
        )
    return unless_stopped(finish(summary, as_json=as_json, strict=strict), stop)
