"""`pgdelta apply`: bronze to silver."""

import threading
from collections.abc import Mapping
from typing import Any

from pipeline.cli.command import command, flag
from pipeline.cli.options import TABLES, Address, config_option, output_options, run_options, tables_option
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind
from pipeline.errors import ConfigError


def _kind(parameters: Mapping[str, Any]) -> CommandKind:
    # Guards are lifted for one run: the next one would hold the tables again.
    return CommandKind.ONCE if parameters.get("confirm") else CommandKind.JOB


@command(
    "apply",
    section="Replicate",
    short_help="Apply what bronze holds to the silver tables.",
    examples=[
        ("apply what bronze holds now, then end", "pgdelta apply --config conf/pipeline.yaml"),
        ("follow bronze until a signal", "pgdelta apply --config conf/pipeline.yaml --trigger continuous"),
        (
            "apply the deletes that the guards of a table hold back",
            "pgdelta apply --config conf/pipeline.yaml --table public.orders --confirm",
        ),
        ("the same job under spark-submit", "spark-submit jobs/apply.py --config conf/pipeline.yaml"),
    ],
    exit_codes={1: "failed, or a table could not be applied; with --strict also if one is held or in doubt"},
    kind=_kind,
)
@config_option
@tables_option(
    "Apply once what waits for these tables, those that were held included, for example after the "
    "configuration was corrected."
)
@flag(
    "--confirm",
    group=TABLES,
    help="Lift the guards of the tables that --table names for this run: the deletes and truncates that "
    "they hold back are applied.",
)
@run_options
@output_options
def apply(
    config: str,
    tables: tuple[str, ...],
    confirm: bool,
    trigger: str,
    strict: bool,
    metrics: Address | None,
    http: Address | None,
    log: str,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Apply every change that bronze holds to the silver tables, in commit order. Each table continues from
    the offset in its own log, so the command is safe to repeat at any time.

    With --table the tables that match have to exist, and the command ends when all that bronze holds is
    applied. Other tables are applied along with them, because all tables of silver show one LSN.

    In folders, on object stores and on HDFS, silver and {root}/_pgdelta are maintained meanwhile, unless
    `maintenance.enabled` is false.
    """
    if (tables or confirm) and trigger == "continuous":
        raise ConfigError("--table and --confirm apply once. Leave out --trigger continuous.")
    loaded = load_config(config)
    from pipeline.report.observers import Observers, WatchOptions

    options = WatchOptions(trigger, metrics, log, json=as_json, http=http)
    with Observers(loaded, options, "apply") as watch:
        if tables or confirm:
            from pipeline.operate.rebuild import apply_tables

            summary = apply_tables(loaded, tables, confirms=confirm, progress=watch.on_apply)
        else:
            from pipeline.apply.job import run_apply

            summary = run_apply(loaded, trigger=trigger, stop=stop, progress=watch.on_apply)
    exit_code = finish(summary, as_json=as_json, strict=strict)
    return watch.end(unless_stopped(exit_code, stop) if confirm else exit_code)
