"""`pgdelta capsule`: it says what is wrong, and has no value of a row, no key and no secret."""

import json
import stat
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.config import Config
from pipeline.config.jobs import Catalog, CatalogService
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.errors import ConfigError
from pipeline.key_ranges import KeyRange
from pipeline.maintenance.job_tables import OWN_TABLES
from pipeline.operate.pause import pause_tables
from pipeline.operate.resync import run_resync
from pipeline.report.capsule import OWN_SHAPES, known_secrets, public_configuration, redact, write_capsule
from pipeline.verify.reconcile import run_reconcile
from tests.support.pipelines import Pipeline, with_rules

pytestmark = pytest.mark.postgres

HASH_KEY = "planted-hash-key-0123456789"
#: Values of rows, of every kind of place in which the lake has values, and secrets.
VALUES = ("planted-value", "987654321987", "1999-09-19", "planted-key", "planted-misfit", "31337.31337")
SECRETS = (HASH_KEY, "planted-password", "planted-environment", "planted-mask", "planted-comment")


def parts(file: str) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }


def plant(pipeline: Pipeline) -> Pipeline:
    """Fill tables with planted values, and cause everything that an event or an error text describes."""
    rule = TableRule(
        "public.planted",
        columns=ColumnRules(hash={"person": "hmac-sha256"}, mask={"card": "planted-mask"}),
        comment="planted-comment",
        properties={"team": "planted-mask"},
    )
    refusing = TableRule("public.refused", misfits={"day": "error"})
    life = with_rules(pipeline, rule, refusing, TableRule("public.*"))
    source = replace(life.config.source, hash_key=HASH_KEY, password_command=("token", "planted-password"))
    life = replace(life, config=replace(life.config, source=replace(source, password_command=())))
    life.ingest(
        "CREATE TABLE planted (id text PRIMARY KEY, person text, card text, note text, n bigint, day date)",
        "CREATE TABLE refused (id int PRIMARY KEY, day date)",
        "CREATE TABLE changed (id int PRIMARY KEY, n numeric)",
        "COMMENT ON TABLE changed IS 'planted-comment'",
    )
    life.ingest(
        "INSERT INTO planted VALUES ('planted-key', 'planted-value', 'planted-value', 'planted-value',"
        " 987654321987, '1999-09-19')",
        "INSERT INTO planted SELECT 'planted-key' || g, 'planted-value', 'planted-value', 'planted-value', g,"
        " 'infinity' FROM generate_series(1, 50) g",
        "INSERT INTO refused VALUES (1, '1999-09-19')",
        "INSERT INTO changed VALUES (1, 31337.31337)",
    )
    life.apply()
    life.ingest(
        "INSERT INTO refused VALUES (2, 'infinity')",
        "ALTER TABLE changed ADD COLUMN later text DEFAULT 'planted-value'",
        "INSERT INTO changed VALUES (2, 31337.31337, 'planted-value')",
        "ALTER TABLE changed ALTER n TYPE text",
        "INSERT INTO changed VALUES (3, 'planted-misfit')",
        "UPDATE planted SET id = 'planted-key-moved' WHERE id = 'planted-key'",
    )
    life.apply()
    path = life.path("silver", "public", "planted")
    life.session.sql(f"UPDATE delta.`{path}` SET note = 'planted-value changed' WHERE n = 7")
    run_reconcile(life.config, ["public.planted"], runs=True)
    run_resync(
        life.config,
        ["public.planted"],
        key_ranges=[KeyRange(("planted-key1",), ("planted-key1",))],
    )
    pause_tables(life.config, ["public.planted"], reason="a fault")
    return life


def with_secrets(config: Config) -> Config:
    """Return the configuration as a file with secrets in variables gives it."""
    conninfo = f"{config.source.conninfo} password=planted-password"
    return replace(config, source=replace(config.source, conninfo=conninfo))


class Metrics(BaseHTTPRequestHandler):
    """Serves metrics, as a job does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'pgdelta_lag_seconds{table="planted"} 7\n')

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.mark.spark
def test_it_has_what_helps_and_no_value_no_key_and_no_secret(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "planted-environment")
    life = plant(pipeline)
    log = tmp_path / "run.log"
    event = {"time": "2026-01-01T00:00:00Z", "event": "held", "pipeline": "shop", "command": "apply"}
    log.write_text(
        json.dumps({**event, "sentence": "Table public.refused is held."})
        + "\nTraceback: planted-value 987654321987\n{not json planted-value}\n"
        + json.dumps({"row": "planted-value"})
        + "\n"
        + json.dumps({**event, "sentence": "planted-environment planted-password " + HASH_KEY})
        + "\n"
    )
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        file = str(tmp_path / "capsule.tar.gz")
        metrics = ("127.0.0.1", server.server_address[1])
        made = write_capsule(with_secrets(life.config), file, logs=[str(log)], metrics=metrics)
    finally:
        server.shutdown()
        server.server_close()
    found = parts(file)
    for name, text in found.items():
        for planted in (*VALUES, *SECRETS):
            assert planted not in text, f"{planted} in {name}"
    assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
    assert made.failures == []
    assert made.parts == {name: len(text.encode()) for name, text in found.items()}

    tables = {each.get("table"): each for each in json.loads(found["tables.json"])}
    planted = tables["planted"]["silver"]
    assert planted["rows"] == 51
    assert {column["name"]: column["type"] for column in planted["columns"]}["n"] == "BIGINT"
    assert tables["bronze/changes"]["rows"] > 51
    states = {each["table"]: each["state"] for each in json.loads(found["status.json"])["tables"]}
    assert (states["refused"], states["planted"]) == ("refused", "paused")
    kinds = {each["kind"] for each in json.loads(found["_pgdelta/events.json"])}
    assert {"refused", "evolved", "paused"} <= kinds
    [misfit] = [each for each in json.loads(found["misfits.json"]) if each["table"] == "planted"]
    assert (misfit["column"], misfit["count"], misfit["policy"]) == ("day", 50, "null")
    [verdict] = json.loads(found["_pgdelta/reconciliations.json"])
    assert (verdict["verdict"], verdict["changed"], verdict["columns"]) == ("different", 1, ["note"])
    configuration = json.loads(found["configuration.json"])
    assert configuration["source"]["hash_key"] == "set"
    assert configuration["source"]["conninfo"]["password"] == "…"
    assert configuration["source"]["conninfo"]["dbname"] == life.database.name
    assert configuration["tables"][0]["columns"]["mask"] == {"card": "a text"}
    assert json.loads(found["versions.json"])["packages"]["pyspark"]
    assert "pgdelta_lag_seconds" in found["metrics.txt"]
    assert '{"lines": {"kept": 2, "left out": 3}}' in found["logs/0-run.log.jsonl"]
    assert "Table public.refused is held." in found["logs/0-run.log.jsonl"]


def test_what_cannot_be_read_is_a_sentence_in_it(tmp_path: Path, pipeline: Pipeline) -> None:
    config = replace(
        pipeline.config,
        source=replace(
            pipeline.config.source,
            conninfo="host=127.0.0.1 port=1 password=planted-password connect_timeout=2",
        ),
    )
    file = str(tmp_path / "capsule.tar.gz")
    made = write_capsule(config, file, metrics=("127.0.0.1", 1))
    assert any(sentence.startswith("metrics: ") for sentence in made.failures)
    found = parts(file)
    assert "planted-password" not in "".join(found.values())
    assert "not read: metrics: " in found["README.txt"]
    assert json.loads(found["status.json"])["source_failure"]
    with pytest.raises(ConfigError, match="The file exists, and is not replaced"):
        write_capsule(config, file)


def test_it_has_the_shape_of_every_table_of_the_lake() -> None:
    assert {(room, name) for room, names in OWN_SHAPES.items() for name in names} == set(OWN_TABLES)


def test_secrets_are_found_in_every_form() -> None:
    uri = "postgresql://me:pl%40nted-pass@db/shop?sslpassword=sslpl%40nted"
    base = Config("shop")
    config = replace(base, source=replace(base.source, conninfo=uri, hash_key=HASH_KEY))
    options = {"secret_access_key": "planted-access", "region": "us-east-1"}
    config = replace(config, storage=replace(config.storage, options=options))
    target = CatalogService("unity", uri="https://u", catalog="main", token="planted-unity")
    config = replace(config, catalog=Catalog("{schema}", targets=(target,)))
    assert public_configuration(config)["storage"]["options"] == ["region", "secret_access_key"]
    assert public_configuration(config)["catalog"]["targets"][0]["token"] == "set"
    assert redact("planted-unity", known_secrets(config, {})) == "***"
    assert redact("planted-access us-east-1", known_secrets(config, {})) == "*** us-east-1"
    secrets = known_secrets(config, {"PGPASSWORD": 'quo"ted-secret', "PGPORT": "5432", "API_KEY": "12345678"})
    text = f'pl@nted-pass pl%40nted-pass sslpl@nted {HASH_KEY} quo"ted-secret quo\\"ted-secret 12345678'
    assert redact(text, secrets) == "*** *** *** *** *** *** 12345678"
    assert public_configuration(config)["source"]["conninfo"] == {
        "user": "me",
        "host": "db",
        "dbname": "shop",
        "sslpassword": "…",
    }
    command = replace(
        config, source=replace(config.source, conninfo="", password_command=("/x/token", "s3cr3t"))
    )
    assert public_configuration(command)["source"]["password_command"] == "token and 1 argument"
