"""Make the small lake of a release that all later ones have to continue: `python -m tools.release_lake`.

It is written to `tests/lakes/<release>.tar.xz`, by the code that Python finds as `pipeline`: run it in a
checkout of the release's tag. The lake has tables of
every mode and without a key, partitions, a renamed and a widened column, key changes, truncations, deletes, a
table that a misfit holds, and changes that silver does not have yet.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pipeline
from pipeline import __version__
from pipeline.apply.job import run_apply
from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.ingest.job import run_ingest
from pipeline.postgres.connection import connect, identify
from pipeline.protocol.lsn import LSN
from tests.support.moves import advance_wal, database_of
from tests.support.paths import ROOT
from tests.support.postgres import templates
from tests.support.release_lakes import NAME, OIDS, config_of
from tests.support.servers import Database

CONFIGURATION = """\
pipeline: shop
source:
  conninfo: "${PGDELTA_CONNINFO}"
storage:
  root: "${PGDELTA_LAKE}"
silver:
  writer: native
tables:
  - {source: public.sessions, mode: soft_delete}
  - {source: public.prices, mode: history}
  - {source: public.journal, mode: append}
  - source: public.readings
    misfits: {taken: error}
  - source: "public.*"
"""
BEFORE = (
    "CREATE TYPE mood AS ENUM ('ok', 'sad')",
    "CREATE TABLE customers (id int PRIMARY KEY, name text, balance numeric(12,2), tags text[], note text,"
    " state mood, born date, seen timestamptz, big text)",
    "ALTER TABLE customers ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE orders (id bigint, line int, item varchar(40), quantity int, document jsonb, gone int,"
    " PRIMARY KEY (id, line))",
    "CREATE TABLE lines (n int, v text)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "CREATE TABLE prices (id int PRIMARY KEY, amount numeric(10,2), valid date)",
    "CREATE TABLE sessions (id uuid PRIMARY KEY, who text, at timestamp)",
    "CREATE TABLE journal (id int PRIMARY KEY, what text)",
    "CREATE TABLE readings (id int PRIMARY KEY, taken timestamp, value double precision, raw bytea)",
    "CREATE TABLE visits (id int, day date, page text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
    "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    "CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
    f"CREATE PUBLICATION {NAME} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    "INSERT INTO customers SELECT g, 'name ' || g, g * 1.25, ARRAY['a', NULL, g::text], 'note ' || g % 7,"
    " CASE WHEN g % 3 = 0 THEN 'sad' ELSE 'ok' END::mood, date '1970-01-01' + g,"
    " timestamptz '2026-01-01 00:00:00Z' + g * interval '1 hour', repeat('x', 3000) || g"
    " FROM generate_series(1, 120) g",
    "INSERT INTO orders SELECT g / 3, g % 3, 'item ' || g, g, jsonb_build_object('n', g, 'é', NULL), g"
    " FROM generate_series(1, 300) g",
    "INSERT INTO lines SELECT g % 20, 'v' || g % 3 FROM generate_series(1, 100) g",
    "INSERT INTO prices SELECT g, g / 4.0, date '2026-01-01' + g FROM generate_series(1, 40) g",
    "INSERT INTO sessions SELECT md5(g::text)::uuid, 'who ' || g,"
    " timestamp '2026-01-01' + g * interval '1 min' FROM generate_series(1, 40) g",
    "INSERT INTO journal SELECT g, 'what ' || g FROM generate_series(1, 20) g",
    "INSERT INTO readings SELECT g, timestamp '2026-01-01' + g * interval '1 s', g / 3.0,"
    " decode('00ff', 'hex') FROM generate_series(1, 30) g",
    "INSERT INTO visits SELECT g, date '2026-01-15' + g % 30, 'page ' || g FROM generate_series(1, 60) g",
)
CHANGES = (
    "UPDATE customers SET balance = balance + 1 WHERE id <= 30",
    "UPDATE customers SET id = id + 10000 WHERE id <= 5",
    "ALTER TABLE customers RENAME note TO remark",
    "ALTER TABLE customers ADD COLUMN score int DEFAULT 7",
    "INSERT INTO customers (id, name, remark) VALUES (500, 'renamed', 'a remark')",
    "DELETE FROM orders WHERE id BETWEEN 20 AND 25",
    "ALTER TABLE orders ALTER quantity TYPE bigint",
    "UPDATE orders SET quantity = 5000000000 WHERE id = 30",
    "UPDATE orders SET id = id + 100000, document = NULL WHERE id < 3",
    "ALTER TABLE orders DROP COLUMN gone",
    "UPDATE orders SET item = 'changed' WHERE id = 40",
    "DELETE FROM lines WHERE n < 5",
    "TRUNCATE lines",
    "INSERT INTO lines SELECT 3, 'again' FROM generate_series(1, 7)",
    "UPDATE prices SET amount = amount * 2 WHERE id % 2 = 0",
    "DELETE FROM prices WHERE id > 35",
    "DELETE FROM sessions WHERE who LIKE '%5'",
    "UPDATE sessions SET who = 'other' WHERE who LIKE '%7'",
    "UPDATE journal SET what = 'corrected' WHERE id = 3",
    "DELETE FROM journal WHERE id = 4",
    "UPDATE readings SET value = 'NaN' WHERE id = 1",
    "INSERT INTO readings VALUES (100, 'infinity', 1, NULL)",
    "DELETE FROM readings WHERE id = 9",
    "UPDATE visits SET day = day + 20 WHERE id = 4",
    "DELETE FROM visits WHERE id % 9 = 0",
)
PENDING = (
    "UPDATE customers SET remark = NULL WHERE id BETWEEN 40 AND 60",
    "ALTER TABLE customers ADD COLUMN late text",
    "UPDATE customers SET late = 'late', big = big WHERE id = 41",
    "DELETE FROM customers WHERE id = 10001",
    "INSERT INTO orders VALUES (7000, 1, 'pending', 1, '[1, 2]')",
    "INSERT INTO lines SELECT 3, 'again' FROM generate_series(1, 3)",
    "UPDATE prices SET amount = 0 WHERE id = 2",
    "DELETE FROM sessions WHERE who = 'other'",
    "INSERT INTO journal VALUES (300, 'pending')",
    "UPDATE readings SET taken = timestamp '2026-02-01' WHERE id = 100",
    "TRUNCATE visits",
    "INSERT INTO visits VALUES (1, '2026-02-03', 'after')",
)
_WINDOW = (
    64 << 20
)  # bytes of WAL without a change before the offset: in it, the slot of a later source begins


def make_lake(database: Database, folder: Path) -> None:
    """Make the lake of a new database in a folder, with its configuration and the facts of its source."""
    (folder / "pipeline.yaml").write_text(CONFIGURATION, encoding="utf-8")
    config = config_of(folder, database)
    for statements in (BEFORE, CHANGES, PENDING):
        database.run(*statements)
        run_ingest(config)
        if statements is not PENDING:
            run_apply(config)
    last_commit = database.flush_lsn()
    advance_wal(database, LSN(last_commit + _WINDOW))
    run_ingest(config)
    with connect(config.source.conninfo) as connection:
        identity = identify(connection)
    facts = {
        "release": __version__,
        "commit": _git("rev-parse", "HEAD"),
        "major": database.server_major,
        "system_identifier": identity.system_identifier,
        "statements": [*BEFORE, *CHANGES, *PENDING],
        "oids": dict(database.run(OIDS)),
        "last_commit": str(last_commit),
        "offset": str(Bronze(Lake(config.storage), config.pipeline).require_offset().lsn),
    }
    (folder / "source.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")


def _git(*arguments: str) -> str:
    """Return what git says of the checkout of the code."""
    command = ["git", "-C", str(Path(pipeline.__file__).parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main(arguments: Sequence[str]) -> int:
    """Make the archive in a folder, by default `tests/lakes`; return the exit code."""
    target = Path(arguments[0] if arguments else ROOT / "tests" / "lakes", f"{__version__}.tar.xz")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "release")
        folder.mkdir()
        templates.make_folder()
        server = templates.start_server(Path(scratch, "server"))
        try:
            make_lake(database_of(server, NAME), folder)
        finally:
            server.stop()
            templates.remove_folder()
        with tarfile.open(target, "x:xz", preset=9) as archive:
            for name in ("pipeline.yaml", "source.json", "lake"):
                archive.add(folder / name, name, filter=_anonymous)
    print(f"wrote {target}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
