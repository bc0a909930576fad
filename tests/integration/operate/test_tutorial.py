"""The tutorial does what it says: its commands run as they are, in order, against a server of the tests."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import run_command
from tests.support.servers import MakeServer
from tests.support.tutorial import FIRST_PATH, first_path, stated_path, steps

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def cpu_of_children() -> float:
    """Return the seconds of CPU that ended programs of this process used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_its_commands_work(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    # psql is that of the server
    tools = (str(Path(sys.executable).parent), str(server.binaries), os.environ["PATH"])
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
        "PATH": os.pathsep.join(tools),
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGUSER": "postgres",
        "PGDATABASE": "shop",
        "PGDELTA_CONFIG": "shop.yaml",
    }
    subprocess.run(["createdb", "shop"], env=environ, check=True, timeout=60)
    said, seconds, cpu_seconds = dict[str, str](), dict[str, float](), dict[str, float]()
    for heading, commands in steps().items():
        script = f"set -euo pipefail\n{commands}"
        begun, used = time.monotonic(), cpu_of_children()
        done = run_command("bash", "-c", script, cwd=tmp_path, env=environ, timeout=600)
        title = heading.partition(" ")[2]
        said[title] = done.stdout
        seconds[title], cpu_seconds[title] = time.monotonic() - begun, cpu_of_children() - used
        print(f"## {heading}\n{done.stdout}")
    assert "wrote shop.yaml: 2 tables" in said["Write the configuration"]
    assert "Ada" not in said["Check"]
    assert said["Replicate"].count("equal") >= 3
    count, keystrokes = first_path()
    wall, cpu = (sum(each[heading] for heading in FIRST_PATH) for each in (seconds, cpu_seconds))
    print(f"first equal table: {count} commands, {keystrokes} keystrokes, {wall:.0f} s, {cpu:.0f} s of CPU")
    # of both cores together: other programs of the machine do not count
    assert cpu < 60 * stated_path().minutes
    assert said["Check"].splitlines()[-1].endswith("ready")
    assert "9.9" in said["Query"]
    assert "paid" in said["Change rows and columns"]
    assert "public.orders" in said["Release a held table"]
    assert said["Resync a table"].count("equal") >= 2
    assert said["Read several tables as of one commit"].count("VERSION AS OF") == 2
    assert not (tmp_path / "lake").exists()
