"""Run pipelines in a real Airflow: `python -m tools.airflow_run AIRFLOW`, called by `make airflow`.

AIRFLOW is the command of an environment of its own, which gets the wheel of this checkout. Scheduler, DAG
processor, triggerer and API server run against an embedded server and a lake in a temporary folder, with the
DAG of a pipeline of 20 tables and one DAG for each table that runs when its asset has an event. What must
hold is in `Scenario`. With `--keep` Airflow runs on until Enter, to be looked at in a browser.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg

from pipeline.config.load import load_config
from pipeline.delta.spark.dist import build_wheel
from pipeline.delta.spark.session import start_session
from pipeline.postgres.embedded import EmbeddedServer, find_free_port, start_server
from pipeline.reading.as_of import read_silver
from pipeline.table_name import TableName
from tests.support import oracle

PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
WHOLE = "pgdelta://shop"
TABLES = [f"t{number:02}" for number in range(20)]
STEPS = ("first_run", "three_tables", "no_table", "killed", "outside", "mistake", "sensor")
PASSWORD = "Not-To-Be-Seen-17"
HASH_KEY = "Nor-This-One-2345"
CONFIG = """\
pipeline: shop
source: {{hash_key: "${{HASH_KEY}}"}}
storage: {{root: "{folder}/lake"}}
"""
DAGS = """\
from datetime import datetime, timedelta
from airflow.sdk import DAG, Param, task
from pgdelta.airflow import LsnSensor, pgdelta_dag, silver_asset

config = "{folder}/shop.yaml"
secrets = {{"HASH_KEY": "hash_key"}}
quick = {{"retry_delay": timedelta(seconds=3), "retry_exponential_backoff": False}}
shop = pgdelta_dag(config, schedule=None, connection="shop_db", secrets=secrets, default_args=quick)

@task
def read(table, triggering_asset_events=None):
    return [event.extra for event in triggering_asset_events[silver_asset("shop", "public", table)]]

for number in range({count}):
    table = f"t{{number:02}}"
    with DAG(f"report_{{table}}", schedule=[silver_asset("shop", "public", table)]) as dag:
        read(table)
    globals()[dag.dag_id] = dag

with DAG("must_see", schedule=None, params={{"lsn": Param("", type="string")}}) as must_see:
    LsnSensor(
        task_id="wait", lsn="{{{{ params.lsn }}}}", tables=["public.t0*"], config=config, secrets=secrets,
        poke_interval=2, timeout=300,
    )
"""


class Failure(Exception):
    """What did not hold."""


class RunningAirflow:
    """An Airflow with a database file and the local executor, spoken to by its public API."""

    def __init__(self, command: str, home: Path, dags: Path) -> None:
        self.command = command
        self.home = home
        self.port = find_free_port()
        url = f"http://localhost:{self.port}"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API_AUTH__JWT_SECRET": "of this run alone, and long enough",
            "AIRFLOW__API__SECRET_KEY": "of this run alone",
            "AIRFLOW__CORE__FERNET_KEY": "b" * 43 + "=",
        }
        self.url = url
        self._token = ""
        self._parts: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str) -> str:
        """Run a command of Airflow, and return what it prints."""
        command = [self.command, *arguments]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"airflow {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Run its parts during a block."""
        try:
            for part in PARTS:
                with open(self.home / f"{part}.out", "wb") as output:
                    command = [self.command, part]
                    found = subprocess.Popen(
                        command, env=self.environ, start_new_session=True, stdout=output, stderr=output
                    )
                self._parts.append(found)
            self.wait(300, "API server", self._log_in)
            yield
        finally:
            for found in self._parts:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(found.pid, signal.SIGTERM)
            for found in self._parts:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    found.wait(30)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(found.pid, signal.SIGKILL)

    def _log_in(self) -> bool:
        with contextlib.suppress(OSError):
            self._token = self._request("/auth/token")["access_token"]
        return bool(self._token)

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers)) as answer:
            return json.load(answer)

    def api(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the public API; again if the file of its database was locked."""
        for _ in range(10 if body is None else 0):
            with contextlib.suppress(urllib.error.HTTPError):
                return self._request(f"/api/v2/{path}")
            time.sleep(1)
        return self._request(f"/api/v2/{path}", body)

    def wait(self, seconds: float, what: str, is_done: Any) -> Any:
        """Return what a function returns once that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := is_done():
                return found
            time.sleep(1)
        raise Failure(f"waited {seconds:.0f} s for {what}")

    def trigger(self, dag_id: str, **conf: str) -> str:
        """Start a run, and return its id."""
        body = {"logical_date": None, "conf": conf}
        return str(self.api(f"dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, tuple[str, int]]:
        """Return the state and the number of tries of each task of a run."""
        found = self.api(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {each["task_id"]: (each["state"], each["try_number"]) for each in found}

    def ended(self, dag_id: str, run_id: str, seconds: float = 400) -> str:
        """Return how a run ended."""

        def state() -> Any:
            found = self.api(f"dags/{dag_id}/dagRuns/{run_id}")["state"]
            return found if found in ("success", "failed") else None

        return str(self.wait(seconds, f"the run of {dag_id}", state))

    def log(self, dag_id: str, run_id: str, task_id: str, number: int = 1) -> str:
        """Return the log of a try."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{number}"
        return "\n".join(str(line) for line in self.api(path)["content"])

    def events(self, since: datetime) -> list[str]:
        """Return the name of the asset of each event since a time, in order."""
        found = self.api(f"assets/events?limit=100&timestamp_gte={since:%Y-%m-%dT%H:%M:%S.%fZ}")
        return sorted(event["name"] for event in found["asset_events"])

    def reports(self, since: datetime) -> dict[str, dict[str, Any]]:
        """Return what each DAG that reads a table was run for since a time: the extra of its only event."""
        time = f"{since:%Y-%m-%dT%H:%M:%S.%fZ}"
        path = f"dags/~/dagRuns?limit=100&order_by=-id&run_type=asset_triggered&run_after_gte={time}"
        found: dict[str, dict[str, Any]] = {}
        for run in self.api(path)["dag_runs"]:
            dag_id, run_id = run["dag_id"], run["dag_run_id"]
            if self.ended(dag_id, run_id) != "success":
                raise Failure(f"{dag_id} failed")
            path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/read/xcomEntries/return_value"
            value = self.api(path)["value"]
            [extra] = json.loads(value) if isinstance(value, str) else value
            if dag_id in found:
                raise Failure(f"{dag_id} ran twice")
            found[dag_id.removeprefix("report_")] = extra
        return found


class Scenario:
    """What users of Airflow rely on, step by step."""

    def __init__(self, airflow: RunningAirflow, server: EmbeddedServer, folder: Path) -> None:
        self.airflow = airflow
        self.server = server
        self.folder = folder
        self.source = psycopg.connect(server.conninfo, autocommit=True)
        os.environ["HASH_KEY"] = HASH_KEY
        self.config = load_config(folder / "shop.yaml")

    def execute(self, *statements: str) -> str:
        """Run statements at the source, and return an LSN after their commits."""
        for statement in statements:
            self.source.execute(statement.encode())
        [lsn] = self.source.execute("SELECT pg_current_wal_lsn()").fetchone() or [""]
        return str(lsn)

    def replicate(self, **conf: str) -> tuple[str, str, datetime]:
        """Run the pipeline; return the run's id, how it ended, and when it began."""
        began = datetime.now(timezone.utc)
        run = self.airflow.trigger("shop", **conf)
        return run, self.airflow.ended("shop", run), began

    def expect_reports(self, began: datetime, rows: Mapping[str, int | None]) -> None:
        """Fail unless exactly the DAGs of these tables ran, each with what `as-of` says of its LSN."""
        names = [WHOLE, *(f"{WHOLE}/public/{table}" for table in rows)]
        expect(self.airflow.events(began), sorted(names), "assets with events")

        def all_reports() -> Any:
            found = self.airflow.reports(began)
            return found if found.keys() >= rows.keys() else None

        reports = self.airflow.wait(300, "downstream DAGs", all_reports)
        if {table: extra["rows_changed"] for table, extra in reports.items()} != dict(rows):
            raise Failure(f"expected {rows}, and ran {reports}")
        for table, extra in reports.items():
            silver = read_silver(self.config, lsn=extra["lsn"], timestamp=None)
            found = silver.silver.table("public", table)
            if (found.version, str(silver.silver.lsn)) != (extra["version"], extra["lsn"]) or found.refusal:
                raise Failure(f"{table} cannot be read as of its event: {extra}, {found}")
        say(f"ran for {len(reports)} tables: {dict(sorted(reports.items())[:3])}")

    def first_run(self) -> None:
        """The copies of all tables are events of all tables."""
        _, state, began = self.replicate()
        expect(state, "success", "the first run")
        self.expect_reports(began, dict.fromkeys(TABLES, 10))

    def three_tables(self) -> None:
        """Exactly the DAGs of the tables that changed run."""
        self.execute(
            "INSERT INTO t03 SELECT g, 'new' FROM generate_series(100, 104) g",
            "UPDATE t07 SET name = 'other' WHERE id <= 2",
            "DELETE FROM t07 WHERE id = 10",
            "UPDATE t11 SET name = name WHERE id = 1",
        )
        _, state, began = self.replicate()
        expect(state, "success", "a run with three changed tables")
        self.expect_reports(began, {"t03": 5, "t07": 3, "t11": 1})

    def no_table(self) -> None:
        """Without changes no DAG runs."""
        run, state, began = self.replicate()
        expect(state, "success", "a run without changes")
        expect(self.airflow.tasks("shop", run)["silver"][0], "skipped", "the task silver without changes")
        expect(self.airflow.events(began), [], "events without changes")
        expect(self.airflow.reports(began), {}, "downstream DAGs without changes")
        say("without changes no DAG ran")

    @property
    def program(self) -> str:
        """The command of this checkout."""
        return str(Path(sys.executable).with_name("pgdelta"))

    def killed(self) -> None:
        """A worker that is killed during apply is tried again, and nothing is lost."""
        self.execute("INSERT INTO t05 SELECT g, 'many' FROM generate_series(100, 400099) g")
        began = datetime.now(timezone.utc)
        run = self.airflow.trigger("shop")
        job = self.airflow.wait(300, "apply", lambda: find_processes("apply", f"{self.folder}/shop.yaml"))[0]
        worker = int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1])
        for process in (worker, job):
            os.kill(process, signal.SIGKILL)
        say(f"killed the worker {worker} and its apply {job}")
        expect(self.airflow.ended("shop", run), "success", "the run whose worker was killed")
        tries = self.airflow.tasks("shop", run)["apply"]
        expect(tries, ("success", 2), "state and tries of apply")
        self.expect_reports(began, {"t05": 400_000})

    def outside(self) -> None:
        """What another apply wrote has its events at the next run, as what a killed try wrote has."""
        self.execute("INSERT INTO t06 VALUES (100, 'later')", "DELETE FROM t08")
        environ = {**os.environ, **self.libpq}
        command = [self.program, "run", "--config", str(self.folder / "shop.yaml")]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        _, state, began = self.replicate()
        expect(state, "success", "a run after an apply outside of Airflow")
        self.expect_reports(began, {"t06": 1, "t08": 10})

    @property
    def libpq(self) -> dict[str, str]:
        port = str(self.server.port)
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": port,
            "PGDATABASE": "postgres",
            "PGUSER": "shop",
            "PGPASSWORD": PASSWORD,
        }

    def mistake(self) -> None:
        """A mistake in the configuration fails once, with its sentence."""
        mistaken = self.folder / "mistaken.yaml"
        mistaken.write_text("pipeline: shop\nstorrage: {}\n")
        run, state, _ = self.replicate(config=str(mistaken))
        expect(state, "failed", "a run with a mistake in the configuration")
        tasks = self.airflow.tasks("shop", run)
        for task in ("ingest", "apply", "silver"):
            expect(tasks[task], ("failed", 1), f"state and tries of {task}")
            said = self.airflow.log("shop", run, task)
            found = re.search(r"The configuration has a mistake[^'\"]*storrage[^'\"]*", said)
            if found is None:
                raise Failure(f"the log of {task} lacks the sentence: {said}")
            say(f"{task} failed once: {found[0]}")

    def sensor(self) -> None:
        """A sensor waits in the triggerer until silver shows the commit."""
        lsn = self.execute("UPDATE t01 SET name = 'seen' WHERE id = 1")
        waiting = self.airflow.trigger("must_see", lsn=lsn)
        states = ("deferred", "success")
        task = self.airflow.wait(
            300,
            "sensor",
            lambda: [s for s, _ in self.airflow.tasks("must_see", waiting).values() if s in states],
        )
        expect(task, ["deferred"], "the sensor before the run")
        _, state, began = self.replicate()
        expect(state, "success", "the run for the sensor")
        expect(self.airflow.ended("must_see", waiting), "success", "the DAG that must see a commit")
        self.expect_reports(began, {"t01": 1})
        say(f"the sensor saw {lsn}")

    def secrets(self) -> None:
        """No secret is in Airflow's files: logs, XComs, rendered fields, its database."""
        for path in self.airflow.home.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                for secret in (PASSWORD, HASH_KEY):
                    if secret.encode() in content:
                        raise Failure(f"a secret is in {path}")
        say("no secret is in Airflow's files")

    def equality(self) -> None:
        """Silver equals its source."""
        spark = start_session("airflow")
        names = [TableName("public", table) for table in TABLES]
        oracle.assert_silver_equals_source(self.source, spark, str(self.folder / "lake"), names)
        spark.stop()
        say("silver equals its source")


def expect(found: object, wanted: object, what: str) -> None:
    """Fail unless two things are equal."""
    if found != wanted:
        raise Failure(f"{what}: {found}, not {wanted}")


def say(sentence: str) -> None:
    """Print what held, and when."""
    print(f"{datetime.now():%H:%M:%S} {sentence}", flush=True)


def find_processes(*words: str) -> list[int]:
    """Return the processes in whose command each of some words is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().decode(errors="replace").replace("\0", " ")
            if "python" in command.split(" ")[0] and all(word in command for word in words):
                found.append(int(path.parent.name))
    return found


def prepare_source(server: EmbeddedServer) -> None:
    """Create the tables, and a role that needs a password."""
    access = server.data / "pg_hba.conf"
    rules = (f"host {name} shop 127.0.0.1/32 scram-sha-256\n" for name in ("all", "replication"))
    access.write_text("".join([*rules, access.read_text()]))
    with psycopg.connect(server.conninfo, autocommit=True) as source:
        for statement in (
            f"CREATE ROLE shop LOGIN REPLICATION SUPERUSER PASSWORD '{PASSWORD}'",
            "SELECT pg_reload_conf()",
            *(f"CREATE TABLE {table} (id int PRIMARY KEY, name text)" for table in TABLES),
            *(f"INSERT INTO {table} SELECT g, 'name' FROM generate_series(1, 10) g" for table in TABLES),
        ):
            source.execute(statement.encode())


def main(command: str, *, keep: bool = False) -> int:
    """Return 0 where all of the scenario holds, else 1; say which does not."""
    python = str(Path(command).with_name("python"))
    with tempfile.TemporaryDirectory(prefix="pgdelta-airflow-") as name:
        folder = Path(name)
        for each in ("home", "dags", "dist"):
            (folder / each).mkdir()
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        wheel = str(build_wheel(folder / "dist"))
        subprocess.run([*pip, wheel], check=True)
        subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
        (folder / "shop.yaml").write_text(CONFIG.format(folder=folder))
        (folder / "dags" / "shop.py").write_text(DAGS.format(folder=folder, count=len(TABLES)))
        server = start_server(folder / "postgres")
        airflow = RunningAirflow(command, folder / "home", folder / "dags")
        try:
            prepare_source(server)
            airflow.run("db", "migrate")
            url = f"postgres://shop:{PASSWORD}@127.0.0.1:{server.port}/postgres"
            airflow.run("connections", "add", "shop_db", "--conn-uri", url)
            # Airflow's own log of its commands has their arguments
            (folder / "variables.json").write_text(json.dumps({"hash_key": HASH_KEY}))
            airflow.run("variables", "import", str(folder / "variables.json"))
            say(f"Airflow {airflow.run('version').split()[-1]} at {airflow.url}")
            with airflow.started():
                scenario = Scenario(airflow, server, folder)
                airflow.wait(300, "DAGs", lambda: airflow.api("dags?limit=1")["total_entries"] == 22)
                for step in STEPS:
                    getattr(scenario, step)()
                if keep:
                    input("Enter ends it")
            scenario.secrets()
            scenario.equality()
        except Failure as failure:
            print(f"FAILED: {failure}")
            if keep:
                input(f"Enter removes {folder}")
            return 1
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], keep="--keep" in sys.argv[2:]))
