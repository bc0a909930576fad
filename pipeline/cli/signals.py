"""What stands between a command and the shell: signals in, sentences and exit codes out.

A guarded function gets a `stop` event, which SIGTERM or SIGINT sets; it finishes the commit under way and
returns its exit code. An exception becomes one sentence on stderr: a `PgdeltaError` says its own, any other
is reduced to its kind and place, because its text could hold a row's values. Stack traces are for `debug`
only, those of errors after which the run goes on too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from enum import Enum
from types import FrameType

from pipeline.delta.spark.launcher import end_with_launcher, forward_signals
from pipeline.errors import TRACES, PgdeltaError, one_line
from pipeline.errors import describe_error as describe_error

# a stop must have ended within 60 s; what is cut off then is a commit that did not happen, and the next run
# does it
_GRACE_SECONDS = 50.0
_READER_SECONDS = 1.0


class Kind(Enum):
    """What a stop does to a command: the next run repeats it, nobody does, it answers, it reads on and on."""

    JOB = "finishes the commit under way and ends with 0; a second one ends at once, with 130."
    ONCE = (
        "finishes the commit under way, and ends with 1 where something is left to do;\n"
        "a second one ends at once, with 130."
    )
    ANSWER = "ends at once with 1, for nothing was answered; a reader that closes the pipe ends it with 0."
    READER = "ends at once with 0, and so does a reader that closes the pipe."

    @property
    def is_waited_for(self) -> bool:
        """Say whether there may be a commit under way."""
        return self in (Kind.JOB, Kind.ONCE)


def main_guard(
    function: Callable[[threading.Event], int], *, debug: bool = False, kind: Kind = Kind.JOB
) -> int:
    """Run a function and return its exit code; every failure leaves one sentence on stderr.

    What only reads is not waited for: a stop ends it within a second, also where it is stuck in a write to a
    pipe that nobody empties.

    The function runs on a thread of its own: signals are then heard at once, whatever it waits for, and
    Spark, which takes over SIGINT where it is started on the main thread, leaves it to us.
    """
    stop = _Stop()
    if debug:
        os.environ.setdefault("PGDELTA_SPARK_LOG", "warn")
    else:
        # py4j tells of a JVM that is gone by the root logger, with a stack trace
        for name in ("py4j", "pyspark", None):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    traces = logging.StreamHandler() if debug else logging.NullHandler()
    TRACES.addHandler(traces)
    TRACES.setLevel(logging.DEBUG if debug else logging.CRITICAL + 1)
    outcome: list[int] = []

    def work() -> None:
        try:
            forward_signals(stop.ask)
            end_with_launcher()
            outcome.append(function(stop.event))
        except SystemExit as error:
            outcome.append(error.code if isinstance(error.code, int) else 1)
        except BaseException as error:
            if debug:
                traceback.print_exception(error)
            _say(describe_error(error))
            outcome.append(error.exit_code if isinstance(error, PgdeltaError) else 1)

    hook = threading.excepthook
    if not debug:
        threading.excepthook = _say_of_thread
    previous = {number: signal.signal(number, stop.hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker = threading.Thread(target=work, name="pgdelta", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
            if stop.is_overdue(_GRACE_SECONDS if kind.is_waited_for else _READER_SECONDS):
                if kind.is_waited_for:
                    again = "the next run repeats it" if kind is Kind.JOB else "run the same command again"
                    _say(f"stopped before the commit under way had ended; nothing is lost, {again}")
                    with contextlib.suppress(OSError, ValueError):
                        sys.stdout.flush()
                os._exit(int(kind in (Kind.ONCE, Kind.ANSWER)))
    finally:
        TRACES.removeHandler(traces)
        for number, handler in previous.items():
            signal.signal(number, handler)
        threading.excepthook = hook
    return outcome[0] if outcome else 1


def _say(sentence: str) -> None:
    # stderr may be a pipe that nobody reads any more
    with contextlib.suppress(OSError, ValueError):
        print(f"pgdelta: {one_line(sentence)}", file=sys.stderr, flush=True)


def _say_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        _say(describe_error(arguments.exc_value))


class _Stop:
    """Remember that and when somebody asked for the end."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._asked_at: float | None = None

    def ask(self) -> None:
        """Ask for the end; asking again more than a second later ends the process without waiting."""
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self.event.set()
        elif now - self._asked_at > 1.0:
            # one Ctrl-C can arrive twice, from the terminal and through Spark's JVM: hence the second between
            _say("stopped at once; nothing is lost, the next run goes on from the last commit")
            os._exit(130)

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Take one signal."""
        del number, frame
        self.ask()

    def is_overdue(self, seconds: float) -> bool:
        """Tell whether the time to end in good order, after somebody asked for the end, has run out.

        A function that sets the event itself, because a part of it failed, ends by itself and says so.
        """
        return self._asked_at is not None and time.monotonic() - self._asked_at > seconds
