"""`pgdelta fingerprint`: the fingerprints of silver tables, and the SQL that gives that of a copy."""

import threading
from typing import Literal

import click

from pipeline.cli.command import command, option
from pipeline.cli.options import config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config, show
from pipeline.cli.signals import CommandKind


@command(
    "fingerprint",
    section="Verify",
    short_help="Fingerprint silver's tables, to prove copies of them.",
    examples=[
        ("the fingerprint of each table", "pgdelta fingerprint --config conf/pipeline.yaml"),
        (
            "by which SQL does a copy in DuckDB have the same?",
            "pgdelta fingerprint --config conf/pipeline.yaml --table public.orders \\\n    --sql duckdb",
        ),
    ],
    exit_codes={0: "every table has a fingerprint", 1: "a table has none"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Fingerprint these tables only (default: all).")
@option(
    "--sql",
    "dialect",
    group="Output",
    type=click.Choice(("postgres", "duckdb", "spark")),
    metavar="DIALECT",
    help="Print the query of PostgreSQL, DuckDB or Spark for a copy of one table, and read nothing.",
)
@output_options
def fingerprint(
    config: str,
    tables: tuple[str, ...],
    dialect: Literal["postgres", "duckdb", "spark"] | None,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Show the number of rows and the fingerprint of each silver table: a sum of the hashes of its rows,
    which depends on no order. Files are read whose fingerprint is not yet recorded in
    {root}/_pgdelta/fingerprints, and recorded. The source is not read.
    """
    loaded = load_config(config)
    from pipeline.verify.fingerprint import read_query, run_fingerprint

    if dialect is not None:
        show(read_query(loaded, tables, dialect), as_json=as_json)
        return 0
    return finish(run_fingerprint(loaded, tables, stop=stop), as_json=as_json)
