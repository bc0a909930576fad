"""What a terminal of 80 and of 160 columns shows, held against stored pages.

After a change that is meant, `python -m tests.support.pages` writes the pages again; read them before they
are committed.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.cells import cell_len

from tests.support.pages import PAGES, PLAN, STORED, WIDTHS, render
from tests.support.paths import ROOT
from tests.support.processes import ended


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_stored(name: str, width: int) -> None:
    stored = STORED / f"{name}-{width}.txt"
    assert render(PAGES[name], width) == stored.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [*WIDTHS, 100, 200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_has_no_control_characters(name: str, width: int) -> None:
    for line in render(PAGES[name], width).splitlines():
        # a query and a script with its comments are never broken, so that they can be copied
        assert cell_len(line) <= width or line.lstrip().startswith(("SELECT ", "MERGE ", "-- "))
        assert line.isprintable()
        assert line == line.rstrip()


def test_every_stored_page_is_of_an_existing_page_and_width() -> None:
    assert {file.name for file in STORED.iterdir()} == {f"{name}-{w}.txt" for name in PAGES for w in WIDTHS}


@pytest.mark.costly
def test_a_page_in_a_pipe_has_every_line_whole() -> None:
    lines = run_in("pipe", {}).splitlines()
    sentence = next(table.steps[0].sentence for table in PLAN.tables if table.attention == 1)
    assert any(line.endswith(sentence.removeprefix("Table public.orders is ")) for line in lines)
    assert max(map(len, lines)) > 200


@pytest.mark.costly
def test_columns_of_the_environment_narrow_a_pipe() -> None:
    assert max(map(len, run_in("pipe", {"COLUMNS": "72"}).splitlines())) <= 72


@pytest.mark.costly
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_page_is_as_wide_as_its_terminal(columns: int) -> None:
    text = run_in("terminal", {"TERM": "xterm"}, columns)
    assert "\x1b[31mfails: \x1b[0m" in text, "in red"
    assert re.sub(r"\x1b\[[0-9;]*m|\r", "", text) == render(PLAN.print, columns)


def run_in(place: str, environ: dict[str, str], columns: int = 80) -> str:
    """Return what a process prints that shows the plan into a pipe, or into a terminal of so many columns."""
    code = (
        "from tests.support.pages import PLAN; from pipeline.cli.output import show;show(PLAN, as_json=False)"
    )
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environ = {**known, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-c", code]
    if place == "pipe":
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(command, env=environ, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    with ended(process):
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(master)
        assert process.wait(60) == 0, shown
    return shown.decode()
