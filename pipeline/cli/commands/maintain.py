"""`pgdelta maintain`: merge small files, remove what no version needs, and compact bronze."""

import threading

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config, table_progress, unless_stopped
from pipeline.cli.signals import CommandKind


@command(
    "maintain",
    section="Repair",
    short_help="Merge small files, and remove old files and versions.",
    examples=[
        ("all tables now, while the jobs run", "pgdelta maintain --config conf/pipeline.yaml"),
        ("show what it would do", "pgdelta maintain --config conf/pipeline.yaml --dry-run"),
        ("some silver tables only", "pgdelta maintain --config conf/pipeline.yaml --table 'public.*'"),
    ],
    exit_codes={1: "failed, or a table could not be maintained; the others were"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Maintain these silver tables only (default: all tables of the lake).")
@flag("--dry-run", group="Run", help="Only count what would be merged and removed.")
@flag(
    "--spark",
    "by_spark",
    group="Run",
    help="Let Spark do what only it can do: tables with deletion vectors or constraints, and lakes on other "
    "storage. Such tables are only named otherwise.",
)
@output_options
def maintain(
    config: str,
    tables: tuple[str, ...],
    dry_run: bool,
    by_spark: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Merge the small files of bronze, of the pipeline's own tables and of silver, remove the files that no
    version needs, and shorten the logs. `maintenance` in the configuration has the limits; what is below them
    costs little. Ingest and apply may run meanwhile. No row changes, except that changes in bronze older than
    `bronze.retention` are compacted.

    In folders, on object stores and on HDFS, ingest and apply do the same by themselves unless
    `maintenance.enabled` is false. They do not compact bronze.
    """
    loaded = load_config(config)
    from pipeline.operate.maintain import run_maintenance

    with table_progress("maintain", is_quiet=as_json) as progress:
        summary = run_maintenance(
            loaded, tables, dry_run=dry_run, by_spark=by_spark, stop=stop, progress=progress
        )
    return unless_stopped(finish(summary, as_json=as_json), stop)
