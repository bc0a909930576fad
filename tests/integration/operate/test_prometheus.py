"""A real Prometheus scrapes a run: each query of the dashboard is answered, and the rules fire."""

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.options import Address
from pipeline.config.tables import TableRule
from pipeline.postgres.embedded import find_free_port
from pipeline.report.observers import Observers, WatchOptions
from tests.support.dashboards import RULES, queries, rules
from tests.support.pipelines import Pipeline
from tests.support.processes import run_command
from tests.support.running import running_both

pytestmark = pytest.mark.slow

#: Panels whose queries have no sample in this run: nothing is copied, and the slot has no limit.
MAY_BE_EMPTY = {
    "Time until the slot can be lost",
    "WAL of the slot",
    "Copies under way",
    "Values that did not fit, per hour",
    "Maintenance",
}
TESTS = """
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'pgdelta_table_held{pipeline="shop",schema="public",table="t",instance="a"}', values: '1x10'}
      - {series: 'pgdelta_slot_safe_wal_bytes{pipeline="shop"}', values: '100x10'}
      - {series: 'pgdelta_slot_retained_wal_bytes{pipeline="shop"}', values: '1000x10'}
      - {series: 'pgdelta_captured_lsn{pipeline="shop",instance="i"}', values: '5000000000x30'}
      - {series: 'pgdelta_run_start_timestamp_seconds{pipeline="shop",instance="i"}', values: '0x30'}
      - {series: 'pgdelta_run_start_timestamp_seconds{pipeline="shop",instance="a"}', values: '0x30'}
      - {series: 'pgdelta_table_applied_lsn{pipeline="shop",schema="p",table="late"}', values: '1x30'}
      - {series: 'pgdelta_table_applied_lsn{pipeline="shop",schema="p",table="rest"}', values: '1x30'}
      - {series: 'pgdelta_table_paused{pipeline="shop",schema="p",table="rest"}', values: '1x30'}
    promql_expr_test: []
    alert_rule_test:
      - {eval_time: 3m, alertname: PgdeltaTableHeld, exp_alerts: []}
      - eval_time: 8m
        alertname: PgdeltaTableHeld
        exp_alerts:
          - exp_labels: {pipeline: shop, schema: public, table: t}
            exp_annotations: {summary: "public.t waits for a person. pgdelta status says why."}
      - eval_time: 8m
        alertname: PgdeltaSlotNearLimit
        exp_alerts:
          - exp_labels: {pipeline: shop}
            exp_annotations:
              summary: "The slot of shop can soon be lost. Run ingest, or raise max_slot_wal_keep_size."
      - eval_time: 28m
        alertname: PgdeltaTableBehind
        exp_alerts:
          - exp_labels: {pipeline: shop, schema: p, table: late}
            exp_annotations: {summary: "p.late is 4.657GiB behind bronze."}
      - eval_time: 28m
        alertname: PgdeltaNothingCaptured
        exp_alerts:
          - exp_labels: {pipeline: shop, instance: i}
            exp_annotations: {summary: "shop has captured no commit for 28m 0s."}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of prometheus and promtool: this machine's, or of Debian's package, unpacked."""
    if (found := shutil.which("prometheus")) and shutil.which("promtool"):
        return Path(found).parent
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("there is no prometheus, and no apt-get to download one")
    folder = tmp_path_factory.mktemp("prometheus")
    done = subprocess.run(
        ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, check=False
    )
    packages = list(folder.glob("*.deb"))
    if not packages:
        pytest.skip(f"prometheus cannot be downloaded: {done.stderr[-200:]}")
    subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], check=True)
    return folder / "usr" / "bin"


def test_promtool_accepts_the_rules_and_they_fire_as_they_should(programs: Path, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "rules.yml")
    (tmp_path / "tests.yml").write_text(TESTS)
    for arguments in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        run_command(programs / "promtool", *arguments, cwd=tmp_path)


@contextmanager
def prometheus(programs: Path, folder: Path, scraped: int) -> Iterator[str]:
    """Run Prometheus with the rules on the metrics of a port, until the block ends; give its address."""
    port = find_free_port()
    shutil.copy(RULES, folder / "rules.yml")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: pgdelta, static_configs: [{{targets: ['127.0.0.1:{scraped}']}}]}}]\n"
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                programs / "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(address: str, path: str, **parameters: str) -> Any:
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return found["data"]


@pytest.mark.promise("dashboards")
@pytest.mark.spark
def test_each_query_of_the_dashboard_is_answered_for_a_run(
    programs: Path, pipeline: Pipeline, tmp_path: Path
) -> None:
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE day (id int PRIMARY KEY, d date)"
    )
    rule = TableRule("public.day", misfit="error")
    pipeline = replace(pipeline, config=replace(pipeline.config, tables=(rule, TableRule("*.*"))))
    port = find_free_port()
    options = WatchOptions("continuous", Address("127.0.0.1", port))
    with (
        Observers(pipeline.config, options, "run") as observers,
        prometheus(programs, tmp_path, port) as address,
        running_both(pipeline.config, ingest_progress=observers.on_ingest, apply_progress=observers.on_apply),
    ):
        deadline, number = time.monotonic() + 300, 0
        # not all at once: what a failed scrape did not bring is missing until the next one
        missing = {title for title, _ in queries()} - MAY_BE_EMPTY
        retained: list[Any] = []
        is_held = False
        while missing or not retained or not is_held:
            assert time.monotonic() < deadline, (missing, retained, is_held, scrape_errors(address))
            number += 1
            pipeline.run(f"INSERT INTO t VALUES ({number}, 'v')")
            if number == 10:
                pipeline.run("INSERT INTO day VALUES (1, 'infinity')")
            time.sleep(1)
            try:
                for title, expression in queries():
                    if ask(address, "query", query=expression.replace("$pipeline", ".*"))["result"]:
                        missing.discard(title)
                retained = (
                    ask(address, "query", query="pgdelta_slot_retained_wal_bytes")["result"] or retained
                )
                alerts = ask(address, "alerts")["alerts"]
                [group] = ask(address, "rules")["groups"]
                labels = ask(address, "label/pipeline/values", **{"match[]": "pgdelta_info"})
            except OSError:
                continue  # it is starting, or busy
            is_held = any(
                each["labels"].get("table") == "day" and each["labels"]["alertname"] == "PgdeltaTableHeld"
                for each in alerts
            )
        assert {each["name"] for each in group["rules"]} == {each["alert"] for each in rules()}
        assert {each["health"] for each in group["rules"]} == {"ok"}
        assert float(retained[0]["value"][1]) >= 0
        assert labels == [pipeline.config.pipeline]


def scrape_errors(address: str) -> object:
    """Return why Prometheus has no newer samples, for the message of a test that failed."""
    try:
        return [each["lastError"] for each in ask(address, "targets")["activeTargets"]]
    except OSError as error:
        return str(error)
