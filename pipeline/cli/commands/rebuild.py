"""`pgdelta rebuild`: silver tables written again from bronze."""

import threading

from pipeline.cli.command import command, option
from pipeline.cli.options import TABLES, config_option, output_options, strict_option, tables_option
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import Kind


@command(
    "rebuild",
    section="Repair",
    short_help="Build silver tables again from bronze.",
    examples=[
        (
            "after a change of types or policies in the configuration",
            "pgdelta rebuild --config conf/pipeline.yaml --table public.orders",
        )
    ],
    exit_codes={1: "failed, or a table could not be rebuilt; with --strict also if one is held"},
    kind=Kind.ONCE,
)
@config_option
@tables_option("Rebuild these tables only (default: all).")
@option(
    "--confirm",
    group=TABLES,
    is_flag=True,
    help="Lift the guards of the tables that --table names for this run. Without it a table that its guards "
    "hold is left as it is.",
)
@strict_option
@output_options
def rebuild(
    config: str,
    tables: tuple[str, ...],
    confirm: bool,
    strict: bool,
    as_json: bool,
    debug: bool,
    stop: threading.Event,
) -> int:
    """Build silver tables again from all that bronze holds of them, under the types and policies that the
    configuration has now. Readers see the previous rows until one commit replaces them.

    What is pending is applied first. The command does not run while another apply does.
    """
    loaded = load_config(config)
    from pipeline.operate.rebuild import run_rebuild

    summary = run_rebuild(loaded, tables, confirms=confirm, stop=stop)
    return unless_stopped(finish(summary, as_json=as_json, strict=strict), stop)
