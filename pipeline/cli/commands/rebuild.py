"""`pgdelta rebuild`: silver tables written again from bronze."""

import threading

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import (
    TABLES,
    config_option,
    output_options,
    refuse_both,
    strict_option,
    tables_option,
)
from pipeline.cli.output import finish, load_config, unless_stopped
from pipeline.cli.signals import CommandKind
from pipeline.errors import ConfigError

_PAST = "A table as it was"


@command(
    "rebuild",
    section="Repair",
    short_help="Build silver tables again from bronze.",
    examples=[
        (
            "after a change of types or policies in the configuration",
            "pgdelta rebuild --config conf/pipeline.yaml --table public.orders",
        ),
        (
            "a table as it was at an LSN, in a folder of its own",
            "pgdelta rebuild --config p.yaml --table a.b --to-lsn 0/1A52C38 --into /tmp/b",
        ),
    ],
    exit_codes={1: "failed, or a table could not be rebuilt; with --strict also if one is held"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Rebuild these tables only (default: all).")
@flag(
    "--confirm",
    group=TABLES,
    help="Lift the guards of the tables that --table names for this run. Without it a table that its guards "
    "hold is left as it is.",
)
@option(
    "--into",
    group=_PAST,
    metavar="PATH",
    help="Build one table at PATH, outside the lake, and leave the live one as it is. PATH must not exist, "
    "or be an earlier result for the same table, which is replaced.",
)
@option("--to-lsn", group=_PAST, metavar="X/Y", help="With --into: as of this LSN (default: the newest).")
@option(
    "--to-time",
    group=_PAST,
    metavar="TIME",
    help="With --into: before the first transaction that committed after this time, such as "
    "2026-01-31T12:00:00Z. Without a zone it is UTC.",
)
@strict_option
@output_options
def rebuild(
    config: str,
    tables: tuple[str, ...],
    confirm: bool,
    into: str | None,
    to_lsn: str | None,
    to_time: str | None,
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Build silver tables again from all that bronze holds of them, under the types and policies that the
    configuration has now. Readers see the previous rows until one commit replaces them.

    What is pending is applied first. The command does not run while another apply does.

    With --into, a table is built next to the live one, as of any LSN that bronze has of it. Nothing is
    applied then, and jobs go on.
    """
    if into is None and (to_lsn is not None or to_time is not None):
        raise ConfigError(
            "--to-lsn and --to-time need --into, because a live table cannot be behind on purpose. Add --into"
            " PATH."
        )
    refuse_both({"--to-lsn": to_lsn is not None, "--to-time": to_time is not None})
    if into is not None and confirm:
        raise ConfigError("--confirm lifts guards, which --into does not have. Leave it out.")
    loaded = load_config(config)
    if into is not None:
        from pipeline.operate.rebuild_into import build_into

        built = build_into(loaded, tables, into, lsn=to_lsn, time=to_time)
        return finish(built, as_json=as_json, strict=strict)
    from pipeline.operate.rebuild import run_rebuild

    summary = run_rebuild(loaded, tables, confirms=confirm, stop=stop)
    return unless_stopped(finish(summary, as_json=as_json, strict=strict), stop)
