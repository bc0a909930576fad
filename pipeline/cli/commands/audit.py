"""`pgdelta audit`: does bronze hold every commit between its first LSN and its last."""

import threading

from pipeline.cli.command import command, option
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import finish, load_config


@command(
    "audit",
    section="Verify",
    short_help="Verify that bronze is complete, commit by commit.",
    examples=[
        ("is bronze complete?", "pgdelta audit --config conf/pipeline.yaml"),
        ("the same as data, every link of the chain", "pgdelta audit --config conf/pipeline.yaml --json"),
    ],
    exit_codes={
        0: "bronze is complete",
        1: "the chain of commits is broken, or rows differ from what was recorded",
    },
)
@config_option
@option("--strict", group="Run", is_flag=True, help="Exit with 1 also if a gap was crossed by policy.")
@output_options
def audit(config: str, strict: bool, as_json: bool, debug: bool, stop: threading.Event) -> int:
    """Walk the commits of bronze and verify that each continues where the one before ended, and that bronze
    has as many rows as they recorded. Nothing is changed, and the source is not read.
    """
    loaded = load_config(config)
    from pipeline.verify.audit import run_audit

    return finish(run_audit(loaded), as_json=as_json, strict=strict)
