"""`pgdelta prove`: does silver equal the source, by fingerprints of its files, without reading them."""

import threading

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import comparison_options, config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config
from pipeline.cli.signals import CommandKind


@command(
    "prove",
    section="Verify",
    short_help="Prove that silver equals the source, without reading it.",
    examples=[
        ("prove all tables while ingest and apply run", "pgdelta prove --config conf/pipeline.yaml"),
        (
            "from cron: the tables whose last proof is older than verify.every",
            "pgdelta prove --config conf/pipeline.yaml --due",
        ),
        (
            "prove one table, and repair what differs at once",
            "pgdelta prove --config conf/pipeline.yaml --table public.orders \\\n    --repair --run",
        ),
    ],
    exit_codes={0: "every table equals its source", 1: "a table differs, or could not be proved"},
    kind=CommandKind.ONCE,
)
@config_option
@tables_option("Prove these tables only (default: all).")
@flag(
    "--due",
    group="Run",
    help="Prove the tables whose last proof is older than verify.every, the oldest first.",
)
@option(
    "--budget",
    group="Run",
    metavar="SIZE/s",
    help="Read at most so much of the source's tables a second, such as 20MB/s (default: verify.budget).",
)
@comparison_options
@output_options
def prove(
    config: str,
    tables: tuple[str, ...],
    due: bool,
    budget: str | None,
    repair: bool,
    run: bool,
    wait: int,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Compare the fingerprint of each silver table with the source's at one LSN, while both go on. The source
    is read once, from its first row to its last. Of silver only files are read whose fingerprint is not
    recorded yet, and those with changes that apply has not written. A table that differs is compared row by
    row, as pgdelta reconcile does.
    """
    loaded = load_config(config)
    from pipeline.verify.prove import run_prove

    found = run_prove(loaded, tables, due=due, budget=budget, wait=wait, runs=run, repairs=repair, stop=stop)
    return finish(found, as_json=as_json)
