"""Airflow 3: one DAG per pipeline, run by a checkout of pgdelta and its `.venv`.

Point Airflow's DAG folder here, or copy this file there and set PGDELTA_HOME to the checkout. If pgdelta is
installed with Airflow, call `pgdelta.airflow.pgdelta_dag` in a DAG file of your own instead, which needs no
checkout. From the environment of Airflow:

  PGDELTA_CONFIG        the pipeline's YAML file; several, separated by `:`, make several DAGs
  PGDELTA_CONNECTION    the Airflow connection of the source (the file's conninfo)
  PGDELTA_SCHEDULE      cron expression or preset (*/10 * * * *)
  PGDELTA_SPARK_SUBMIT  the command, with options for a cluster (the checkout's own spark-submit)
"""

import os
import shlex
import shutil
import sys
from pathlib import Path

HOME = Path(os.environ.get("PGDELTA_HOME") or Path(__file__).resolve().parent.parent.parent)
CONFIGS = os.environ.get("PGDELTA_CONFIG") or str(HOME / "conf" / "pipeline.yaml")
SPARK_SUBMIT = os.environ.get("PGDELTA_SPARK_SUBMIT") or shlex.quote(str(HOME / ".venv/bin/spark-submit"))
PGDELTA = HOME / ".venv/bin/pgdelta"

if str(HOME) not in sys.path:
    sys.path.append(str(HOME))

from pgdelta.airflow import pgdelta_dag  # noqa: E402

for name in CONFIGS.split(os.pathsep):
    found = pgdelta_dag(
        HOME / name,
        connection=os.environ.get("PGDELTA_CONNECTION"),
        schedule=os.environ.get("PGDELTA_SCHEDULE", "*/10 * * * *"),
        command=f"{SPARK_SUBMIT} {shlex.quote(str(HOME / 'jobs'))}/{{job}}.py",
        pgdelta=str(PGDELTA) if PGDELTA.exists() else None,
        folder=str(HOME),
        has_events=PGDELTA.exists() or shutil.which("pgdelta") is not None,
    )
    globals()[found.dag_id] = found
