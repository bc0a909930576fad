"""The commands of the tutorial, and what it says of the path to the first table that equals its source."""

import re
from typing import NamedTuple

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
FIRST_PATH = ("Write the configuration", "Check", "Replicate")
"""The sections from `pgdelta init` to the first equal table."""

# set-up of the reader's machine, which the test has another way
_OTHERWISE = re.compile(r"^(?:make|source|docker|export PGHOST)\b(?:.*\\\n)*.*$\n?", re.MULTILINE)
_STATED = re.compile(r"(\d+) commands, (\d+) keystrokes and (\d+) minutes?")


class StatedPath(NamedTuple):
    """What the page says that the path takes."""

    commands: int
    keystrokes: int
    minutes: int


def steps() -> dict[str, str]:
    """Return the commands of each section, by its heading."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        if commands := _OTHERWISE.sub("", commands).strip():
            found[heading] = commands
    return found


def first_path() -> tuple[int, int]:
    """Return the commands and the keystrokes of the path, each with its Enter; `sed` is for a later step."""
    lines = [
        line
        for heading, commands in steps().items()
        if heading.partition(" ")[2] in FIRST_PATH
        for line in commands.splitlines()
        if line and not line.startswith("sed ")
    ]
    return len(lines), sum(len(line) + 1 for line in lines)


def stated_path() -> StatedPath:
    """Return what the page states."""
    [found] = _STATED.findall(PAGE.read_text(encoding="utf-8"))
    return StatedPath(*map(int, found))
