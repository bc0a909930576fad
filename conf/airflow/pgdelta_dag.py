"""Airflow 3: one DAG per pipeline, ingest → apply, each run taking what is there at its start.

Point Airflow's DAG folder here, or copy this file there and set PGDELTA_HOME to the checkout. From the
environment of Airflow:

  PGDELTA_CONFIG        the pipeline's YAML file; several, separated by `:`, make several DAGs
  PGDELTA_SCHEDULE      cron expression or preset (*/10 * * * *)
  PGDELTA_SPARK_SUBMIT  the command, with options for a cluster (the checkout's own spark-submit)

A DAG is named after its pipeline. Every job can be repeated, so a failure is tried again; a mistake in the
configuration (exit code 2) is not: it needs a person. What is captured is applied also where ingest failed (a
table that cannot be copied stops no other); the run has failed all the same.
"""

import os
import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

HOME = Path(os.environ.get("PGDELTA_HOME") or Path(__file__).resolve().parent.parent.parent)
CONFIGS = os.environ.get("PGDELTA_CONFIG") or str(HOME / "conf" / "pipeline.yaml")
SPARK_SUBMIT = os.environ.get("PGDELTA_SPARK_SUBMIT") or shlex.quote(str(HOME / ".venv/bin/spark-submit"))
CONFIG_MISTAKE = 2


class Job(BashOperator):
    """Run the job that the task is named after; stopping the task lets it finish the commit under way."""

    def __init__(self, *, task_id: str, **arguments: Any) -> None:
        super().__init__(
            task_id=task_id,
            bash_command=f'exec {SPARK_SUBMIT} "$PGDELTA_HOME/jobs/{task_id}.py" --config "$PGDELTA_CONFIG"',
            # by the environment, not by the command's text: a parameter is never shell code
            env={"PGDELTA_HOME": str(HOME), "PGDELTA_CONFIG": "{{ params.config }}"},
            append_env=True,
            # a relative storage.root is relative to the checkout
            cwd=str(HOME),
            skip_on_exit_code=CONFIG_MISTAKE,
            do_xcom_push=False,
            **arguments,
        )

    def execute(self, context: Any) -> Any:
        """Fail for good on a mistake in the configuration; any other failure is tried again."""
        try:
            return super().execute(context)
        except AirflowSkipException:
            raise AirflowFailException(
                "The configuration has a mistake, named in the lines above: correct it and run again."
            ) from None


def make_dag(config: Path) -> DAG:
    """Return the DAG of one pipeline."""
    pipeline = str(yaml.safe_load(config.read_text(encoding="utf-8"))["pipeline"])
    with DAG(
        # the name may hold ${VARIABLE}, which only the jobs can expand
        dag_id=re.sub(r"[^\w.-]+", "_", pipeline),
        description=f"PostgreSQL to Delta Lake: {config}",
        schedule=os.environ.get("PGDELTA_SCHEDULE", "*/10 * * * *"),
        start_date=datetime(2024, 1, 1),
        # a run takes all there is: runs that were missed have nothing left to do
        catchup=False,
        # one slot, one writer
        max_active_runs=1,
        params={"config": Param(str(config), type="string", description="the pipeline's YAML file")},
        default_args={
            "retries": 3,
            "retry_delay": timedelta(minutes=1),
            "retry_exponential_backoff": True,
            "max_retry_delay": timedelta(minutes=15),
        },
        tags=["pgdelta"],
    ) as dag:
        ingest = Job(task_id="ingest")
        ingest >> Job(task_id="apply", trigger_rule="all_done")
        # a run has failed where one of its last tasks has
        ingest >> EmptyOperator(task_id="captured")
    return dag


for name in CONFIGS.split(os.pathsep):
    found = make_dag(HOME / name)
    globals()[found.dag_id] = found
