"""`pgdelta status`: how far each table is, and why not further."""

from typing import TYPE_CHECKING

import click

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import finish, load_config, show
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.report.status_page import Status
    from pipeline.report.table_details import StatusDetails


@command(
    "status",
    section="Observe",
    short_help="Show how far each table is, and why not further.",
    examples=[
        ("how far are the tables, and the slot?", "pgdelta status --config conf/pipeline.yaml"),
        (
            "what are the columns of one table, and their types?",
            "pgdelta status public.orders --config conf/pipeline.yaml",
        ),
        (
            "write a page for a web server, from cron",
            "pgdelta status --config conf/pipeline.yaml --html /srv/www/shop.html",
        ),
        ("fail a scheduled check if a table is held", "pgdelta status --config conf/pipeline.yaml --strict"),
        (
            "print only what needs a person, for cron",
            "pgdelta status --config conf/pipeline.yaml --alert",
        ),
    ],
    exit_codes={
        1: "failed; with --strict also if a table is held, refused, in doubt, unpublished or failed",
        3: "with --alert: something needs a person",
    },
)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@config_option
@flag(
    "--offline",
    group="Source",
    help="Do not connect to the source: lags are relative to bronze, and the slot is not shown.",
)
@flag(
    "--strict",
    group="Run",
    help="Exit with 1 if a table is held, refused, in doubt, unpublished or failed.",
)
@flag(
    "--alert",
    group="Run",
    help="Print only what needs a person, one line each with what to do, by the conditions of `alerts.on`; "
    "exit with 3 if there is anything.",
)
@option(
    "--html",
    group="Output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the status to FILE as a page for a browser, with the columns, events and schema history of "
    "each table. FILE is replaced in one step and loads nothing else.",
)
@output_options
def status(
    tables: tuple[str, ...],
    config: str,
    offline: bool,
    strict: bool,
    alert: bool,
    html: str | None,
    as_json: bool,
) -> int:
    """Show each silver table as of the newest manifest: how far it is applied, how far it is behind, values
    that did not fit their type, and what holds it. The source's slot is shown with the WAL that it retains.

    TABLE, a schema.table with * and ?, shows the tables that match in detail, with their columns.

    The lag in seconds counts from the newest commit that silver shows, and is 0 if it shows all of them. The
    lag in bytes is WAL. A source that does not answer within seconds is left out.
    """
    if alert and (tables or strict or html):
        raise ConfigError("--alert is about the whole pipeline. Leave out TABLE, --strict and --html.")
    loaded = load_config(config)
    if alert:
        from pipeline.report.alert_rules import find_alerts
        from pipeline.report.alerts import read_facts

        return finish(find_alerts(read_facts(loaded, is_offline=offline)), as_json=as_json)
    from pipeline.report.status import read_details, read_page_facts, read_status

    found: Status | StatusDetails
    if html is not None:
        from pipeline.report.web.write_page import write_page

        facts = read_page_facts(loaded, tables, is_offline=offline)
        show(write_page(facts, html), as_json=as_json)
        return int(strict and facts.status.is_held)
    if tables:
        found = read_details(loaded, tables, is_offline=offline)
    else:
        found = read_status(loaded, is_offline=offline)
    show(found, as_json=as_json)
    return int(strict and found.is_held)
