"""`pgdelta history`: the life of one row."""

import click

from pipeline.cli.command import command
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import finish, load_config


@command(
    "history",
    section="Observe",
    short_help="Show what happened to one row, from bronze.",
    examples=[
        (
            "the order 17, with its values",
            "pgdelta history --config conf/pipeline.yaml public.orders 17",
        ),
        (
            "a row whose key has two columns, as data",
            "pgdelta history --config conf/pipeline.yaml public.items 17 3 --json",
        ),
    ],
)
@click.argument("table", metavar="TABLE", nargs=1)
@click.argument("key", metavar="KEY...", nargs=-1, required=True)
@config_option
@output_options
def history(config: str, table: str, key: tuple[str, ...], as_json: bool) -> int:
    """Print each change that bronze has of the row with KEY, oldest first: its commit LSN and time, its
    transaction, and the columns that it changed. Key changes are followed backward and forward; a row that is
    inserted again with a key is another row.

    THE VALUES OF THE ROW ARE PRINTED, long ones shortened unless --json is given. KEY is a value for each
    column of the key, as SELECT prints it. Nothing is changed.
    """
    loaded = load_config(config)
    from pipeline.reading.history import read_history

    return finish(read_history(loaded, table, key), as_json=as_json)
