"""Airflow 3: a DAG for each pipeline, an asset for each silver table, and a sensor for an LSN.

A DAG has the tasks ingest, apply and silver. The first two run `pgdelta`, in a process of its own. The third
emits an event for each table whose rows changed since the last event, whoever wrote it: also for what a try
applied that was killed, or an apply outside of Airflow. No other code of pgdelta is imported.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    Asset,
    AssetAlias,
    BaseHook,
    BaseOperator,
    BaseSensorOperator,
    Param,
    TriggerRule,
    Variable,
)
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.log import mask_secret
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = ["LsnSensor", "PgdeltaJob", "SilverEvents", "pgdelta_dag", "silver_asset"]

DEFAULT_ARGS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=15),
}
CONFIG_MISTAKE = 2
_OTHER_NAMES = {"application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT"}


def silver_asset(pipeline: str, schema: str | None = None, table: str | None = None) -> Asset:
    """Return the asset of a silver table, or of all silver tables of a pipeline: `pgdelta://shop/public/orders`."""
    return Asset(
        "/".join(["pgdelta:/", *(quote(part, safe="") for part in (pipeline, schema, table) if part)])
    )


def pgdelta_dag(
    config: str | os.PathLike[str],
    *,
    pipeline: str | None = None,
    schedule: Any = "*/10 * * * *",
    connection: str | None = None,
    secrets: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    pgdelta: str | None = None,
    folder: str | None = None,
    command: str | None = None,
    job: Callable[[str], BaseOperator] | None = None,
    has_events: bool = True,
    default_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> DAG:
    """Return the DAG of one pipeline; each run takes what is there at its start.

    `config` is the path of its YAML file, and `pipeline` its name if the file cannot be read here. The source
    is that of an Airflow `connection` (leave out `source.conninfo`); `secrets` are variables of the
    environment, each with the key of an Airflow Variable; `environment` has more of them, as they are.
    `pgdelta` is the program, by default the one of this Python; `folder` is what a relative `storage.root` is
    relative to, by default the folder of the configuration. `command` is shell text that runs a job instead,
    such as spark-submit with options and `jobs/{job}.py`; `--config FILE` follows. `job` returns the operator
    of the task ingest or apply instead. Without `has_events` there is no task silver. `default_args`
    are those of tasks, such as a pool; other options are those of the DAG.
    """
    path = os.path.abspath(config)
    if pipeline is None:
        pipeline = str(yaml.safe_load(Path(path).read_text(encoding="utf-8"))["pipeline"])
    # the name may hold ${VARIABLE}, which only the jobs can expand
    name = re.sub(r"[^\w.-]+", "_", pipeline)
    common: dict[str, Any] = {
        "config": "{{ params.config }}",
        "connection": connection,
        "secrets": secrets,
        "environment": environment,
        "pgdelta": pgdelta,
        "folder": folder,
    }
    settings: dict[str, Any] = {
        "dag_id": name,
        "description": f"PostgreSQL to Delta Lake: {path}",
        "start_date": datetime(2024, 1, 1),
        # a run takes all there is: runs that were missed have nothing left to do
        "catchup": False,
        # one slot, one writer
        "max_active_runs": 1,
        "tags": ["pgdelta"],
        **options,
    }
    params = {"config": Param(path, type="string", description="the pipeline's YAML file")}
    defaults = {**DEFAULT_ARGS, **(default_args or {})}
    with DAG(schedule=schedule, params=params, default_args=defaults, **settings) as dag:
        make = job or (lambda task_id: PgdeltaJob(task_id=task_id, command=command, **common))
        ingest, apply = make("ingest"), make("apply")
        # what is captured is applied also if ingest failed: a table that cannot be copied stops no other
        apply.trigger_rule = TriggerRule.ALL_DONE
        ingest >> apply
        if has_events:
            apply >> SilverEvents(
                task_id="silver", pipeline=name, trigger_rule=TriggerRule.ALL_DONE, **common
            )
        # a run has failed if one of its last tasks has
        [ingest, apply] >> EmptyOperator(task_id="complete")
    return dag


class _Program:
    """Runs `pgdelta` with a configuration, and an environment that holds what is secret."""

    template_fields: Sequence[str] = ("config",)

    def __init__(
        self,
        *,
        config: str,
        connection: str | None = None,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        pgdelta: str | None = None,
        folder: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.config = config
        self.connection = connection
        self.secrets = dict(secrets or {})
        self.environment = dict(environment or {})
        self.pgdelta = pgdelta
        self.folder = folder

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make another one of these; they hold names of secrets, not their values."""
        keys = ("config", "connection", "secrets", "environment", "pgdelta", "folder")
        return {key: getattr(self, key) for key in keys}

    def program(self) -> str:
        """Return the path of `pgdelta`; raise AirflowFailException if there is none."""
        beside = os.path.join(os.path.dirname(sys.executable), "pgdelta")
        found = self.pgdelta or (beside if os.path.exists(beside) else shutil.which("pgdelta"))
        if found is None or shutil.which(found) is None:
            raise AirflowFailException(
                f"There is no program {found or 'pgdelta'} here. Run pip install pgdelta in the worker, or "
                "set pgdelta= to the one of another environment."
            )
        return found

    def environ(self) -> dict[str, str]:
        """Return the environment of the program; Airflow masks its secrets in logs."""
        found = {**os.environ, **self.environment}
        for name, key in self.secrets.items():
            value = str(Variable.get(key))
            mask_secret(value)
            found[name] = value
        return {**found, **libpq_environment(self.connection)} if self.connection else found

    def working_folder(self) -> str | None:
        """Return the folder in which the program runs."""
        folder = self.folder or os.path.dirname(os.path.abspath(self.config))
        return folder if os.path.isdir(folder) else None  # of a missing file, the program says so

    def question(self, since: str, tables: Sequence[str] = ()) -> list[str]:
        """Return the command that says what silver shows, and which tables changed since a cursor."""
        globs = [word for table in tables for word in ("--table", table)]
        return [self.program(), "as-of", "--config", self.config, "--since", since, *globs, "--json"]

    def ask(self, since: str, tables: Sequence[str] = ()) -> dict[str, Any]:
        """Return what silver shows."""
        command, environ = self.question(since, tables), self.environ()
        done = subprocess.run(
            command, cwd=self.working_folder(), env=environ, capture_output=True, check=False
        )
        return read_answer(done.returncode, done.stdout, done.stderr)


def libpq_environment(connection: str) -> dict[str, str]:
    """Return the variables by which libpq connects as an Airflow connection says."""
    found = BaseHook.get_connection(connection)
    # sslmode is PGSSLMODE; libpq ignores a variable that it does not know
    extra = {_OTHER_NAMES.get(k, f"PG{k.replace('_', '').upper()}"): v for k, v in found.extra_dejson.items()}
    values = {
        **{name: value for name, value in extra.items() if isinstance(value, str | int)},
        "PGHOST": found.host,
        "PGPORT": found.port,
        "PGDATABASE": found.schema,
        "PGUSER": found.login,
        "PGPASSWORD": found.password,
    }
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def read_answer(code: int, output: bytes, errors: bytes) -> dict[str, Any]:
    """Return the JSON that a command printed; raise AirflowException if it printed none."""
    if output.strip():  # also with exit code 1: a table cannot be read
        answer: dict[str, Any] = json.loads(output)
        return answer
    raise _failure(code, (errors.decode(errors="replace").strip().splitlines() or [""])[-1])


def _failure(code: int, sentence: str) -> AirflowException:
    if code == CONFIG_MISTAKE:
        return AirflowFailException(f"The configuration has a mistake, which no other try mends. {sentence}")
    return AirflowException(f"Exit code {code}. {sentence}")


class PgdeltaJob(_Program, BaseOperator):
    """Runs the job that the task is named after; stopping the task lets it finish the commit under way.

    A mistake in the configuration (exit code 2) fails for good, any other failure is tried again.
    """

    template_fields = ("config", "command")

    def __init__(self, *, command: str | None = None, **arguments: Any) -> None:
        super().__init__(**{"do_xcom_push": False, **arguments})
        self.command = command
        self._hook = SubprocessHook()

    def execute(self, context: Any) -> None:
        """Run the job to its end."""
        job = self.task_id.rpartition(".")[2]
        text = self.command or f"{shlex.quote(self.program())} {{job}}"
        # what follows the text is never read as shell code
        command = ["bash", "-c", f'exec {text.replace("{job}", job)} "$@"', job, "--config", self.config]
        done = self._hook.run_command(command, env=self.environ(), cwd=self.working_folder())
        if done.exit_code:
            raise _failure(done.exit_code, str(done.output))

    def on_kill(self) -> None:
        """End the job as Ctrl-C does."""
        self._hook.send_sigterm()


class SilverEvents(_Program, BaseOperator):
    """Emits an event for each silver table whose rows changed, and one for the pipeline; skipped without any.

    The extra of each event has `lsn` and `commit_time` of the commit that all tables show; that of a table
    also its Delta `version` there and `rows_changed` since the last event, null if that is unknown. Where the
    next run continues is in the event of the pipeline, which Airflow records together with the others.
    """

    def __init__(self, *, pipeline: str, **arguments: Any) -> None:
        self.pipeline = pipeline
        self.whole, self.alias = silver_asset(pipeline), AssetAlias(f"pgdelta:{pipeline}")
        super().__init__(
            inlets=[self.whole],
            outlets=[self.whole, self.alias],
            **{"do_xcom_push": False, **arguments},
        )

    def execute(self, context: Any) -> None:
        """Emit the events of what changed since the last run that emitted some."""
        newest = context["inlet_events"][self.whole].ascending(False).limit(100)
        cursors = (event.extra["cursor"] for event in newest if (event.extra or {}).get("cursor"))
        found = self.ask(next(cursors, "0/0"))
        shown = {"lsn": found["lsn"], "commit_time": found["commit_time"]}
        changed = [table for table in found["tables"] if table["changed"]]
        if not changed:
            raise AirflowSkipException(f"No silver table has changed up to {found['lsn']}.")
        events = context["outlet_events"]
        for table in changed:
            asset = silver_asset(self.pipeline, table["schema"], table["table"])
            extra = {**shown, "rows_changed": table["rows_changed"], "version": table["version"]}
            events[self.alias].add(asset, extra=extra)
            self.log.info("%s: version %s shows %s", asset.name, extra["version"], extra["lsn"])
        events[self.whole].extra.update({**shown, "tables": len(changed), "cursor": found["cursor"]})


def lsn_number(text: str) -> int:
    """Return an LSN as a number, which sorts."""
    high, _, low = text.strip().partition("/")
    try:
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise AirflowFailException(f"{text!r} is not an LSN. Write one like 16/B374D848.") from None


def shows_lsn(answer: Mapping[str, Any], lsn: str) -> bool:
    """Return whether silver shows an LSN in all of its tables."""
    is_behind = any(table["state"] == "behind" for table in answer["tables"])
    return not is_behind and lsn_number(answer["lsn"]) >= lsn_number(lsn)


class LsnSensor(_Program, BaseSensorOperator):
    """Waits until silver shows an LSN of the source, such as `pg_current_wal_lsn()` after a commit.

    All tables have to show it, or those of `tables` (`schema.table` with * and ?). It waits in the triggerer,
    unless it is not `deferrable`.
    """

    template_fields = ("config", "lsn")

    def __init__(
        self, *, lsn: str, tables: Sequence[str] = (), deferrable: bool = True, **arguments: Any
    ) -> None:
        super().__init__(**{"do_xcom_push": False, **arguments})
        self.lsn = lsn
        self.tables = list(tables)
        self.deferrable = deferrable

    def poke(self, context: Any) -> bool:
        """Return whether silver shows the LSN."""
        return shows_lsn(self.ask(self.lsn, self.tables), self.lsn)

    def execute(self, context: Any) -> None:
        """Wait for the LSN."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            trigger = LsnTrigger(
                lsn=self.lsn, tables=self.tables, poke_interval=self.poke_interval, **self.settings
            )
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> None:
        """End, or fail for what the trigger met."""
        if event["code"]:
            raise _failure(event["code"], event["sentence"])


class LsnTrigger(_Program, BaseTrigger):
    """Asks every `poke_interval` seconds, in a process that reads the lake's logs and starts no JVM."""

    def __init__(self, *, lsn: str, tables: Sequence[str], poke_interval: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.lsn = lsn
        self.tables = tables
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the arguments that make this trigger."""
        more = {"lsn": self.lsn, "tables": self.tables, "poke_interval": self.poke_interval}
        return f"{__name__}.LsnTrigger", {**self.settings, **more}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: silver shows the LSN, or the configuration has a mistake."""
        environ = await asyncio.to_thread(self.environ)
        while True:
            asked = await asyncio.create_subprocess_exec(
                *self.question(self.lsn, self.tables),
                cwd=self.working_folder(),
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            output, errors = await asked.communicate()
            try:
                if shows_lsn(read_answer(asked.returncode or 0, output, errors), self.lsn):
                    yield TriggerEvent({"code": 0})
                    return
            except AirflowFailException as error:
                yield TriggerEvent({"code": CONFIG_MISTAKE, "sentence": str(error)})
                return
            except AirflowException as error:  # the store may answer later; the sensor has a timeout
                self.log.warning("%s", error)
            await asyncio.sleep(self.poke_interval)
