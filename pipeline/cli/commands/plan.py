"""`pgdelta plan`: what the next apply would do."""

import click

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import load_config, show


@command(
    "plan",
    section="Observe",
    short_help="Show what the next apply would do, and its cost.",
    examples=[
        ("one line for each table with pending changes", "pgdelta plan --config conf/pipeline.yaml"),
        ("each step of some tables", "pgdelta plan --config conf/pipeline.yaml 'public.ord*'"),
        ("the statements of one", "pgdelta plan --config conf/pipeline.yaml public.orders --sql"),
    ],
)
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@config_option
@flag(
    "--sql",
    group="Output",
    help="Print the SQL that the next apply runs as a script, with comments. It holds no row values.",
)
@output_options
def plan(config: str, tables: tuple[str, ...], sql: bool, as_json: bool) -> int:
    """Show what waits in bronze for each silver table: changes by operation, and the steps by which its
    columns change; and what an edited configuration does to tables without changes. Nothing is changed.

    With TABLE, a glob such as public.orders or 'sales.*', each step is shown with its LSN, its cost, and the
    values that it loses.
    """
    loaded = load_config(config)
    from pipeline.operate.plan import make_plan
    from pipeline.operate.plan_report import with_idle_rules

    found = make_plan(loaded, tables, shows_sql=sql)
    show(with_idle_rules(found, loaded), as_json=as_json)
    return 0
