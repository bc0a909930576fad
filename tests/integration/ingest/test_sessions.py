"""The sessions of a run at the source: few, and none is used after it was lost."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import yaml

from pipeline.config.load import load_config
from pipeline.operate.run import run_both
from pipeline.postgres.connection import borrow, connect
from pipeline.postgres.replication.walsender import start_walsender
from tests.support.paths import ROOT
from tests.support.proxy import Proxy
from tests.support.servers import Database

SESSIONS = 3  # the walsender, the one with the lock of the slot, the one that polls for copies
# Spark's packages cannot be imported
RUN = """
import json, sys
for name in ("pyspark", "py4j", "delta"):
    sys.modules[name] = None
from pipeline.cli.main import main
code = main(sys.argv[1:])
heavy = {"pandas", "deltalake", "prometheus_client", "xml.etree.ElementTree", "rich"}
print(json.dumps(sorted(heavy & set(sys.modules))))
sys.exit(code)
"""


def test_a_scheduled_run_opens_three_sessions(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    file = tmp_path / "c.yaml"
    with Proxy(database.server.port) as proxy:
        source = {"conninfo": proxy.conninfo(database.conninfo), "publication": database.name}
        content = {"pipeline": database.name, "source": source, "storage": {"root": str(tmp_path / "lake")}}
        file.write_text(yaml.safe_dump({**content, "tables": [{"source": "public.*"}]}))
        run_both(load_config(file))
        database.run("INSERT INTO t VALUES (2)")
        before = proxy.link_count
        command = [sys.executable, "-c", RUN, "run", "--config", str(file), "--json"]
        environ = {**os.environ, "PATH": "/nowhere"}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result, imported = map(json.loads, done.stdout.splitlines())
    assert result["ingest"]["changes"] == 1
    assert (proxy.link_count - before, imported) == (SESSIONS, [])


def test_a_lost_session_or_a_failed_transaction_is_not_borrowed(database: Database) -> None:
    name = database.name
    database.publish_all(name)
    database.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    options = {"proto_version": "1", "publication_names": name}
    with closing(connect(database.conninfo)) as shared:
        with borrow(shared, database.conninfo) as session:
            assert session is shared
        shared.execute("BEGIN")
        with borrow(shared, database.conninfo) as session:
            assert session is not shared
        shared.execute("ROLLBACK")
        with closing(
            start_walsender(database.conninfo, name, name, options=options, shared=shared)
        ) as stream:
            database.run(f"SELECT pg_terminate_backend({shared.info.backend_pid})")
            assert stream.confirm(30)
