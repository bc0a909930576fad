"""`pgdelta audit`: does bronze hold every commit, and do silver's files have the rows that they had."""

import threading

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options, tables_option
from pipeline.cli.output import finish, load_config
from pipeline.errors import ConfigError


@command(
    "audit",
    section="Verify",
    short_help="Verify that bronze is complete, and silver's files unchanged.",
    examples=[
        ("is bronze complete?", "pgdelta audit --config conf/pipeline.yaml"),
        ("the same as data, every link of the chain", "pgdelta audit --config conf/pipeline.yaml --json"),
        ("has a file of silver changed since?", "pgdelta audit --config conf/pipeline.yaml --silver"),
    ],
    exit_codes={
        0: "bronze is complete; with --silver, no file is damaged",
        1: "the chain of commits is broken, or rows differ from what was recorded",
    },
)
@config_option
@flag(
    "--silver",
    group="Run",
    help="Read silver's files again instead, and compare each with its recorded fingerprint.",
)
@tables_option("With --silver, audit these tables only (default: all).")
@flag(
    "--strict",
    group="Run",
    help="Exit with 1 also if a gap was crossed by policy; with --silver, if a file has no fingerprint.",
)
@output_options
def audit(
    config: str,
    silver: bool,
    tables: tuple[str, ...],
    strict: bool,
    as_json: bool,
    stop: threading.Event,
) -> int:
    """Walk the commits of bronze and verify that each continues where the one before ended, and that bronze
    has as many rows as they recorded. With --silver, name every file of silver that lacks a row or has
    another value than when pgdelta prove or pgdelta fingerprint read it. Nothing is changed, and the source
    is not read.
    """
    if tables and not silver:
        raise ConfigError("--table needs --silver: bronze is audited whole.")
    loaded = load_config(config)
    if silver:
        from pipeline.verify.audit_silver import run_silver_audit

        found = run_silver_audit(loaded, tables, stop=stop)
        return finish(found, as_json=as_json, strict=strict)
    from pipeline.verify.audit import run_audit

    return finish(run_audit(loaded), as_json=as_json, strict=strict)
