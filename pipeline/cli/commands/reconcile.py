"""`pgdelta reconcile`: does silver equal the source, and where not."""

import threading

from pipeline.cli.command import command
from pipeline.cli.options import comparison_options, config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config
from pipeline.cli.signals import CommandKind


@command(
    "reconcile",
    section="Verify",
    short_help="Compare silver with the source, row by row.",
    examples=[
        (
            "compare all tables while ingest and apply run",
            "pgdelta reconcile --config conf/pipeline.yaml",
        ),
        (
            "compare one table, and repair it at once",
            "pgdelta reconcile --config conf/pipeline.yaml --table public.orders \\\n    --repair --run",
        ),
    ],
    exit_codes={0: "every table equals its source", 1: "a table differs, or could not be compared"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Compare these tables only (default: all).")
@comparison_options
@output_options
def reconcile(
    config: str,
    tables: tuple[str, ...],
    repair: bool,
    run: bool,
    wait: int,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Compare silver with the source at one LSN, while both go on. Rows are hashed where they are, under one
    snapshot of the source and the versions of silver that hold the same transactions.

    The keys of rows that differ are in {root}/_pgdelta/differences, the result of each table is in
    {root}/_pgdelta/reconciliations.
    """
    loaded = load_config(config)
    from pipeline.verify.reconcile import run_reconcile

    found = run_reconcile(loaded, tables, wait=wait, runs=run, repairs=repair, stop=stop)
    return finish(found, as_json=as_json)
