"""Silver is proved by the fingerprints of its files: each is read once, and a damaged one is named."""

import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.config.jobs import Verify
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake, LakeTable
from pipeline.errors import LakeError
from pipeline.ingest.job import run_ingest
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.reconciliations import (
    DIFFERENT,
    EQUAL,
    PROVE,
    RECONCILE,
    UNPROVEN,
    Method,
    Reconciliations,
)
from pipeline.metadata.registry import Records
from pipeline.operate.rebuild import run_rebuild
from pipeline.report.status import read_status
from pipeline.table_name import TableName
from pipeline.verify.audit_silver import DAMAGED, UNKNOWN, WHOLE, AuditedTable, run_silver_audit
from pipeline.verify.fingerprint import read_query, run_fingerprint
from pipeline.verify.prove import due_tables, run_prove
from pipeline.verify.reconcile import run_reconcile
from pipeline.verify.reconcile_report import Reconciled
from pipeline.verify.schedule import proving
from tests.support.pipelines import MakePipeline, Pipeline, with_rules
from tests.support.threads import in_threads, wait_until

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), weight float8, day date,"
    " at timestamptz, tags text[], raw bytea)",
    "CREATE TABLE divided (id int PRIMARY KEY, region text, v text)",
    "CREATE TABLE marked (id int PRIMARY KEY, v text)",
    "INSERT INTO items SELECT i, nullif('item ' || i % 7, 'item 3'), i / 7.0, i / 7.0::float8,"
    " date '2000-01-01' + i, timestamptz '2024-01-01 00:00:00+00' + i * interval '1 hour',"
    " ARRAY['a', 'b,' || i, NULL], decode(to_hex(4096 + i), 'hex') FROM generate_series(1, 400) i",
    "INSERT INTO divided SELECT i, 'r' || i % 3, 'v' || i FROM generate_series(1, 90) i",
    "INSERT INTO marked SELECT i, 'v' || i FROM generate_series(1, 20) i",
)
RULES = (
    TableRule("public.divided", partition_by=("region",)),
    TableRule("public.marked", mode="soft_delete"),
    TableRule("public.*"),
)


@pytest.fixture
def proved(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose tables were copied and proved."""
    pipeline = with_rules(make_pipeline(copy="initial", create_publication="all"), *RULES)
    pipeline.catch_up(*TABLES)
    assert prove(pipeline) == ({"items": EQUAL, "divided": EQUAL, "marked": EQUAL}, 5, 0)
    return pipeline


def prove(pipeline: Pipeline, **options: object) -> tuple[dict[str, str], int, int]:
    """Return the verdicts of a proof, and how many files were read and were recorded."""
    found: Reconciled = run_prove(pipeline.config, wait=5, runs=True, **options)  # type: ignore[arg-type]
    assert found.files is not None
    return {each.name.table: each.verdict for each in found.verdicts}, *found.files


def silver(pipeline: Pipeline, name: str) -> LakeTable:
    return LakeTable(f"{pipeline.root}/silver/public/{name}")


def equal(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, EQUAL)


ALL = equal("items", "divided", "marked")


@pytest.mark.promise("proof")
def test_a_proof_reads_only_files_that_are_new_or_change(proved: Pipeline) -> None:
    assert prove(proved) == (ALL, 0, 5)
    proved.run("UPDATE divided SET v = 'w' WHERE region = 'r1'", "DELETE FROM marked WHERE id < 5")
    assert prove(proved) == (ALL, 2, 3)  # bronze has these changes, and silver lacks them
    assert prove(proved, budget="1MB/s") == (ALL, 2, 3)
    proved.catch_up()
    assert prove(proved) == (ALL, 2, 3)
    assert prove(proved) == (ALL, 0, 5)

    proved.run("ALTER TABLE items ADD COLUMN more text", "ALTER TABLE items RENAME name TO title")
    proved.catch_up("UPDATE items SET more = ':' WHERE id = 1")
    assert prove(proved) == (ALL, 1, 4)
    proved.run("ALTER TABLE divided ADD COLUMN more text", "INSERT INTO divided VALUES (100, 'r9', 'v', 'm')")
    proved.catch_up()
    assert prove(proved) == (ALL, 1, 5)  # the files without the new column keep their fingerprints

    recorded = {each.name.table: each for each in run_fingerprint(proved.config).tables}
    status = read_status(proved.config).tables
    for table in status:
        assert table.verified is not None
        assert (table.verified.method, recorded[table.name.table].fingerprint is not None) == (PROVE, True)


@pytest.mark.promise("verified manifests")
def test_a_manifest_says_where_each_table_was_found_equal(proved: Pipeline) -> None:
    def verified() -> dict[str, tuple[object, str | None]]:
        proved.run("UPDATE marked SET v = v || '.' WHERE id > 10")
        proved.catch_up()
        manifest = Manifests(Lake(proved.config.storage)).last()
        assert manifest is not None
        for each in manifest.entries:
            assert (each.verified_at is None) == (each.verified_lsn is None) == (each.verified_by is None)
        return {each.table_name: (each.verified_lsn, each.verified_by) for each in manifest.entries}

    compared = Records(Lake(proved.config.storage)).equal()
    by_prove = {name.table: (found.lsn, PROVE) for name, found in compared.items()}
    assert by_prove.keys() == ALL.keys()
    proved.run("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    assert verified() == {**by_prove, "later": (None, None)}
    [again] = run_reconcile(proved.config, ["public.items"], wait=5, runs=True).verdicts
    by_prove["items"] = (again.lsn, RECONCILE)
    assert verified() == {**by_prove, "later": (None, None)}
    proved.run("ALTER TABLE items RENAME TO items_old", "ALTER TABLE later RENAME TO items")
    proved.run("INSERT INTO items VALUES (2)", "UPDATE items_old SET name = 'other' WHERE id = 1")
    none = dict.fromkeys(("items", "items_old"), (None, None))  # another table has the name now
    assert verified() == {"divided": by_prove["divided"], "marked": by_prove["marked"], **none}

    for path in Path(proved.root, "_pgdelta", "reconciliations").glob("*.parquet"):
        path.write_bytes(b"damaged")
    proved.run("INSERT INTO items VALUES (3)")
    proved.ingest()
    with pytest.raises(LakeError, match="damaged"):
        proved.apply()
    assert silver(proved, "items").row_count() == 3  # it was written before


@pytest.mark.promise("proof")
def test_a_proof_finds_rows_that_no_commit_of_pgdelta_wrote(proved: Pipeline) -> None:
    table, where = silver(proved, "items"), pc.field("id") == 7
    rows = table.rows(where=where)
    table.delete_rows(where, "id = 7", table.schema().names)
    table.append_rows(rows.set_column(1, "name", pa.array(["other"])), "")
    found = run_prove(proved.config, wait=5, runs=True)
    verdicts = {each.name.table: each for each in found.verdicts}
    assert {name: each.verdict for name, each in verdicts.items()} == {**ALL, "items": DIFFERENT}
    [row] = verdicts["items"].rows
    assert (row.kind, row.key, row.columns) == ("changed", '{"id": "7"}', ("name",))
    doubts = {each.name.table: each.doubt for each in read_status(proved.config).tables if each.doubt}
    assert doubts.keys() == {"items"}
    assert f"differed from its source at {verdicts['items'].lsn} (prove)" in doubts["items"].sentence


@pytest.mark.promise("proof")
@pytest.mark.parametrize("method", [PROVE, RECONCILE])
def test_a_table_that_has_left_the_publication_is_not_proven(proved: Pipeline, method: Method) -> None:
    proved.run("DELETE FROM items WHERE id < 10", "ALTER TABLE items SET UNLOGGED")
    found = run_reconcile(proved.config, wait=5, runs=True, method=method)
    verdicts = {each.name.table: each for each in found.verdicts}
    assert {name: each.verdict for name, each in verdicts.items()} == {
        "items": UNPROVEN,
        **equal("divided", "marked"),
    }
    assert str(verdicts["items"].sentence).startswith("It is not published any more")


@pytest.mark.promise("proof")
def test_tables_are_due_by_the_age_of_their_last_proof(proved: Pipeline) -> None:
    config = replace(proved.config, verify=Verify(every=3600, budget=1 << 30))
    now = datetime.now(timezone.utc)
    assert due_tables(config, now) == []
    later = due_tables(config, now + timedelta(hours=2))
    assert sorted(later) == [TableName("public", name) for name in ("divided", "items", "marked")]
    nothing = run_prove(config, due=True, wait=5)
    assert (nothing.verdicts, nothing.exit_code(strict=True)) == ((), 0)
    soon = replace(proved.config, verify=Verify(every=0))
    found = run_prove(soon, due=True, wait=5, runs=True)
    assert {each.name.table: each.verdict for each in found.verdicts} == ALL
    assert found.files == (0, 5)


@pytest.mark.promise("proof")
def test_a_continuous_job_proves_tables_that_are_due(proved: Pipeline) -> None:
    proved.config = replace(proved.config, verify=Verify(every=1))
    before = read_proofs(proved)

    def ingest(stop: threading.Event) -> None:
        with proving(proved.config, "continuous", stop):
            run_ingest(proved.config, trigger="continuous", stop=stop)

    def is_proved() -> bool:
        proved.run("UPDATE marked SET v = 'later' WHERE id = 20")  # bronze goes on beyond the snapshot
        return all(at > before[name] for name, at in read_proofs(proved).items())

    with in_threads(ingest):
        wait_until(is_proved)
    compared = Reconciliations(Lake(proved.config.storage)).compared()
    assert {name.table: found.last == found.equal for name, found in compared.items()} == dict.fromkeys(
        ALL, True
    )


def read_proofs(pipeline: Pipeline) -> dict[str, datetime]:
    compared = Reconciliations(Lake(pipeline.config.storage)).compared()
    return {name.table: found.last.at for name, found in compared.items()}


def damage(path: Path, change: str) -> None:
    """Change a data file of the table items in place, as a disk or another program would."""
    if change == "flipped bit":
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        return
    rows = pq.read_table(path)
    names, values = rows.schema.get_field_index("name"), rows.column("name").to_pylist()
    if change == "swapped values":
        values[10], values[11] = values[11], values[10]
        rows = rows.set_column(names, rows.schema.field(names), pa.array(values))
    elif change == "lost row":
        rows = rows.slice(1)
    else:
        rows = pa.concat_tables([rows.slice(0, 1), rows])
    pq.write_table(rows, path)


@pytest.mark.promise("audit of silver")
def test_an_audit_names_the_file_that_was_damaged(proved: Pipeline) -> None:
    audited = run_silver_audit(proved.config)
    assert [table.verdict for table in audited.tables] == [WHOLE] * 3
    assert sum(table.rows for table in audited.tables) == 510
    [name] = silver(proved, "items").snapshot().files
    path = Path(proved.root, "silver/public/items", name)
    written = path.read_bytes()
    for change in ("flipped bit", "swapped values", "lost row", "row twice"):
        damage(path, change)
        audited = run_silver_audit(proved.config)
        damaged, *others = sorted(audited.tables, key=lambda table: table.verdict)
        assert (damaged.name.table, damaged.verdict) == ("items", DAMAGED), change
        assert [name in finding for finding in damaged.findings] == [True]
        assert [table.verdict for table in others] == [WHOLE] * 2
        assert audited.exit_code(strict=False) == 1
        path.write_bytes(written)
    path.write_bytes(written[:-1])
    assert prove(proved, globs=["public.items"])[0] == {"items": UNPROVEN}
    path.unlink()
    [lost] = run_prove(proved.config, ["public.items"], wait=5, runs=True).verdicts
    assert (lost.verdict, path.name in str(lost.sentence)) == (UNPROVEN, True)
    run_rebuild(proved.config, ["public.items"])
    assert prove(proved) == (ALL, 1, 4)


@pytest.mark.promise("audit of silver")
def test_an_audit_names_a_foreign_commit_and_files_not_recorded(proved: Pipeline) -> None:
    table = silver(proved, "marked")
    table.delete_rows(pc.field("id") == 7, "id = 7", table.schema().names)
    proved.ingest("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    proved.apply()
    audited = {table.name.table: table for table in run_silver_audit(proved.config).tables}
    assert verdicts_of(audited) == {"items": WHOLE, "divided": WHOLE, "marked": DAMAGED, "later": UNKNOWN}
    [finding] = audited["marked"].findings
    assert finding.startswith("DELETE at version"), finding
    assert run_fingerprint(proved.config, ["public.later"]).files == (1, 0)
    [later] = run_silver_audit(proved.config, ["public.later"]).tables
    assert (later.verdict, later.rows) == (WHOLE, 1)


def verdicts_of(tables: dict[str, AuditedTable]) -> dict[str, str]:
    return {name: table.verdict for name, table in tables.items()}


@pytest.mark.promise("fingerprint elsewhere")
def test_a_copy_has_the_fingerprint_that_sql_computes(proved: Pipeline) -> None:
    proved.catch_up("DELETE FROM marked WHERE id < 5")
    expected_of_all = []
    for each in run_fingerprint(proved.config).tables:
        assert each.fingerprint is not None
        expected = (each.fingerprint.rows, str(each.fingerprint))
        expected_of_all.append(expected[1])
        glob = [str(each.name)]
        query = read_query(proved.config, glob, "postgres").sql
        assert proved.source.execute(query.encode()).fetchone() == expected
        with duckdb.connect() as session:
            session.execute("SET TimeZone = 'UTC'; CREATE SCHEMA public")
            session.register("rows", silver(proved, each.name.table).rows())
            session.execute(f'CREATE TABLE public."{each.name.table}" AS SELECT * FROM rows')
            assert session.execute(read_query(proved.config, glob, "duckdb").sql).fetchone() == expected
    printed = run_fingerprint(proved.config).as_json()
    assert printed["files"] == {"read": 0, "recorded": 5}
    assert [each["fingerprint"] for each in printed["tables"]] == expected_of_all


@pytest.mark.promise("fingerprint elsewhere")
def test_a_fingerprint_is_of_the_columns_that_silver_shows(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    tables = [f"t{number}" for number in range(6)]
    for table in tables:
        pipeline.run(f"CREATE TABLE {table} (id int PRIMARY KEY, a text)", f"INSERT INTO {table} VALUES (1)")
    pipeline.catch_up()
    for table in tables:
        pipeline.run(f"ALTER TABLE {table} ADD added text", f"INSERT INTO {table} VALUES (2, 'a', 'b')")
    pipeline.catch_up()
    for table in tables:  # there and back: the relation version of before
        pipeline.run(f"ALTER TABLE {table} RENAME a TO x", f"UPDATE {table} SET x = 'x'")
    pipeline.catch_up()
    for table in tables:
        pipeline.run(f"ALTER TABLE {table} RENAME x TO a", f"UPDATE {table} SET a = 'y'")
    pipeline.catch_up()
    for each in run_fingerprint(pipeline.config).tables:
        assert each.fingerprint is not None
        query = read_query(pipeline.config, [str(each.name)], "postgres").sql
        assert '"added"' in query
        expected = (each.fingerprint.rows, str(each.fingerprint))
        assert pipeline.source.execute(query.encode()).fetchone() == expected
