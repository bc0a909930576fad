"""`pgdelta dbt-sources`: silver's tables as sources of dbt."""

import json
from typing import cast

import click

from pipeline.cli.command import command, option
from pipeline.cli.options import OUTPUT, config_option, output_options, tables_option
from pipeline.cli.output import load_config, printing
from pipeline.cli.signals import print_error

_FRESHNESS = "Freshness"
_AGE = "NUMBER(min|h|d)"


@command(
    "dbt-sources",
    section="Observe",
    short_help="Write silver's tables as sources of dbt.",
    examples=[
        (
            "a file of a dbt project; run it again after a change of columns",
            "pgdelta dbt-sources --config p.yaml --into models/sources.yml",
        ),
        (
            "warn after six hours without a commit",
            "pgdelta dbt-sources --config p.yaml --warn-after 6h --error-after 2d",
        ),
    ],
)
@config_option
@tables_option("Write these tables only.")
@option(
    "--freshness",
    group=_FRESHNESS,
    type=click.Choice(("applied", "changed", "none")),
    default="applied",
    show_default=True,
    metavar="RULE",
    help="How old a table is. applied: since the newest commit that silver shows in full, of whatever table. "
    "changed: since the newest change of its own rows (_commit_time), so one that rests gets stale. none: "
    "not checked.",
)
@option(
    "--warn-after", group=_FRESHNESS, default="1h", show_default=True, metavar=_AGE, help="Age of a warning."
)
@option(
    "--error-after", group=_FRESHNESS, default="1d", show_default=True, metavar=_AGE, help="Age of an error."
)
@option(
    "--into",
    "into",
    group=OUTPUT,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write to FILE, which is replaced in one step, instead of stdout.",
)
@output_options
def dbt_sources(
    config: str,
    tables: tuple[str, ...],
    freshness: str,
    warn_after: str,
    error_after: str,
    into: str | None,
    as_json: bool,
) -> int:
    """Print a sources.yml of dbt for silver's tables: columns, PostgreSQL's comments as descriptions, keys as
    tests, and freshness. dbt-duckdb reads the tables by their paths, dbt-spark by their names in the catalog,
    or by path where they have none.

    Only the lake is read. Tables that silver does not have, or does not follow any more, are left out and
    named on stderr. The same lake gives the same file.
    """
    loaded = load_config(config)
    from pipeline.reading.dbt_sources import Freshness, FreshnessRule, read_dbt_sources

    rule = Freshness(cast("FreshnessRule", freshness), warn_after, error_after)
    found = read_dbt_sources(loaded, tables, rule)
    if into is not None:
        from pipeline.report.web.write_page import replace_file

        replace_file(into, found.text.encode(), "--into")
    with printing():
        if as_json:
            print(json.dumps({"file": into, **found.as_json()}))
        else:
            print(found.text if into is None else found.summary(into), end="" if into is None else "\n")
    for sentence in found.notes():
        print_error(sentence)
    return 0
