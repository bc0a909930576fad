"""The tutorial does what it says: its commands run as they are, in order, against a server of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.servers import MakeServer

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.slow]

PAGE = ROOT / "docs" / "tutorial.md"
# set-up of the reader's machine, which the test has another way
OTHERWISE = re.compile(r"^(?:make|source|docker|export PGHOST)\b(?:.*\\\n)*.*$\n?", re.MULTILINE)


def steps() -> dict[str, str]:
    """Return the commands of each section, by its heading."""
    found = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        if commands := OTHERWISE.sub("", commands).strip():
            found[heading] = commands
    return found


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
    said = {}
    for heading, commands in steps().items():
        script = f"set -euo pipefail\n{commands}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{heading}\n{done.stdout}\n{done.stderr}"
        said[heading.partition(" ")[2]] = done.stdout
        print(f"## {heading}\n{done.stdout}")
    assert "wrote shop.yaml: 2 tables" in said["Write the configuration"]
    assert "Ada" not in said["Check"]
    assert said["Check"].splitlines()[-1].endswith("ready")
    assert "9.9" in said["Query"]
    assert "paid" in said["Change rows and columns"]
    assert "public.orders" in said["Release a held table"]
    assert said["Resync a table"].count("equal") >= 2
    assert said["Read several tables as of one commit"].count("VERSION AS OF") == 2
    assert not (tmp_path / "lake").exists()
