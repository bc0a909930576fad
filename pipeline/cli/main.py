"""The command line: `pgdelta`, `python -m pipeline.cli` and the jobs share one group of commands.

Exit codes: 0 done, 1 failed, 2 a mistake in the command line or the configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError

from pipeline import __version__
from pipeline.cli.command import COMPLETE_VARIABLE, HELP, PROGRAM, WHOLE_PROCESS, PipelineGroup
from pipeline.cli.commands.adopt import adopt
from pipeline.cli.commands.apply import apply
from pipeline.cli.commands.as_of import as_of
from pipeline.cli.commands.audit import audit
from pipeline.cli.commands.capsule import capsule
from pipeline.cli.commands.check import check
from pipeline.cli.commands.completion import completion
from pipeline.cli.commands.dbt_sources import dbt_sources
from pipeline.cli.commands.demo import demo
from pipeline.cli.commands.fidelity import fidelity
from pipeline.cli.commands.fingerprint import fingerprint
from pipeline.cli.commands.forget import forget
from pipeline.cli.commands.history import history
from pipeline.cli.commands.ingest import ingest
from pipeline.cli.commands.init import init
from pipeline.cli.commands.maintain import maintain
from pipeline.cli.commands.move_source import move_source
from pipeline.cli.commands.optimize import optimize
from pipeline.cli.commands.pause import pause, resume
from pipeline.cli.commands.plan import plan
from pipeline.cli.commands.prove import prove
from pipeline.cli.commands.query import query
from pipeline.cli.commands.rebuild import rebuild
from pipeline.cli.commands.reconcile import reconcile
from pipeline.cli.commands.resync import resync
from pipeline.cli.commands.run import run
from pipeline.cli.commands.schema import schema
from pipeline.cli.commands.setup import setup
from pipeline.cli.commands.status import status
from pipeline.cli.commands.tail import tail
from pipeline.cli.signals import print_error


@click.group(
    cls=PipelineGroup,
    context_settings=HELP,
    subcommand_metavar="COMMAND ...",
    options_metavar="",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Replicate PostgreSQL into Delta Lake: every change to bronze, tables equal to the source in silver.

    Start with init and check, then ingest and apply, or run for both. COMMAND --help has examples. The
    default of --config is PGDELTA_CONFIG in the environment.
    """


for _command in (
    setup,
    init,
    check,
    schema,
    completion,
    demo,
    ingest,
    apply,
    run,
    pause,
    resume,
    status,
    plan,
    as_of,
    query,
    dbt_sources,
    tail,
    capsule,
    history,
    reconcile,
    prove,
    fidelity,
    audit,
    fingerprint,
    resync,
    rebuild,
    move_source,
    adopt,
    maintain,
    optimize,
    forget,
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        exit_code: int = cli.main(
            None if arguments is None else list(arguments),
            prog_name=PROGRAM,
            complete_var=COMPLETE_VARIABLE,
            obj=WHOLE_PROCESS if arguments is None else None,
            standalone_mode=False,
        )
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else PROGRAM
        message = " ".join(error.format_message().split())
        print_error(f"{message} See {where} --help.")
        return error.exit_code
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
