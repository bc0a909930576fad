"""`pgdelta run`: ingest and apply in one process."""

import threading

from pipeline.cli.command import command
from pipeline.cli.options import Address, config_option, output_options, run_options
from pipeline.cli.output import finish, load_config
from pipeline.cli.signals import CommandKind


@command(
    "run",
    section="Replicate",
    short_help="Ingest and apply in one process.",
    examples=[
        ("replicate what is committed now, then end", "pgdelta run --config conf/pipeline.yaml"),
        ("replicate until Ctrl-C", "pgdelta run --config conf/pipeline.yaml --trigger continuous"),
    ],
    exit_codes={1: "failed, or a table could not be copied or applied"},
    kind=CommandKind.JOB,
)
@config_option
@run_options
@output_options
def run(
    config: str,
    trigger: str,
    strict: bool,
    metrics: Address | None,
    http: Address | None,
    log: str,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Run ingest and apply in one process, for a laptop or a small server. A failure ends both."""
    loaded = load_config(config)
    from pipeline.operate.run import run_both
    from pipeline.report.observers import Observers, WatchOptions
    from pipeline.verify.schedule import proving

    options = WatchOptions(trigger, metrics, log, json=as_json, http=http)
    with Observers(loaded, options, "run") as watch, proving(loaded, trigger, stop):
        summary = run_both(
            loaded,
            trigger=trigger,
            stop=stop,
            ingest_progress=watch.on_ingest,
            apply_progress=watch.on_apply,
        )
    return watch.end(finish(summary, as_json=as_json, strict=strict))
