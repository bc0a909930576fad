"""Options that several commands share, and the types of their values.

Nothing heavy is imported here, because `--help` of every command needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import click

from pipeline.cli.command import Function, flag, option
from pipeline.errors import ConfigError

LOCAL = "127.0.0.1"
OUTPUT = "Output"
TABLES = "Tables"


class Address(NamedTuple):
    """Where metrics or pages are served."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """Return the address that a text names; raise ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if (colon and not host) or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(
            f"{text!r} is not an address. Write a port from 1 to 65535, or HOST:PORT ([::1]:9187 for IPv6)."
        )
    return Address(host or LOCAL, int(port))


def parse_address_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> Address | None:
    """Return the address of an option, for its callback."""
    try:
        return None if value is None else parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def refuse_both(options: Mapping[str, bool]) -> None:
    """Raise ConfigError if two options that exclude each other, by name, are both given."""
    if all(options.values()):
        raise ConfigError(f"{' and '.join(options)} exclude each other. Give one of them.")


def config_option(function: Function) -> Function:
    """Declare `--config`, with PGDELTA_CONFIG as its default."""
    return option(
        "--config",
        group="Pipeline",
        required=True,
        envvar="PGDELTA_CONFIG",
        show_envvar=True,
        metavar="FILE",
        type=click.Path(readable=False),
        help="The pipeline's YAML file.",
    )(function)


def tables_option(what: str) -> Callable[[Function], Function]:
    """Declare `--table GLOB`, repeatable; `what` is its help text."""
    return option(
        "--table",
        "tables",
        group=TABLES,
        multiple=True,
        metavar="GLOB",
        help=f"{what} GLOB is schema.table with * and ?, as in the configuration. Repeatable.",
    )


def wait_option(function: Function) -> Function:
    """Declare `--wait` of commands that compare with a snapshot of the source."""
    return option(
        "--wait",
        group="Run",
        type=click.IntRange(min=0),
        default=150,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait until bronze is as far as the source's snapshot.",
    )(function)


def comparison_options(function: Function) -> Function:
    """Declare `--repair`, `--run` and `--wait` of commands that compare all rows with the source."""
    repair = flag(
        "--repair",
        group="Run",
        help="Request that the rows that differ are copied again by the next ingest, and replaced by the "
        "apply after it.",
    )
    run = flag(
        "--run",
        group="Run",
        help="Capture what the comparison needs, and do what --repair requests. No other job may be running.",
    )
    return repair(run(wait_option(function)))


def strict_option(function: Function) -> Function:
    """Declare `--strict` of commands that write."""
    return flag(
        "--strict",
        group="Run",
        help="Exit with 1 also if a recorded policy held or refused a table, if one is in doubt, or if one "
        "that matches the configuration is not published.",
    )(function)


def output_options(function: Function) -> Function:
    """Declare `--json` and `--debug`."""
    return json_option("Print the result as one JSON object.")(debug_option(function))


def json_option(what: str) -> Callable[[Function], Function]:
    """Declare `--json`."""
    return flag("--json", "as_json", group=OUTPUT, help=what)


def debug_option(function: Function) -> Function:
    """Declare `--debug`."""
    return flag("--debug", group=OUTPUT, help="Show stack traces and Spark's warnings.")(function)


def run_options(function: Function) -> Function:
    """Declare the options of commands that run a pipeline: when it ends, and how it is watched."""
    trigger = option(
        "--trigger",
        group="Run",
        type=click.Choice(("available-now", "continuous")),
        default="available-now",
        show_default=True,
        metavar="WHEN",
        help="available-now ends when all that was there at the start is done; continuous goes on until a "
        "signal.",
    )
    metrics = option(
        "--metrics",
        group="Monitoring",
        callback=parse_address_option,
        metavar="[HOST:]PORT",
        help="Serve Prometheus metrics at http://HOST:PORT/metrics during the run, without password and TLS. "
        f"HOST defaults to this machine only ({LOCAL}).",
    )
    http = option(
        "--http",
        group="Monitoring",
        callback=parse_address_option,
        metavar="[HOST:]PORT",
        help="Serve a page about the pipeline at http://HOST:PORT/ during the run, one for each table, "
        "/metrics and /healthz, without password and TLS. They have no values of rows. HOST defaults to this "
        f"machine only ({LOCAL}).",
    )
    log = option(
        "--log",
        group="Monitoring",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        metavar="FORMAT",
        help="What stderr gets during the run. text: table copies, and in a continuous run tables that are "
        "held or fail. json: one object a line for the start, each commit and batch, tables that are copied, "
        "held or fail, and the end.",
    )
    return trigger(strict_option(metrics(http(log(function)))))
