"""`pgdelta optimize`: small files merged."""

import threading

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config, table_progress, unless_stopped
from pipeline.cli.signals import CommandKind


@command(
    "optimize",
    section="Repair",
    short_help="Merge the small files of all tables.",
    examples=[
        ("every night, while the jobs run", "pgdelta optimize --config conf/pipeline.yaml"),
        ("also remove files of old versions", "pgdelta optimize --config conf/pipeline.yaml --vacuum"),
    ],
    exit_codes={1: "failed, or a table could not be optimized; the others are"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Optimize these silver tables only (default: all tables of the lake).")
@flag(
    "--vacuum",
    group="Run",
    help="Also remove the files that left a table longer ago than delta.deletedFileRetentionDuration, a week "
    "unless set. as-of cannot read versions that need them any more.",
)
@output_options
def optimize(
    config: str,
    tables: tuple[str, ...],
    vacuum: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Merge the small files of bronze, of the pipeline's own tables and of silver. No row changes, and ingest
    and apply may go on meanwhile.
    """
    loaded = load_config(config)
    from pipeline.operate.optimize import run_optimize

    with table_progress("optimiz", is_quiet=as_json) as progress:
        summary = run_optimize(loaded, tables, vacuums=vacuum, stop=stop, progress=progress)
    return unless_stopped(finish(summary, as_json=as_json), stop)
