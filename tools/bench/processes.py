"""Processes that a benchmark starts: how long they run, what memory they use, and that none is left."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import IO, Any

PATIENCE = 1200.0  # seconds
STOP_SECONDS = 60.0
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Run:
    """A command that ended well: seconds, peak memory in MiB, and what it wrote to stdout."""

    seconds: float
    peak_mib: float
    output: str = ""


@dataclass
class Job:
    """A running command; stdout and stderr go to files. `peak_mib` adds the peaks of all its processes."""

    name: str
    process: subprocess.Popen[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    peak_mib: float = 0.0
    _end: threading.Event = field(default_factory=threading.Event)

    @property
    def output(self) -> str:
        """What it wrote to stdout so far."""
        return Path(self.stdout.name).read_text(encoding="utf-8", errors="replace")

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return Path(self.stderr.name).read_text(encoding="utf-8", errors="replace")

    def check(self) -> None:
        """Raise RuntimeError if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended, {self.process.returncode}: {_last_line(self.errors)}")

    def batches(self) -> list[dict[str, Any]]:
        """Return the batches of an apply that was started with `--log json`, oldest first."""
        return batches_of(self.errors)

    def stop(self) -> None:
        """End it by SIGTERM; raise RuntimeError if it ends otherwise than with 0."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        if code:
            raise RuntimeError(f"{self.name} failed, {code}: {_last_line(self.errors)}")

    def end(self) -> str:
        """Wait until it ends by itself, well; return what it wrote to stdout."""
        code = self.process.wait(PATIENCE)
        if code:
            raise RuntimeError(f"{self.name} failed, {code}: {_last_line(self.errors)}")
        return self.output

    def processor_seconds(self) -> float:
        """Return the processor time that the process and what it started took so far."""
        return sum(map(_processor_seconds, family_of(self.process.pid)))

    def watch(self) -> None:
        """Sample the memory of the process and of what it started until `close`."""
        while not self._end.wait(_SAMPLE_SECONDS):
            pids = family_of(self.process.pid)
            self.peak_mib = max(self.peak_mib, sum(map(_peak_mib, pids)))

    def close(self) -> None:
        """Kill what is left of it."""
        self._end.set()
        if self.process.poll() is None:
            for pid in family_of(self.process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(STOP_SECONDS)
        self.stdout.close()
        self.stderr.close()


@contextmanager
def started(name: str, command: Sequence[str]) -> Iterator[Job]:
    """Give a running command; it is killed at the end of the block if it has not ended."""
    with tempfile.TemporaryDirectory(prefix="pgdelta-bench-job-") as folder:
        stdout = Path(folder, "stdout").open("wb")  # noqa: SIM115 (`Job.close` closes both)
        stderr = Path(folder, "stderr").open("wb")  # noqa: SIM115
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        job = Job(name, process, stdout, stderr)
        watch = threading.Thread(target=job.watch, daemon=True)
        watch.start()
        try:
            yield job
        finally:
            job.close()
            watch.join()


def run(name: str, command: Sequence[str], *, patience: float = PATIENCE) -> Run:
    """Run a command to its end; raise RuntimeError if it fails or takes too long."""
    began = time.monotonic()
    with started(name, command) as job:
        try:
            code = job.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} did not end within {patience:.0f} s") from None
        seconds = time.monotonic() - began
        if code:
            raise RuntimeError(f"{name} failed, {code}: {_last_line(job.errors)}")
        return Run(seconds, job.peak_mib, job.output)


def run_in_terminal(name: str, command: Sequence[str], *, patience: float = PATIENCE) -> Run:
    """Run a command that believes to write to a terminal of 120 columns; its frames are the output."""
    began = time.monotonic()
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(
        list(command), stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
    )
    os.close(theirs)
    chunks: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the last process that had the terminal has ended
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        code = process.wait(patience)
        seconds = time.monotonic() - began
        reader.join(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} did not end within {patience:.0f} s") from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        if process.poll() is None:
            for pid in family_of(process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)
        reader.join(1)
        os.close(ours)
    output = b"".join(chunks).decode(errors="replace")
    if code:
        raise RuntimeError(f"{name} failed, {code}: {_last_line(output)}")
    return Run(seconds, 0.0, output)


def batches_of(text: str) -> list[dict[str, Any]]:
    """Return the batches in the JSON log of an apply: objects with `position`, `tables` and `seconds`."""
    found = []
    for line in text.splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and {"position", "tables", "seconds"} <= entry.keys():
                found.append(entry)
    return found


def family_of(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [pid]
    for parent in found:
        # each thread has children of its own
        with suppress(OSError):  # it may have ended
            for children in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, children.read_text().split())
    return found


def _peak_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


def _processor_seconds(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2][:300]
