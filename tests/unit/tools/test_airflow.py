"""The DAG file: what Airflow makes of it, where `make airflow` has made an Airflow to ask.

`make airflow` itself runs the DAG against a server; here it is only read.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DAG = ROOT / "conf" / "airflow" / "pgdelta_dag.py"
AIRFLOW_PYTHON = ROOT / ".airflow" / "venv" / "bin" / "python"
READ = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pgdelta_dag
from airflow.sdk.exceptions import AirflowFailException
ends = {}
for code in (0, 1, 2, 99):
    pgdelta_dag.SPARK_SUBMIT = f"sh -c 'exit {code}'"
    try:
        pgdelta_dag.Job(task_id="ingest").execute({})
        ends[code] = "done"
    except Exception as error:
        ends[code] = "failed for good" if isinstance(error, AirflowFailException) else type(error).__name__
dags = {}
for dag in [found for found in vars(pgdelta_dag).values() if isinstance(found, pgdelta_dag.DAG)]:
    dags[dag.dag_id] = [dag.catchup, dag.max_active_runs, dag.params["config"], {
        task.task_id: [
            sorted(task.downstream_task_ids),
            task.trigger_rule.value,
            task.retries,
            task.retry_exponential_backoff > 0,
        ]
        for task in dag.tasks
    }]
print(json.dumps([ends, dags]))
"""


def test_the_dag_file_compiles() -> None:
    compile(DAG.read_text(encoding="utf-8"), str(DAG), "exec")


@pytest.mark.skipif(not AIRFLOW_PYTHON.exists(), reason="make airflow has not been run: no Airflow to ask")
def test_airflow_reads_a_dag_per_pipeline_and_tries_again_what_can_succeed(tmp_path: Path) -> None:
    for name in ("shop", "bank"):
        (tmp_path / f"{name}.yaml").write_text(f"pipeline: {name}\n")
    environ = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "PGDELTA_CONFIG": f"{tmp_path}/shop.yaml:{tmp_path}/bank.yaml",
    }
    command = [str(AIRFLOW_PYTHON), "-c", READ, str(DAG.parent)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends, dags = json.loads(done.stdout.splitlines()[-1])
    assert ends == {"0": "done", "1": "AirflowException", "2": "failed for good", "99": "AirflowException"}
    tasks = {
        "ingest": [["apply", "captured"], "all_success", 3, True],
        "apply": [[], "all_done", 3, True],
        "captured": [[], "all_success", 3, True],
    }
    assert dags == {name: [False, 1, f"{tmp_path}/{name}.yaml", tasks] for name in ("shop", "bank")}
