"""`pgdelta forget`: one subject erased from the whole lake."""

import threading

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind


@command(
    "forget",
    section="Repair",
    short_help="Erase a deleted row from all of the lake.",
    examples=[
        (
            "see what would be erased",
            "pgdelta forget --config conf/pipeline.yaml --table public.customers \\\n    --key 17 --dry-run",
        ),
        (
            "erase two rows that the source has deleted",
            "pgdelta forget --config conf/pipeline.yaml --table public.customers \\\n    --key 17 --key 42",
        ),
    ],
    exit_codes={1: "failed: nothing, or not everything, is erased; a second run continues"},
    kind=CommandKind.ONCE,
)
@config_option
@option("--table", group="Rows", metavar="SCHEMA.TABLE", required=True, help="The table of the rows.")
@option(
    "--key",
    "keys",
    group="Rows",
    takes_many=True,
    metavar="VALUE...",
    multiple=True,
    required=True,
    help="Erase all changes of the row with this key: a value for each column of the key. Repeatable.",
)
@flag("--dry-run", group="Run", help="Only count what would be erased.")
@output_options
def forget(
    config: str,
    table: str,
    keys: tuple[tuple[str, ...], ...],
    dry_run: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Erase all that the lake has of rows that the source has deleted: their changes in bronze, misfits,
    recorded differences and requests. Earlier versions of the silver table, and their files, are removed.

    Neither job may be running. Ends with a receipt, which has no values.
    """
    loaded = load_config(config)
    from pipeline.forget.forget import run_forget

    receipt = run_forget(loaded, table, keys, is_dry_run=dry_run)
    return unless_stopped(finish(receipt, as_json=as_json), stop)
