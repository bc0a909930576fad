"""`pgdelta pause` and `pgdelta resume`: tables to which apply writes nothing for a time."""

from pipeline.cli.command import command, option
from pipeline.cli.options import TABLES, config_option, output_options, tables_option
from pipeline.cli.output import load_config, show
from pipeline.cli.signals import CommandKind
from pipeline.errors import ConfigError


@command(
    "pause",
    section="Replicate",
    short_help="Let apply write nothing to tables for now.",
    examples=[
        (
            "while a report reads a table",
            "pgdelta pause --config conf/pipeline.yaml --table public.orders \\\n"
            "    --reason 'year-end report'",
        )
    ],
    exit_codes={0: "the tables are paused, also if they were before"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Pause these tables.")
@option("--reason", group=TABLES, metavar="TEXT", help="Why, for status and the event.")
@output_options
def pause(
    config: str,
    tables: tuple[str, ...],
    reason: str | None,
    as_json: bool,
) -> int:
    """Let apply write nothing to tables until `pgdelta resume`. Capture goes on, so that no change is lost,
    and the other tables continue. A write that is under way is finished.

    The pause is recorded in the lake: it holds for every job, also after a restart. `pgdelta status` shows
    it.
    """
    if not tables:
        raise ConfigError("No table is named. Add --table GLOB, or --table '*.*' for all of them.")
    loaded = load_config(config)
    from pipeline.operate.pause import pause_tables

    show(pause_tables(loaded, tables, reason=reason), as_json=as_json)
    return 0


@command(
    "resume",
    section="Replicate",
    short_help="Let apply write to paused tables again.",
    examples=[("a table", "pgdelta resume --config conf/pipeline.yaml --table public.orders")],
    exit_codes={0: "the tables are resumed"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Resume these tables.")
@output_options
def resume(config: str, tables: tuple[str, ...], as_json: bool) -> int:
    """Let apply write to paused tables again. The next batch applies all that bronze has of them; a
    continuous run has one within a minute.
    """
    if not tables:
        raise ConfigError("No table is named. Add --table GLOB, or --table '*.*' for all of them.")
    loaded = load_config(config)
    from pipeline.operate.pause import resume_tables

    show(resume_tables(loaded, tables), as_json=as_json)
    return 0
