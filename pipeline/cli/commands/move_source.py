"""`pgdelta move-source`: follow the database to another server."""

import threading

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import config_option, output_options, strict_option
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind


@command(
    "move-source",
    section="Repair",
    short_help="Follow the database to another server.",
    examples=[
        (
            "after pg_upgrade or a failover, with the new server in source.conninfo",
            "pgdelta move-source --config conf/pipeline.yaml",
        ),
        (
            "from a server that is still there and is not written any more",
            "pgdelta move-source --config conf/pipeline.yaml \\\n    --from 'host=old dbname=shop'",
        ),
    ],
    exit_codes={0: "moved, and what differs was copied", 1: "failed; run again to continue"},
    kind=CommandKind.ONCE,
)
@config_option
@option(
    "--from",
    "old",
    group="Run",
    metavar="CONNINFO",
    help="Capture the old server up to its end first. Its writers must have stopped. A password comes from "
    "PGPASSFILE or a service file.",
)
@flag(
    "--compare",
    group="Run",
    help="Compare the tables also if pg_upgrade kept the slot, or bronze follows the server already.",
)
@strict_option
@output_options
def move_source(
    config: str,
    old: str | None,
    compare: bool,
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Follow the database to the server that source.conninfo names now: after an upgrade, for blue/green, or
    after a failover to a server without the slot. No other job of the pipeline may be running.

    Bronze records the new server and a gap. Each table is then compared with the new server, and only what
    differs is copied. If pg_upgrade kept the slot, nothing is compared. A command that ended early continues
    when it runs again.
    """
    loaded = load_config(config)
    from pipeline.operate.move_source import run_move_source

    summary = run_move_source(loaded, old=old, compares=compare, stop=stop)
    return unless_stopped(finish(summary, as_json=as_json, strict=strict), stop)
