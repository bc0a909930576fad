"""The wheel alone, in an empty environment: every step from `init` to `reconcile`, from another folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.delta.spark.dist import build_wheel
from tests.support.processes import run_command
from tests.support.servers import Database

pytestmark = pytest.mark.slow


def test_a_wheel_in_an_empty_environment_replicates_and_proves_it(tmp_path: Path, database: Database) -> None:
    dist, venv, folder = tmp_path / "dist", tmp_path / "venv", tmp_path / "work"
    for each in (dist, folder):
        each.mkdir()
    wheel = build_wheel(dist)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    subprocess.run(pip, check=True, cwd=folder)
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("SPARK", "PYSPARK", "PYTHON"))
    }
    environ = kept | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str, code: int = 0) -> str:
        done = run_command(*command, code=code, cwd=folder, env=environ, timeout=600)
        print(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    where = run("python", "-c", "import pipeline; print(pipeline.__file__)")
    assert where.startswith(str(venv))
    assert "pgdelta 0." in run("pgdelta", "--version")
    found = "import importlib.util as u, pgdelta as p; print(p.as_of, p.live, u.find_spec('pgdelta.airflow'))"
    assert f"{venv}/lib" in run("python", "-c", found)
    with database.connect() as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
        source.execute("INSERT INTO t SELECT g, 'name ' || g FROM generate_series(1, 1000) g")
    run("pgdelta", "init", "--yes", "--conninfo", database.conninfo, "--output", "shop.yaml")
    environ["PGDELTA_CONFIG"] = "shop.yaml"
    jars = next(venv.glob("lib/python3*/site-packages/pyspark")) / "jars"
    assert not list(jars.glob("delta-spark*"))

    run("pgdelta", "ingest")
    text = (folder / "shop.yaml").read_text()
    assert "\nsilver:\n" in text
    (folder / "shop.yaml").write_text(text.replace("\nsilver:\n", "\nsilver:\n  writer: spark\n"))
    said = run("pgdelta", "apply")
    assert "Fetching Delta's JARs into this environment, once." in said
    assert list(jars.glob("delta-spark*"))
    assert list(jars.glob("pgdelta-log-store.jar"))
    assert "Spark's classes archived" in run("pgdelta", "setup")
    assert "everything is in place" in run("pgdelta", "setup")

    with database.connect() as source:
        source.execute("UPDATE t SET name = 'changed' WHERE id % 3 = 0")
        source.execute("DELETE FROM t WHERE id % 7 = 0")
    (folder / "shop.yaml").write_text(text)
    run("python", "-m", "pipeline.cli", "run")
    assert "compared with the source: 1 equal" in run("pgdelta", "reconcile", "--run")
    assert "858" in run("pgdelta", "query", "SELECT count(*) FROM t")
    assert "current" in run("pgdelta", "status")
    assert '"alerts"' in run("pgdelta", "schema")
    # spark-submit of this environment finds Delta without options
    job = folder / "job.py"
    job.write_text("import sys\nfrom pipeline.cli.start import main\nsys.exit(main(['apply']))\n")
    run("spark-submit", "job.py")
