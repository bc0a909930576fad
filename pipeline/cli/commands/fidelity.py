"""`pgdelta fidelity`: how many values silver has as the source has them, and which are misfits."""

import threading

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options, strict_option, tables_option, wait_option
from pipeline.cli.output import finish, load_config
from pipeline.cli.signals import CommandKind


@command(
    "fidelity",
    section="Verify",
    short_help="Account for every value: equal, or a misfit.",
    examples=[
        ("all tables, with the columns that have misfits", "pgdelta fidelity --config conf/pipeline.yaml"),
        (
            "each column of a table, as data",
            "pgdelta fidelity --config conf/pipeline.yaml --table public.orders --json",
        ),
    ],
    exit_codes={
        0: "every value is equal or a misfit",
        1: "a table differs, or could not be compared; with --strict also if a column could not",
    },
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Account for these tables only, and show each column (default: all tables).")
@flag(
    "--run",
    group="Run",
    help="Capture what the comparison needs. No other job may be running.",
)
@wait_option
@strict_option
@output_options
def fidelity(
    config: str,
    tables: tuple[str, ...],
    run: bool,
    wait: int,
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Account for the values of the source at one LSN: those of a column that are not NULL are those that
    silver has as they are, and the misfits, which its type cannot hold. A misfit is what the policy of its
    column makes of it.

    The tables are compared as `pgdelta reconcile` does, while ingest and apply go on, and the values are
    counted under the same snapshot of the source.
    """
    loaded = load_config(config)
    from pipeline.verify.fidelity import run_fidelity

    found = run_fidelity(loaded, tables, wait=wait, runs=run, stop=stop)
    return finish(found, as_json=as_json, strict=strict)
