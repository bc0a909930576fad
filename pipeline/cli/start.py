"""The entry point of `pgdelta` and of the jobs."""

import signal
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Until the command handles signals, Ctrl-C ends the process as SIGTERM does: nothing has begun, and Python
    would print where its imports were.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pipeline.cli.main import main as run

    return run(arguments)
