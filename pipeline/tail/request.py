"""What `pgdelta tail` can be asked, as arguments of the command line and as one value.

Nothing heavy is imported here, because `--help` of every command needs it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN

if TYPE_CHECKING:
    from pipeline.config.config import Config

TAIL = """\
Print the messages of a replication slot as they come, from where the slot stands. NOTHING IS ACKNOWLEDGED:
a pipeline that reads the slot later gets everything all the same. Of all commands this one prints values.

  pgdelta tail --config conf/pipeline.yaml --no-follow    what waits in the pipeline's slot now
  pgdelta tail --config conf/pipeline.yaml --temporary    what is committed from now on, beside a running
                                                          pipeline, through a slot that ends with the command
  pgdelta tail --config conf/pipeline.yaml --json | jq 'select(.table == "item")'
  pgdelta tail --conninfo 'host=… dbname=…' --slot shop --publication shop --table 'public.o*' --limit 20

A slot has one reader at a time: while this one follows it by walsender, the pipeline cannot start. By SQL the
slot is taken only for each look, and streams that are open are shown anew with each.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """What the command line asks for; None is what was not given."""

    config: Config | None = None
    conninfo: str | None = None
    slot: str | None = None
    publication: str | None = None
    route: Literal["walsender", "sql"] | None = None
    protocol_version: Literal[1, 2, 3, 4] | None = None
    streaming: Literal["off", "on", "parallel"] | None = None
    two_phase: bool = False
    temporary: bool = False
    acknowledge: bool = False
    follow: bool = True
    limit: int | None = None
    until_lsn: LSN | None = None
    tables: tuple[str, ...] = ()
    committed_only: bool = False
    as_json: bool = False
    has_values: bool = True
    value_length: int = 60


def add_tail(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    where = parser.add_argument_group("which slot")
    where.add_argument("--config", metavar="FILE", help="the pipeline's YAML file: its server, slot, options")
    where.add_argument("--conninfo", metavar="TEXT", help="another server (libpq keywords or a URI)")
    where.add_argument("--slot", metavar="NAME", help="another slot")
    where.add_argument(
        "--publication", metavar="NAME", help="another publication (without a config: as --slot)"
    )
    where.add_argument("--route", choices=("walsender", "sql"), help="replication session, or SQL functions")
    where.add_argument(
        "--temporary",
        action="store_true",
        help="make a slot for this session only; shows what is committed from now on",
    )
    where.add_argument("--two-phase", action="store_true", help="make the temporary slot two-phase (15)")
    where.add_argument("--protocol-version", type=int, choices=(1, 2, 3, 4), help="instead of the config's")
    where.add_argument("--streaming", choices=("off", "on", "parallel"), help="instead of the config's")
    where.add_argument(
        "--acknowledge",
        action="store_true",
        help="let the slot FORGET every transaction that was shown: the pipeline never gets these changes."
        " Refused where bronze of the config's pipeline is being filled from this slot",
    )
    what = parser.add_argument_group("what is shown")
    kinds = what.add_mutually_exclusive_group()
    kinds.add_argument("--messages", action="store_true", help="every message as it comes (default)")
    kinds.add_argument(
        "--transactions", action="store_true", help="committed ones only; prepared ones once they are"
    )
    what.add_argument(
        "--table",
        metavar="GLOB",
        action="append",
        default=[],
        help="only tables such as public.item*; repeat",
    )
    what.add_argument("--no-values", action="store_true", help="leave values and contents out")
    what.add_argument(
        "--value-length", metavar="N", type=_count, default=60, help="shorten values; 0: never (%(default)s)"
    )
    when = parser.add_argument_group("when it ends")
    when.add_argument(
        "--follow",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on until Ctrl-C (default), or end when what was committed at the start is shown",
    )
    when.add_argument("--limit", metavar="N", type=_positive, help="end after so many messages")
    when.add_argument(
        "--until-lsn", metavar="LSN", type=_lsn, help="end when what was committed by it is shown"
    )


def request_of(options: argparse.Namespace, config: Config | None) -> TailOptions:
    """Return what the parsed arguments ask for."""
    return TailOptions(
        config=config,
        conninfo=options.conninfo,
        slot=options.slot,
        publication=options.publication,
        route=options.route,
        protocol_version=options.protocol_version,
        streaming=options.streaming,
        two_phase=options.two_phase,
        temporary=options.temporary,
        acknowledge=options.acknowledge,
        follow=options.follow,
        limit=options.limit,
        until_lsn=options.until_lsn,
        tables=tuple(options.table),
        committed_only=options.transactions,
        as_json=options.json,
        has_values=not options.no_values,
        value_length=options.value_length,
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _positive(text: str) -> int:
    if not (number := _count(text)):
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _lsn(text: str) -> LSN:
    try:
        return LSN.parse(text)
    except ProtocolError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
