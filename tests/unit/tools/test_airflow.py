"""`pgdelta.airflow` and the DAG file: events of what changed, secrets, failures, the sensor.

A stub has Airflow's place, but where `make airflow` has made an Airflow to ask, which the last test reads the
DAG file with. `make airflow` runs pipelines in it.
"""

import ast
import asyncio
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.airflow_stub import (
    ForGood,
    Refusal,
    Skipped,
    StubEvents,
    StubHook,
    StubOutlets,
    StubValues,
    stubbed_airflow,
)
from tests.support.paths import ROOT
from tests.support.processes import run_command

DAG = ROOT / "conf" / "airflow" / "pgdelta_dag.py"
MODULE = ROOT / "pgdelta" / "airflow.py"
AIRFLOW_PYTHON = ROOT / ".airflow" / "venv" / "bin" / "python"
SECRET = "not to be seen"
SHOWN = {"lsn": "0/64", "commit_time": "2026-01-31T12:00:00+00:00"}


@pytest.fixture
def airflow() -> Iterator[ModuleType]:
    StubHook.commands.clear()
    StubHook.ends = (0, "")
    with stubbed_airflow() as module:
        yield module


def program(folder: Path, output: str, code: int = 0, errors: str = "") -> str:
    """Write a `pgdelta` that prints an answer, and appends its arguments to a file."""
    path = folder / "pgdelta"
    path.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\ncat <<END\n{output}\nEND\n'
        f'echo "{errors}" >&2\nexit {code}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answer(*changed: str, lsn: str = "0/64", behind: tuple[str, ...] = ()) -> str:
    """Return what `pgdelta as-of --since` prints for three tables."""
    tables = [
        {
            "schema": "public",
            "table": name,
            "state": "behind" if name in behind else "current",
            "version": 7,
            "changed": name in changed,
            "rows_changed": 3 if name in changed else 0,
        }
        for name in ("a", "b", "c d")
    ]
    return json.dumps({**SHOWN, "lsn": lsn, "cursor": f"{lsn}@now", "tables": tables})


def emit(task: Any, *extras: dict[str, Any]) -> StubOutlets:
    """Run the task silver after events of the pipeline with these extras, newest first."""
    outlets = StubOutlets()
    events = StubEvents(SimpleNamespace(extra=extra) for extra in extras)
    task.execute({"inlet_events": {task.whole: events}, "outlet_events": outlets})
    return outlets


def test_only_tables_that_changed_have_events(airflow: ModuleType, tmp_path: Path) -> None:
    pgdelta = program(tmp_path, answer("b", "c d"))
    task = airflow.SilverEvents(task_id="silver", pipeline="shop", config="/x.yaml", pgdelta=pgdelta)
    outlets = emit(task, {"from_rest_api": True}, {"cursor": "0/32@then"}, {"cursor": "0/1@before"})
    extra = {**SHOWN, "rows_changed": 3, "version": 7}
    assert outlets[task.alias].added == {
        "pgdelta://shop/public/b": extra,
        "pgdelta://shop/public/c%20d": extra,
    }
    assert outlets[task.whole].extra == {**SHOWN, "tables": 2, "cursor": "0/64@now"}
    assert (tmp_path / "asked").read_text() == "as-of --config /x.yaml --since 0/32@then --json\n"


def test_the_first_run_asks_for_all_and_a_run_without_changes_is_skipped(
    airflow: ModuleType, tmp_path: Path
) -> None:
    pgdelta = program(tmp_path, answer())
    task = airflow.SilverEvents(task_id="silver", pipeline="shop", config="/x.yaml", pgdelta=pgdelta)
    with pytest.raises(Skipped, match="No silver table has changed up to 0/64"):
        emit(task)
    assert "--since 0/0 " in (tmp_path / "asked").read_text()


def test_secrets_reach_the_job_by_its_environment_only(
    airflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"sslmode": "require", "connect_timeout": 5, "require_auth": "scram-sha-256"}
    connection = SimpleNamespace(
        host="db", port=5433, schema="shop", login="me", password=SECRET, extra_dejson=extra
    )
    monkeypatch.setattr(StubValues, "connections", {"shop_db": connection})
    monkeypatch.setattr(StubValues, "variables", {"key": f"{SECRET} too"})
    job = airflow.PgdeltaJob(
        task_id="ingest",
        config="/x.yaml; rm",
        connection="shop_db",
        secrets={"LAKE_KEY": "key"},
        pgdelta=sys.executable,
    )
    job.execute({})
    [(command, environ)] = StubHook.commands
    assert command == [
        "bash",
        "-c",
        f'exec {sys.executable} ingest "$@"',
        "ingest",
        "--config",
        "/x.yaml; rm",
    ]
    names = {"PGHOST": "db", "PGPORT": "5433", "PGDATABASE": "shop", "PGUSER": "me", "PGSSLMODE": "require"}
    names |= {"PGCONNECT_TIMEOUT": "5", "PGREQUIREAUTH": "scram-sha-256"}
    assert environ.items() >= {**names, "PGPASSWORD": SECRET, "LAKE_KEY": f"{SECRET} too"}.items()
    assert SECRET not in str(command)
    assert SECRET not in str(vars(job))
    assert f"{SECRET} too" in StubValues.masked


@pytest.mark.parametrize(("code", "kind"), [(1, Refusal), (2, ForGood), (99, Refusal)])
def test_only_a_mistake_in_the_configuration_fails_for_good(
    airflow: ModuleType, code: int, kind: type[Exception]
) -> None:
    StubHook.ends = (code, "pgdelta: x.yaml:2: storrage: Unknown key.")
    job = airflow.PgdeltaJob(task_id="group.apply", config="/x.yaml", command="spark-submit jobs/{job}.py")
    with pytest.raises(Refusal, match="storrage: Unknown key") as failure:
        job.execute({})
    assert type(failure.value) is kind
    assert StubHook.commands[0][0][2] == 'exec spark-submit jobs/apply.py "$@"'


def test_a_missing_program_fails_for_good(airflow: ModuleType) -> None:
    with pytest.raises(ForGood, match="no program /no/pgdelta"):
        airflow.PgdeltaJob(task_id="ingest", config="/x.yaml", pgdelta="/no/pgdelta").execute({})


def test_a_run_fails_if_a_job_failed_and_has_its_events(airflow: ModuleType, tmp_path: Path) -> None:
    config = tmp_path / "shop.yaml"
    config.write_text('pipeline: "shop ${STAGE}"\n')
    dag = airflow.pgdelta_dag(config, schedule="@hourly", default_args={"pool": "p"}, max_active_tasks=3)
    assert dag.dag_id == "shop_STAGE_"
    assert {name: (task.downstream, task.trigger_rule) for name, task in dag.tasks.items()} == {
        "ingest": (["apply", "complete"], "all_success"),
        "apply": (["silver", "complete"], "all_done"),
        "silver": ([], "all_done"),
        "complete": ([], "all_success"),
    }
    settings = dag.arguments
    assert (settings["catchup"], settings["max_active_runs"], settings["max_active_tasks"]) == (False, 1, 3)
    assert settings["params"] == {"config": str(config)}
    assert settings["default_args"].items() >= {"retries": 3, "pool": "p"}.items()
    dag = airflow.pgdelta_dag(
        "/no.yaml", pipeline="shop", job=lambda name: airflow.EmptyOperator(task_id=name)
    )
    assert (dag.dag_id, [*dag.tasks]) == ("shop", ["ingest", "apply", "silver", "complete"])


def test_the_sensor_waits_in_the_triggerer_until_all_tables_show_the_lsn(
    airflow: ModuleType, tmp_path: Path
) -> None:
    pgdelta = program(tmp_path, answer(lsn="0/64", behind=("b",)))
    arguments = {"task_id": "wait", "config": str(tmp_path / "x.yaml"), "pgdelta": pgdelta}
    sensor = airflow.LsnSensor(lsn="0/64", tables=["public.?"], **arguments)
    sensor.execute({})
    path, kept = sensor.deferred["trigger"].serialize()
    assert path == "pgdelta.airflow.LsnTrigger"
    trigger = airflow.LsnTrigger(**json.loads(json.dumps(kept)))
    program(tmp_path, answer(lsn="0/63"))
    assert not sensor.poke({})
    program(tmp_path, answer(lsn="1/0"))
    event = asyncio.run(anext(trigger.run()))
    assert event == {"code": 0}
    sensor.execute_complete({}, event)
    assert "--table public.? --json" in (tmp_path / "asked").read_text()
    program(tmp_path, "", code=2, errors="pgdelta: x.yaml:2: storrage: Unknown key.")
    event = asyncio.run(anext(trigger.run()))
    with pytest.raises(ForGood, match="storrage"):
        sensor.execute_complete({}, event)
    with pytest.raises(ForGood, match="'soon' is not an LSN"):
        airflow.shows_lsn(json.loads(answer()), "soon")


def test_a_trigger_asks_again_after_a_failure_that_may_end(airflow: ModuleType, tmp_path: Path) -> None:
    pgdelta = program(tmp_path, "", code=1, errors="pgdelta: The store does not answer.")
    trigger = airflow.LsnTrigger(lsn="0/1", tables=[], poke_interval=0, config="/x.yaml", pgdelta=pgdelta)
    trigger.log = SimpleNamespace(warning=lambda *_: program(tmp_path, answer()))
    assert asyncio.run(anext(trigger.run())) == {"code": 0}


def test_to_read_a_dag_file_imports_nothing_heavy() -> None:
    tree = ast.parse(MODULE.read_text(encoding="utf-8"))
    imported = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    imported |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"airflow", "yaml"}


READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pgdelta_dag
dags = {}
for dag in [found for found in vars(pgdelta_dag).values() if type(found).__name__ == "DAG"]:
    dags[dag.dag_id] = [dag.catchup, dag.max_active_runs, dag.params["config"], {
        task.task_id: [
            sorted(task.downstream_task_ids),
            task.trigger_rule.value,
            task.retries,
            task.retry_exponential_backoff > 0,
            getattr(task, "command", None),
        ]
        for task in dag.tasks
    }]
print(json.dumps(dags))
"""


@pytest.mark.skipif(not AIRFLOW_PYTHON.exists(), reason="make airflow has not been run: no Airflow to ask")
def test_airflow_reads_a_dag_per_pipeline_and_tries_again_what_can_succeed(tmp_path: Path) -> None:
    for name in ("shop", "bank"):
        (tmp_path / f"{name}.yaml").write_text(f"pipeline: {name}\n")
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "PGDELTA_CONFIG": f"{tmp_path}/shop.yaml:{tmp_path}/bank.yaml",
        "PGDELTA_SPARK_SUBMIT": "spark-submit --master $MASTER",
    }
    command = [str(AIRFLOW_PYTHON), "-c", READ, str(DAG.parent)]
    done = run_command(*command, env=environ)
    dags = json.loads(done.stdout.splitlines()[-1])
    job = f"spark-submit --master $MASTER {ROOT}/jobs/{{job}}.py"
    tasks = {
        "ingest": [["apply", "complete"], "all_success", 3, True, job],
        "apply": [["complete", "silver"], "all_done", 3, True, job],
        "silver": [[], "all_done", 3, True, None],
        "complete": [[], "all_success", 3, True, None],
    }
    assert dags == {name: [False, 1, f"{tmp_path}/{name}.yaml", tasks] for name in ("shop", "bank")}
