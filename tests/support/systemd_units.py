"""The units of `deploy/systemd`, read as systemd reads them."""

import re
import shlex
from pathlib import Path

from tests.support.paths import ROOT

UNITS = ROOT / "deploy" / "systemd"
INSTALLED = Path("/opt/pgdelta")
"""Where the units expect the checkout."""


def values(unit: str, key: str) -> list[str]:
    """Return the values of a key of a unit, in order."""
    text = (UNITS / unit).read_text(encoding="utf-8")
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def command(unit: str) -> list[str]:
    """Return the command that a service starts."""
    [line] = values(unit, "ExecStart")
    return shlex.split(line)
