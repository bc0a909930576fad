"""`pgdelta capsule`: write a support archive."""

import click

from pipeline.cli.command import command, flag, option
from pipeline.cli.options import Address, config_option, output_options, parse_address_option
from pipeline.cli.output import load_config, show

_FILE = "File"


@command(
    "capsule",
    section="Observe",
    short_help="Gather what helps with a fault into one file.",
    examples=[
        ("into a file named by pipeline and time", "pgdelta capsule --config conf/pipeline.yaml"),
        (
            "with the log and the metrics of a running job",
            "pgdelta capsule --config conf/pipeline.yaml --log ingest.log --metrics 9187",
        ),
    ],
    exit_codes={0: "the file is written; what could not be read is a sentence in it"},
)
@config_option
@option(
    "--output",
    group=_FILE,
    metavar="FILE",
    type=click.Path(),
    help="The .tar.gz to write, which must not exist (default: a name with the pipeline and the time).",
)
@option(
    "--log",
    "logs",
    group=_FILE,
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="A log of a run with --log json. Lines of another form are left out. Repeatable.",
)
@option(
    "--metrics",
    group=_FILE,
    callback=parse_address_option,
    metavar="[HOST:]PORT",
    help="Where a running job serves its metrics.",
)
@flag("--offline", group=_FILE, help="Do not read the source.")
@output_options
def capsule(
    config: str,
    output: str | None,
    logs: tuple[str, ...],
    metrics: Address | None,
    offline: bool,
    as_json: bool,
) -> int:
    """Write one file for support: versions, the configuration without secrets, the status, events, counts of
    misfits, and columns, types, counts and sizes of tables. Logs and metrics are added if they are named.

    The file has no row values, no keys and no secrets. Nothing is changed.
    """
    loaded = load_config(config)
    from pipeline.report.capsule import write_capsule

    found = write_capsule(loaded, output, logs=logs, metrics=metrics, is_offline=offline)
    show(found, as_json=as_json)
    return 0
