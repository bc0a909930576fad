"""Print the result of a command, for people or as JSON, and return its exit code."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.cli.arrow import use_lean_arrow
from pipeline.cli.signals import print_error
from pipeline.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.config.config import Config


class Page(Protocol):
    """A result that prints itself."""

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""

    def print(self, console: Console) -> None:
        """Print it for people."""


class Summary(Protocol):
    """A result of some closing lines."""

    def as_json(self) -> dict[str, Any]:
        """Return it as data."""

    def lines(self) -> list[str]:
        """Return the lines for people."""


class HasExitCode(Protocol):
    """A result that decides the exit code."""

    def exit_code(self, strict: bool) -> int:
        """Return 0 or 1; `strict` counts what a recorded policy held or refused as a failure."""


class PageWithExitCode(Page, HasExitCode, Protocol):
    """A result that prints itself and decides the exit code."""


class SummaryWithExitCode(Summary, HasExitCode, Protocol):
    """Closing lines that decide the exit code."""


def load_config(path: str, *, reuses_blocks: bool = False) -> Config:
    """Read the configuration and start Arrow, for a command that reads or writes the lake.

    What that needs is imported only now. `reuses_blocks` is for `use_lean_arrow`.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for some in every package
    from pipeline.config.load import load_config

    loaded = load_config(path)
    use_lean_arrow(reuses_blocks=reuses_blocks)
    return loaded


def finish(result: PageWithExitCode | SummaryWithExitCode, *, as_json: bool, strict: bool = False) -> int:
    """Show a result and return its exit code."""
    show(result, as_json=as_json)
    return result.exit_code(strict)


def show(result: Page | Summary, *, as_json: bool) -> None:
    """Print a result for people, or as one line of JSON; a closed pipe is no failure."""
    with printing():
        if as_json:
            print(json.dumps(result.as_json()))
        else:
            _print(result)


@contextmanager
def printing() -> Iterator[None]:
    """Write to stdout in a block; a closed pipe ends it and is no failure."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered goes nowhere, so that the end of the process does not fail on it.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def table_progress(verb: str, *, is_quiet: bool) -> Iterator[Callable[[Any], None] | None]:
    """Show in a terminal which table is done, given the stem of a verb; give what is called with its result.

    Elsewhere give None.
    """
    if is_quiet or not sys.stderr.isatty():
        yield None
        return
    from pipeline.terminal import make_console, plain

    with make_console(stderr=True).status(f"{verb}ing") as status:
        yield lambda result: status.update(plain(f"{verb}ed {result.table}"))


def _print(result: Page | Summary) -> None:
    if not hasattr(result, "print") and not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        for line in result.lines():
            text = one_line(line.strip(" "))
            print(" " * (len(line) - len(line.lstrip(" "))) + text)
        return
    from pipeline.terminal import make_console, print_lines  # need rich, which takes long to import

    console = make_console()
    if hasattr(result, "print"):
        result.print(console)
    else:
        print_lines(console, result.lines())


def unless_stopped(exit_code: int, stop: threading.Event) -> int:
    """Return the exit code of a command that no later run completes: 1 if it was stopped before its end."""
    if stop.is_set() and exit_code == 0:
        print_error("Stopped before all was done. Run the same command again.")
        return 1
    return exit_code
