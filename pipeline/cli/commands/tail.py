"""`pgdelta tail`: the messages of a slot, live."""

import os
import threading
from typing import Literal

import click

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import debug_option, json_option, refuse_both
from pipeline.cli.signals import CommandKind
from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN

_SLOT, _SHOWN, _END = "Slot", "Messages", "End"


def _parse_lsn(context: click.Context, parameter: click.Parameter, value: str | None) -> LSN | None:
    try:
        return None if value is None else LSN.parse(value)
    except ProtocolError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@command(
    "tail",
    section="Observe",
    short_help="Show the messages of a slot, live.",
    examples=[
        ("what waits in the pipeline's slot now", "pgdelta tail --config conf/pipeline.yaml --no-follow"),
        (
            "what is committed from now on, while the pipeline runs",
            "pgdelta tail --config conf/pipeline.yaml --temporary",
        ),
        (
            "one table, as data",
            "pgdelta tail --config conf/pipeline.yaml --table public.item --json",
        ),
        (
            "another server, without a configuration",
            "pgdelta tail --conninfo 'host=db dbname=shop' --slot shop --limit 20",
        ),
    ],
    kind=CommandKind.READER,
)
@option(
    "--config",
    group=_SLOT,
    metavar="FILE",
    type=click.Path(readable=False),
    help="The pipeline's YAML file, with its server, slot and protocol options. The default is "
    "PGDELTA_CONFIG, unless --conninfo is given.",
)
@option("--conninfo", group=_SLOT, metavar="TEXT", help="Another server: libpq keywords or a URI.")
@option("--slot", group=_SLOT, metavar="NAME", help="Another slot.")
@option(
    "--publication",
    group=_SLOT,
    metavar="NAME",
    help="Another publication. Without --config it defaults to the slot's name.",
)
@option(
    "--route",
    group=_SLOT,
    type=click.Choice(("walsender", "sql")),
    metavar="ROUTE",
    help="walsender: a replication session, which keeps the pipeline from reading the slot meanwhile. sql: "
    "SQL functions, which read the slot again and again and show open transactions each time.",
)
@flag(
    "--temporary",
    group=_SLOT,
    help="Create a slot for this session only, which shows what is committed from now on.",
)
@flag("--two-phase", group=_SLOT, help="Make the temporary slot two-phase (PostgreSQL 15).")
@option(
    "--protocol-version",
    group=_SLOT,
    type=click.IntRange(1, 4),
    metavar="N",
    help="Instead of the configuration's version.",
)
@option(
    "--streaming",
    group=_SLOT,
    type=click.Choice(("off", "on", "parallel")),
    metavar="MODE",
    help="off, on or parallel, instead of the configuration's mode.",
)
@flag(
    "--acknowledge",
    group=_SLOT,
    help="Let the slot FORGET every transaction that was shown: the pipeline never gets these changes. "
    "Refused if the configuration's pipeline fills bronze from this slot.",
)
@flag("--messages", group=_SHOWN, help="Every message as it comes (default).")
@flag(
    "--transactions",
    group=_SHOWN,
    help="Only committed transactions; a prepared one when it is committed.",
)
@option(
    "--table",
    "tables",
    group=_SHOWN,
    metavar="GLOB",
    multiple=True,
    help="Only these tables. GLOB is schema.table with * and ?. Repeatable.",
)
@flag("--no-values", group=_SHOWN, help="Leave out values and contents.")
@option(
    "--value-length",
    group=_SHOWN,
    metavar="N",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Shorten values to N characters; 0 shows complete values.",
)
@option(
    "--follow/--no-follow",
    group=_END,
    default=True,
    help="Go on until Ctrl-C (default), or end when what was committed at the start is shown.",
)
@option("--limit", group=_END, metavar="N", type=click.IntRange(min=1), help="End after N messages.")
@option(
    "--until-lsn",
    group=_END,
    metavar="LSN",
    callback=_parse_lsn,
    help="End when what was committed up to this LSN is shown.",
)
@json_option("Print one JSON object a line, with every field and complete values.")
@debug_option
def tail(
    config: str | None,
    conninfo: str | None,
    slot: str | None,
    publication: str | None,
    route: Literal["walsender", "sql"] | None,
    temporary: bool,
    two_phase: bool,
    protocol_version: Literal[1, 2, 3, 4] | None,
    streaming: Literal["off", "on", "parallel"] | None,
    acknowledge: bool,
    messages: bool,
    transactions: bool,
    tables: tuple[str, ...],
    no_values: bool,
    value_length: int,
    follow: bool,
    limit: int | None,
    until_lsn: LSN | None,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Print the messages of a replication slot, from the LSN that it has reached. NOTHING IS ACKNOWLEDGED: a
    pipeline that reads the slot later still gets everything.

    tail, history and query are the commands that print values of rows. A slot has one reader at a time.
    """
    refuse_both({"--messages": messages, "--transactions": transactions})
    if config is None and conninfo is None:
        config = os.environ.get("PGDELTA_CONFIG") or None
    from pipeline.config.load import load_config
    from pipeline.tail.follow import run_tail
    from pipeline.tail.source import TailOptions

    request = TailOptions(
        config=None if config is None else load_config(config),
        conninfo=conninfo,
        slot=slot,
        publication=publication,
        route=route,
        protocol_version=protocol_version,
        streaming=streaming,
        two_phase=two_phase,
        temporary=temporary,
        acknowledge=acknowledge,
        follow=follow,
        limit=limit,
        until_lsn=until_lsn,
        tables=tables,
        committed_only=transactions,
        as_json=as_json,
        has_values=not no_values,
        value_length=value_length,
    )
    return run_tail(request, stop)
