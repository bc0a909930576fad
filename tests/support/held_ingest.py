"""An ingest that holds itself up: `python -m tests.support.held_ingest FILE MOMENT`.

It runs continuously and lands several times a second. At its third bronze commit with changes it stops its
process group, as SIGSTOP does: before the commit, during it (the transaction has begun, the
log entry is not written), or after it, before the acknowledgement. `any` leaves the moment to its parent.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pipeline import crash_steps
from pipeline.crash_steps import CrashStep, NamedStep
from pipeline.delta import native_commit

MOMENTS = ("before", "amid", "after")


def hold_up(moment: str) -> None:
    """Have the process stop itself at a moment."""
    seen = 0
    has_changes = False

    def stop_once() -> None:
        nonlocal seen
        if seen == 3:
            seen += 1
            os.killpg(0, signal.SIGSTOP)
            time.sleep(0.5)  # this thread may be stopped a moment after the others

    def observe(step: NamedStep, when: str) -> None:
        nonlocal seen, has_changes
        if step is CrashStep.MOVE_FILE:
            has_changes = True
        elif (step, when) == (CrashStep.COMMIT_BRONZE, "before"):
            if has_changes and seen < 3:
                seen += 1
                if moment == "before":
                    stop_once()
            has_changes = False
        elif (step, when) == (CrashStep.COMMIT_BRONZE, "after") and moment == "after":
            stop_once()

    create = native_commit.create_version

    def create_after_stop(log: Path, version: int, text: str) -> bool:
        if moment == "amid":
            stop_once()
        return create(log, version, text)

    crash_steps.observer = observe
    # amid the step: the last thing before the log entry is written
    native_commit.create_version = create_after_stop


if __name__ == "__main__":
    from pipeline.cli.main import main

    hold_up(sys.argv[2])
    sys.exit(main(["ingest", "--config", sys.argv[1], "--trigger", "continuous"]))
