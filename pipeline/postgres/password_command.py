"""Run the program that prints the password of a connection.

The program gets no terminal and no shell, and runs in a process group of its own, which ends with it or after
the time limit. What it prints is returned and kept nowhere. What it writes to stderr is discarded, because it
may contain secrets; an error names the program and its exit code only.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from pipeline.errors import SourceError

TIME_LIMIT = 30.0  # seconds
_MAX_BYTES = 65_536  # a token of Azure has some 2,000


def read_password(command: Sequence[str], *, key: str, limit: float = TIME_LIMIT) -> str:
    """Return the line that the program prints, without its end; raise SourceError if there is none.

    `key` is the configuration's key of the program, for errors.
    """
    program = command[0]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SourceError(
            f"The program {program} of {key}, or the interpreter that it names, does not exist. Install it,"
            " or correct its path."
        ) from None
    except OSError as error:
        raise SourceError(
            f"The program {program} of {key} cannot be started ({error.strerror}). Check its path and its"
            " permissions."
        ) from None
    with process:
        try:
            output = _read_output(process, time.monotonic() + limit)
        except subprocess.TimeoutExpired:
            raise SourceError(
                f"The program {program} of {key} has not ended after {limit:g} s. Run it by itself to find"
                " out why."
            ) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
    return _password(output, process.returncode, program, key)


def _read_output(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return what the program prints until its end, or until it is too much; raise TimeoutExpired."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(output) <= _MAX_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise subprocess.TimeoutExpired(process.args, 0)
            read = os.read(pipe, _MAX_BYTES)
            if not read:
                process.wait(max(0.0, deadline - time.monotonic()))
                break
            output += read
    return output


def _password(output: bytes, exit_code: int | None, program: str, key: str) -> str:
    """Return what was printed; raise SourceError unless it is the password of a program that succeeded."""
    fault = None
    line = output.removesuffix(b"\n").removesuffix(b"\r")
    if len(output) > _MAX_BYTES or (not exit_code and (b"\n" in line or b"\0" in line)):
        fault = "printed more than one line of text"
    elif exit_code is not None and exit_code < 0:
        fault = f"was ended by signal {-exit_code}"
    elif exit_code:
        fault = f"failed with exit code {exit_code}"
    elif not line:
        fault = "printed nothing"
    if fault is None:
        with suppress(UnicodeDecodeError):
            return line.decode()
        fault = "printed a text that is not UTF-8"
    raise SourceError(f"The program {program} of {key} {fault}. Run it by itself to find out why.")
