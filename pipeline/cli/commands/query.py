"""`pgdelta query`: one SELECT about silver tables, without Spark."""

import sys

import click

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import OUTPUT, config_option, debug_option, json_option, refuse_both
from pipeline.cli.output import load_config, printing

_POINT = "Point in time"


@command(
    "query",
    section="Observe",
    short_help="Run a SELECT over silver tables, also live.",
    examples=[
        (
            "with what apply has not written yet",
            'pgdelta query --config p.yaml --live "SELECT count(*) FROM shop.orders"',
        ),
        (
            "the end of January, as CSV",
            'pgdelta query --config p.yaml --as-of 2026-02-01 --csv "FROM shop.orders"',
        ),
    ],
)
@click.argument("sql", metavar="SQL")
@config_option
@flag("--live", "is_live", group=_POINT, help="Read silver as of the last commit of bronze.")
@option(
    "--as-of",
    "point",
    group=_POINT,
    metavar="LSN|TIME",
    help="Use the newest manifest at or before this LSN, or this commit time such as 2026-01-31T12:00:00Z. "
    "Without a zone it is UTC. The default is the newest manifest.",
)
@option(
    "--limit",
    group=OUTPUT,
    type=click.IntRange(min=0),
    metavar="ROWS",
    help="Print at most this many rows. A table for people has 1000 by default.",
)
@flag("--csv", "as_csv", group=OUTPUT, help="Print CSV with a line of names; NULL is empty.")
@json_option("Print one JSON object; its rows are arrays of values.")
@debug_option
def query(
    sql: str,
    config: str,
    is_live: bool,
    point: str | None,
    limit: int | None,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Run one SELECT of DuckDB's SQL over silver tables, all at one LSN, without Spark. Tables are named
    schema.table as in PostgreSQL: a quoted name is exact ("Sales"."Order items"), any other one is in lower
    case. Tables of schema public need no schema.

    Nothing is written, and no file or network is read but the tables. THE VALUES OF ROWS ARE PRINTED. A query
    uses at most 1 GB of memory, and temporary files.
    """
    refuse_both({"--live": is_live, "--as-of": point is not None})
    refuse_both({"--csv": as_csv, "--json": as_json})
    loaded = load_config(config)
    from pipeline.reading.query import run_query, silver_as_of, silver_live
    from pipeline.terminal import make_console

    silver = silver_live(loaded) if is_live else silver_as_of(loaded, point)
    style = "csv" if as_csv else "json" if as_json else "table"
    with printing():
        run_query(silver, sql, sys.stdout, make_console(), style=style, limit=limit)
    return 0
