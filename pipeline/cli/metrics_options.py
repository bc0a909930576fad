"""How a run can be watched, as arguments of the command line.

Nothing heavy is imported here, because `--help` of every command needs it.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

LOCAL = "127.0.0.1"


class Address(NamedTuple):
    """Where metrics are served."""

    host: str
    port: int


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of commands that run a pipeline."""
    parser.add_argument(
        "--metrics",
        type=address_of,
        metavar="[HOST:]PORT",
        help="serve Prometheus metrics at http://HOST:PORT/metrics while it runs; without HOST for this "
        f"machine only ({LOCAL}). There is neither a password nor TLS",
    )
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="what is told on stderr on the way: text for people (default; tables that are copied, and of a "
        "continuous run those that are held or failed), or one JSON object a line for start, each commit and "
        "pass, tables that are copied, held or failed, and the end",
    )


def add_offline(parser: argparse.ArgumentParser) -> None:
    """Add the argument that leaves the source alone."""
    parser.add_argument(
        "--offline",
        action="store_true",
        help="do not ask the source: lags are behind what bronze has, and nothing is said of the slot",
    )


def address_of(text: str) -> Address:
    """Return the address that a text names; raise ArgumentTypeError for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if (colon and not host) or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address: write a port from 1 to 65535, or HOST:PORT ([::1]:9187 for IPv6)"
        )
    return Address(host or LOCAL, int(port))
