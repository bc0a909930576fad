"""Processes that tests start: nothing of them is left, however a test ends.

A job has a JVM, and that has Python workers in process groups of their own, so what belongs to a process is
its session. A guard ends the session also if the tests are killed: a process that is stopped (SIGSTOP) does
not end by itself then. As a program this module is the guard of SESSION, until its stdin ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, AnyStr

from tests.support.paths import ROOT


def run_command(*command: str | Path, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; raise AssertionError with what it printed if it ends with another code."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@contextmanager
def ended(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Give a process that is killed, waited for and whose pipes are closed at the end of the block."""
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(process: subprocess.Popen[AnyStr]) -> Iterator[None]:
    """Terminate a server at the end of the block, and kill it if it does not end soon."""
    with ended(process):
        try:
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)


@contextmanager
def in_own_session(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose whole session is killed at the end of the block, or when the tests end."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    with ended(process):
        guard = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes", str(process.pid)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        with guard:
            try:
                yield process
            finally:
                kill_session(process.pid)


def members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state not in "XZ":
                found.append(int(folder.name))
    return found


def processes_with(argument: str) -> list[int]:
    """Return the running processes that have an argument."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_session(session: int) -> None:
    """Kill every process of a session, also one that is stopped, and wait for their end."""
    deadline = time.monotonic() + 120
    while running := members(session):
        assert time.monotonic() < deadline, f"processes {running} do not end"
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.stdin.read()
    kill_session(int(sys.argv[1]))
