"""Run a command's work under signals, and turn every failure into one sentence and an exit code.

The work gets a `stop` event, which SIGTERM or SIGINT sets; it finishes the commit in progress and returns its
exit code. An exception becomes one sentence on stderr: a `PgdeltaError` has its own, any other is reduced to
its kind and place, because its text could hold a row's values. Stack traces, also of errors that end no run,
are for `debug` only.
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
from pipeline.errors import NOTICES, STOPPING, TRACES, PgdeltaError, describe_error, one_line

# A stop must end within 60 s. A commit that is interrupted then has not happened.
_GRACE_SECONDS = 50.0
_READER_SECONDS = 1.0


class CommandKind(Enum):
    """What a signal does to a command, as described in its help.

    The next run repeats a JOB, nothing repeats ONCE, an ANSWER is printed completely or not at all, a READER
    continues until it is stopped.
    """

    JOB = (
        "Ctrl-C or SIGTERM finishes the commit in progress and exits with 0. A second one exits at once with "
        "130."
    )
    ONCE = (
        "Ctrl-C or SIGTERM finishes the commit in progress, and exits with 1 if work is left. A second one "
        "exits at once with 130."
    )
    ANSWER = "Ctrl-C or SIGTERM exits at once with 1."
    READER = "Ctrl-C or SIGTERM exits at once with 0, and so does a reader that closes the pipe."

    @property
    def commits(self) -> bool:
        """Whether a commit may be in progress."""
        return self in (CommandKind.JOB, CommandKind.ONCE)


def main_guard(
    function: Callable[[threading.Event], int], *, debug: bool = False, kind: CommandKind = CommandKind.JOB
) -> int:
    """Run a function and return its exit code; every failure leaves one sentence on stderr.

    A command that only reads ends within a second of a signal, even if it is blocked in a write to a pipe
    that has no reader.

    The function runs on its own thread: signals are then handled at once, whatever it waits for, and Spark
    does not replace the handler of SIGINT, as it does when it is started on the main thread.
    """
    stop = _Stop()
    if debug:
        os.environ.setdefault("PGDELTA_SPARK_LOG", "warn")
    else:
        # py4j reports a JVM that is gone through the root logger, with a stack trace; pyspark logs each query
        # that Spark refuses
        for name in ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger", None):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    traces = logging.StreamHandler() if debug else logging.NullHandler()
    TRACES.addHandler(traces)
    notices = _Notices()
    NOTICES.addHandler(notices)
    TRACES.setLevel(logging.DEBUG if debug else logging.CRITICAL + 1)
    exit_codes: list[int] = []

    def work() -> None:
        try:
            forward_signals(stop.request)
            end_with_launcher()
            exit_codes.append(function(stop.event))
        except SystemExit as error:
            exit_codes.append(error.code if isinstance(error.code, int) else 1)
        except BaseException as error:
            if debug:
                traceback.print_exception(error)
            print_error(describe_error(error))
            exit_codes.append(error.exit_code if isinstance(error, PgdeltaError) else 1)

    hook = threading.excepthook
    if not debug:
        threading.excepthook = _print_thread_error
    previous = {number: signal.signal(number, stop.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker = threading.Thread(target=work, name="pgdelta", daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(0.2)
            if stop.is_overdue(_GRACE_SECONDS if kind.commits else _READER_SECONDS):
                if kind.commits:
                    print_error(
                        "Stopped before the commit in progress had ended. Nothing is lost: "
                        + (
                            "the next run repeats it."
                            if kind is CommandKind.JOB
                            else "run the same command again."
                        )
                    )
                    with contextlib.suppress(OSError, ValueError):
                        sys.stdout.flush()
                os._exit(int(kind in (CommandKind.ONCE, CommandKind.ANSWER)))
    finally:
        TRACES.removeHandler(traces)
        TRACES.setLevel(logging.NOTSET)
        NOTICES.removeHandler(notices)
        STOPPING.clear()
        for number, handler in previous.items():
            signal.signal(number, handler)
        threading.excepthook = hook
    return exit_codes[0] if exit_codes else 1


def print_error(sentence: str) -> None:
    """Print a sentence on stderr, which may be a pipe without a reader; in a terminal, break it at words."""
    with contextlib.suppress(OSError, ValueError):
        line = f"pgdelta: {one_line(sentence)}"
        if not sys.stderr.isatty():
            print(line, file=sys.stderr, flush=True)
            return
        from pipeline.terminal import print_error_line  # needs rich, which a start does without

        print_error_line(line)


class _Notices(logging.Handler):
    """Prints sentences about what a run waits for."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        print_error(record.getMessage())


def _print_thread_error(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        print_error(describe_error(arguments.exc_value))


class _Stop:
    """Whether a stop was requested, and when."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._requested_at: float | None = None

    def request(self) -> None:
        """Request the end; a request more than a second after the first exits at once."""
        now = time.monotonic()
        if self._requested_at is None:
            self._requested_at = now
            STOPPING.set()
            self.event.set()
        elif now - self._requested_at > 1.0:
            # one Ctrl-C can arrive twice, from the terminal and through Spark's JVM: hence the second between
            print_error("Stopped at once. Nothing is lost: the next run continues from the last commit.")
            os._exit(130)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self.request()

    def is_overdue(self, seconds: float) -> bool:
        """Return whether a signal requested the end longer than `seconds` ago.

        A function that sets the event itself, because a part of it failed, ends by itself.
        """
        return self._requested_at is not None and time.monotonic() - self._requested_at > seconds
