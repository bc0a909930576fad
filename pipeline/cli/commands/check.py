"""`pgdelta check`: is everything ready for a start, and what to do if it is not."""

from pipeline.cli.command import command, flag
from pipeline.cli.options import config_option, output_options
from pipeline.cli.output import finish, load_config
from pipeline.errors import ConfigError


@command(
    "check",
    section="Set up",
    short_help="Check machine, server, publication and slot.",
    examples=[
        (
            "before the first run, and after a change of settings",
            "pgdelta check --config conf/pipeline.yaml",
        ),
        (
            "does the receiver of alerts get them?",
            "pgdelta check --config conf/pipeline.yaml --alert-test",
        ),
    ],
    exit_codes={0: "every check passed", 1: "a check failed, or could not be made"},
)
@config_option
@flag(
    "--alert-test",
    group="Run",
    help="Send a test message to `alerts.webhook` too.",
)
@output_options
def check(config: str, alert_test: bool, as_json: bool) -> int:
    """Run every check that a start would meet, on this machine and at the source, and print what to do about
    those that fail. Nothing is changed.
    """
    loaded = load_config(config)
    if alert_test and loaded.alerts.webhook is None:
        raise ConfigError("alerts.webhook is missing, so there is no receiver to test. Set it.")
    from pipeline.operate.machine_checks import CheckReport, run_all_checks

    checks = run_all_checks(loaded)
    if alert_test:
        from pipeline.report.webhook import check_webhook

        checks = (*checks, check_webhook(loaded))
    return finish(CheckReport(loaded.pipeline, str(loaded.path), checks), as_json=as_json)
