"""`pgdelta schema`: the JSON Schema of the configuration."""

from collections.abc import Callable
from importlib import import_module

from pipeline.cli.command import command
from pipeline.cli.options import debug_option


@command(
    "schema",
    section="Set up",
    short_help="Print the JSON Schema of the configuration.",
    examples=[
        ("let an editor complete and check the file", "pgdelta schema > conf/pipeline.schema.json"),
        (
            "then write this as its first line",
            "# yaml-language-server: $schema=pipeline.schema.json",
        ),
    ],
)
@debug_option
def schema() -> int:
    """Print the JSON Schema of the configuration file. Editors complete keys and check values with it."""
    schema_text: Callable[[], str] = import_module("pipeline.config.load").schema_text

    print(schema_text().rstrip("\n"), flush=True)
    return 0
