"""Mixed: 300,000 transactions over ten tables, beside pg_recvlogical and a warm ideal MERGE of each table.

The load has inserts, updates that do not send a TOASTed value, key changes, deletes and a TRUNCATE. A second
pipeline captures it alone, for the figure of capture. Then ingest captures it while apply, which is warm,
follows: from the start of ingest until silver shows all. In the end silver and source are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.bench.limits import Measured
from tools.bench.rig import Rig, Source

TABLES = 10
ROWS = 20_000
TRANSACTIONS = 300_000
CREATE = (
    "CREATE TABLE {table} (id bigserial PRIMARY KEY, customer int, amount numeric(12,2), note text, "
    "at timestamptz DEFAULT now(), body text)",
    "ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO {table} (customer, amount, note, body) SELECT g % 1000, g / 7.0, 'row ' || g, {body} "
    "FROM generate_series(1, {rows}) g",
)
TRUNCATED = "t9"
_INSERT = "INSERT INTO {} (customer, amount, note, body) VALUES (:id, :id / 7.0, 'placed by ' || :id, {});"
_UPDATE = "UPDATE {} SET amount = amount + 1, at = now() WHERE id = :id;"
_KEY_CHANGE = "UPDATE {} SET id = id + 1000000000 WHERE id = :id;"
_DELETE = "DELETE FROM {} WHERE id = :id + 1;"


def measure_mixed(rig: Rig) -> Iterator[Measured]:
    """Write the WAL once, read it three times, merge it twice."""
    rows = rig.size(ROWS, 100)
    with rig.source("mixed") as source:
        tables = create(source, rows)
        config = rig.configure(source)
        alone = rig.configure(source, pipeline="mixed_capture", copy="never")
        rig.say("first load")
        rig.ingest(config)
        rig.ingest(alone)
        source.create_slot("mixed_reference")
        with rig.follow("mixed", tables) as logs, rig.job("apply", config) as apply:
            logs.wait(0, apply.check)
            _warm_up(source, tables)
            lsn = close(source, tables)
            rig.ingest(config)
            logs.wait(lsn, apply.check)
            for table in tables:
                for copy in ("warm", "ideal"):
                    rig.ideal.copy_table(rig.silver("mixed", table), _path(rig, copy, table))
            rig.ingest(alone)
            source.recvlogical("mixed_reference", "mixed")
            rig.say("load")
            _load(rig, source, rows)
            lsn = close(source, tables)
            rig.say("pg_recvlogical, ingest alone, ingest and apply")
            reference = source.recvlogical("mixed_reference", "mixed")
            capture = rig.ingest(alone).seconds
            yield Measured("reference", reference)
            yield Measured("capture", capture)
            yield Measured("capture_ratio", reference / capture)
            began = rig.clock()
            ingest = rig.ingest(config)
            end_to_end = logs.wait(lsn, apply.check) - began
            apply.stop()
        rig.say("ideal MERGE")
        ideal = _ideal(rig, tables)
        yield Measured("mixed_ideal", ideal)
        yield Measured("end_to_end", end_to_end)
        yield Measured("end_to_end_ratio", (reference + ideal) / end_to_end)
        yield Measured("mixed_memory", ingest.peak_mib + apply.peak_mib)
        rig.say("comparison of silver and source")
        rig.reconcile(config)


def create(source: Source, rows: int) -> list[str]:
    """Create the tables with their first rows; return their names."""
    tables = [f"t{number}" for number in range(TABLES)]
    for number, table in enumerate(tables):
        body = _body(number, "g")
        source.execute(*(each.format(table=table, rows=rows, body=body) for each in CREATE))
    return tables


def scripts() -> list[str]:
    """Return a script for each table; a random row is of those that the first load made."""
    found = []
    for number in range(TABLES):
        table = f"t{number}"
        statements = [_INSERT.format(table, _body(number, ":id")), _UPDATE.format(table)]
        if number in (3, 4):
            statements.append(_KEY_CHANGE.format(table))
        if number % 2:
            statements.append(_DELETE.format(table))
        found.append("\n".join(("\\set id random(1, {rows})", "BEGIN;", *statements, "COMMIT;", "")))
    return found


def close(source: Source, tables: list[str]) -> int:
    """Change every table once more; return an LSN before."""
    lsn = source.lsn()
    source.transaction(*(f"INSERT INTO {table} (customer) VALUES (0)" for table in tables))
    return lsn


def _body(number: int, value: str) -> str:
    """Return SQL for a value that is TOASTed, in the first table only."""
    return f"repeat(md5(({value})::text), 100)" if number == 0 else "NULL"


def _load(rig: Rig, source: Source, rows: int) -> None:
    """Run the transactions, with a TRUNCATE between two halves."""
    half = rig.size(TRANSACTIONS, 1000) // 2
    filled = [script.replace("{rows}", str(rows)) for script in scripts()]
    source.pgbench(filled, half)
    source.execute(f"TRUNCATE {TRUNCATED}")
    source.pgbench(filled, half)


def _warm_up(source: Source, tables: list[str]) -> None:
    for table in tables:
        source.execute(f"UPDATE {table} SET note = 'warm' WHERE id <= 100")


def _ideal(rig: Rig, tables: list[str]) -> float:
    """Return the seconds of the second of two rounds of MERGEs, into tables of equal content."""
    seconds = 0.0
    for table in tables:
        old, new = _path(rig, "ideal", table), rig.silver("mixed", table)
        rig.ideal.write_net_changes(old, new, "id", _path(rig, "net", table))
    for copy in ("warm", "ideal"):
        changes = {_path(rig, copy, table): _path(rig, "net", table) for table in tables}
        seconds = rig.ideal.merge(changes, "id")
    return seconds


def _path(rig: Rig, kind: str, table: str) -> Path:
    return rig.root("mixed") / "ideal" / f"{kind}_{table}"
