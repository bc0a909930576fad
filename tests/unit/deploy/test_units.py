"""The units of systemd: systemd's own check finds no mistake, and they are of one piece."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.cli.main import cli
from tests.support.systemd_units import INSTALLED, UNITS, command, values

NAMES = sorted(path.name for path in UNITS.iterdir())
SERVICES = [name for name in NAMES if name.endswith(".service")]
JOB_SECONDS = 60  # a job ends within them after a signal
ANALYZE = shutil.which("systemd-analyze")


def found_mistakes(folder: Path) -> str:
    """Return what systemd-analyze says of units, with a program that exists on every machine."""
    for path in UNITS.iterdir():
        text = path.read_text(encoding="utf-8").replace(f"{INSTALLED}/.venv/bin/pgdelta", "/bin/true")
        target = folder / path.name
        if not target.exists():
            target.write_text(text)
    assert ANALYZE is not None
    paths = [str(folder / name) for name in NAMES]
    return subprocess.run(
        [ANALYZE, "verify", "--man=no", *paths], capture_output=True, text=True, check=False
    ).stderr


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_finds_no_mistake(tmp_path: Path) -> None:
    assert found_mistakes(tmp_path) == ""


@pytest.mark.skipif(ANALYZE is None, reason="this machine has no systemd-analyze")
def test_systemd_would_find_one(tmp_path: Path) -> None:
    text = (UNITS / "pgdelta-apply.service").read_text(encoding="utf-8")
    (tmp_path / "pgdelta-apply.service").write_text(text.replace("KillMode=mixed", "KillMode=mixd"))
    assert "KillMode" in found_mistakes(tmp_path) or "kill mode" in found_mistakes(tmp_path)


@pytest.mark.parametrize("unit", SERVICES)
def test_commands_of_services_exist(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, name, *arguments = command(unit)
    assert program == f"{INSTALLED}/.venv/bin/pgdelta"
    for pair in values(unit, "Environment"):
        monkeypatch.setenv(*pair.split("=", 1))
    assert cli.commands[name].make_context(name, arguments).params["config"] == "/etc/pgdelta/pipeline.yaml"


@pytest.mark.parametrize("unit", SERVICES)
def test_services_give_a_job_time_to_end(unit: str) -> None:
    assert int(values(unit, "TimeoutStopSec")[0]) > JOB_SECONDS
    assert values(unit, "KillMode") == ["mixed"]


def test_the_timer_starts_apply() -> None:
    """A timer starts the service of its name; after its end, so that two never run at once."""
    assert "pgdelta-apply.timer" in NAMES
    assert values("pgdelta-apply.service", "Type") == ["oneshot"]
    assert values("pgdelta-apply.timer", "OnUnitInactiveSec")
    assert not values("pgdelta-apply.service", "WantedBy")
