"""Prove tables beside a continuous job, when `verify.every` says that they are due."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config.config import Config
from pipeline.errors import NOTICES, report_error
from pipeline.metadata.reconciliations import EQUAL

_CHECK_SECONDS = 60.0


@contextmanager
def proving(config: Config, trigger: str, stop: threading.Event) -> Iterator[None]:
    """Prove tables in a thread while a block runs a job, if it is a continuous one."""
    if trigger != "continuous" or config.verify.every is None:
        yield
        return
    ending = threading.Event()
    thread = threading.Thread(target=_follow, args=(config, stop, ending), name="proofs")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _follow(config: Config, stop: threading.Event, ending: threading.Event) -> None:
    """Look for tables that are due once a minute; a failure ends no job, and the next look tries again."""
    from pipeline.verify.prove import run_prove  # takes long, and only such a job needs it
    from pipeline.verify.reconcile import WAIT_SECONDS
    from pipeline.verify.reconcile_report import what_differs

    pause = min(_CHECK_SECONDS, float(config.verify.every or 0))
    while not ending.wait(pause) and not stop.is_set():
        try:
            found = run_prove(config, due=True, wait=WAIT_SECONDS, stop=ending)
        except Exception as error:
            NOTICES.warning("A proof failed: %s", report_error(error))
            continue
        for each in found.verdicts:
            if each.verdict != EQUAL and not ending.is_set():
                NOTICES.warning("Table %s is %s: %s", each.name, each.verdict, what_differs(each))
