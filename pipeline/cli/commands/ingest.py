"""`pgdelta ingest`: PostgreSQL to bronze."""

import threading

from pipeline.cli.command import command
from pipeline.cli.options import Address, config_option, output_options, run_options
from pipeline.cli.output import finish, load_config
from pipeline.cli.signals import CommandKind


@command(
    "ingest",
    section="Replicate",
    short_help="Capture committed changes into bronze.",
    examples=[
        ("capture what is committed now, then end", "pgdelta ingest --config conf/pipeline.yaml"),
        (
            "go on until a signal, with metrics for Prometheus",
            "pgdelta ingest --config conf/pipeline.yaml --trigger continuous \\\n    --metrics 9187",
        ),
        ("the same job under spark-submit", "spark-submit jobs/ingest.py --config conf/pipeline.yaml"),
    ],
    kind=CommandKind.JOB,
)
@config_option
@run_options
@output_options
def ingest(
    config: str,
    trigger: str,
    strict: bool,
    metrics: Address | None,
    http: Address | None,
    log: str,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Capture every committed change into {root}/bronze. A missing publication and slot are created if the
    configuration allows it.

    Changes are acknowledged to the slot only after bronze holds them. In folders, on object stores and on
    HDFS, bronze is maintained meanwhile, unless `maintenance.enabled` is false.
    """
    loaded = load_config(config, reuses_blocks=True)
    from pipeline.ingest.job import run_ingest
    from pipeline.report.observers import Observers, WatchOptions
    from pipeline.verify.schedule import proving

    options = WatchOptions(trigger, metrics, log, json=as_json, http=http)
    with Observers(loaded, options, "ingest") as watch, proving(loaded, trigger, stop):
        summary = run_ingest(loaded, trigger=trigger, stop=stop, progress=watch.on_ingest)
    summary.names_next_step = trigger == "available-now"
    return watch.end(finish(summary, as_json=as_json, strict=strict))
