"""`pgdelta query`: what it prints, and that it reads nothing but silver tables."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from pipeline.cli.main import main
from pipeline.errors import ConfigError, LakeError
from pipeline.protocol.lsn import LSN
from pipeline.reading.query import run_query, silver_as_of, silver_live
from pipeline.silver.read.query_session import QuerySession
from pipeline.silver.read.silver_rows import SilverRows
from pipeline.table_name import TableName
from tests.support.native_lakes import COPIED_AT, NativeLake


@pytest.fixture
def lake(tmp_path: Path) -> NativeLake:
    """Give a lake of three tables with 20 rows each; bronze has 10 rows more of the first two."""
    lake = NativeLake(tmp_path / "lake", 3)
    rows = 10
    lake.insert(lake.names[:2], 2000, rows)
    return lake


def asked(lake: NativeLake, *arguments: str) -> int:
    config = str(lake.root.parent / f"{lake.root.name}.yaml")
    return main(["query", "--config", config, *arguments])


def table_of(lake: NativeLake, sql: str, width: int = 80, **options: Any) -> list[str]:
    """Return the lines that a terminal of some width shows of a live query."""
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None, highlight=False)
    run_query(silver_live(lake.config), sql, output, console, **options)
    return output.getvalue().splitlines()


def test_a_query_reads_silver_live_or_as_of_a_manifest(
    lake: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT count(*) AS n, (SELECT max(_commit_lsn) FROM public.t0000) FROM t0001"
    for arguments, rows, lsn in (
        ((), [20, int(COPIED_AT)], "0/3F0"),
        (("--live",), [30, 2000], "0/7D8"),
        (("--as-of", "0/3F0"), [20, int(COPIED_AT)], "0/3F0"),
        (("--as-of", "2999-01-01T00:00:00Z"), [20, int(COPIED_AT)], "0/3F0"),
    ):
        assert asked(lake, "--json", sql, *arguments) == 0
        found = json.loads(capsys.readouterr().out)
        # rows 10 to 19 of the second table are inserted again by the transaction
        assert found["rows"] == [[20, rows[1]]]
        assert found["lsn"] == lsn
    assert [column["type"] for column in found["columns"]] == ["BIGINT", "BIGINT"]
    assert asked(lake, "--as-of", "0/1", sql) == 1
    assert "has no manifest at or before LSN 0/1" in capsys.readouterr().err
    assert asked(lake, "--as-of", "0/3F0", "--live", sql) == 2
    assert asked(lake, "--csv", "--json", sql) == 2


def test_a_table_fits_the_terminal_and_a_pipe_gets_complete_lines(lake: NativeLake) -> None:
    sql = "SELECT id, repeat('x', 200) AS long, 'ü日' AS w, NULL AS nothing FROM t0000 ORDER BY id LIMIT 2"
    lines = table_of(lake, sql)
    assert all(len(line) <= 80 for line in lines[:-1])
    assert lines[0].split() == ["id", "long", "w", "nothing"]
    assert lines[2].startswith(" 0  xxx")
    assert "…" in lines[2]
    assert lines[-1].startswith("(2 rows, silver at 0/7D8")
    assert "x" * 200 in table_of(lake, sql, width=10_000)[2]
    assert table_of(lake, "FROM t0000", limit=3)[-1].startswith("(the first 3 rows, silver at")
    many = table_of(lake, "SELECT * FROM range(2000)")
    assert many[-1].startswith("(the first 1,000 rows; --limit, --csv and --json show more, silver at")
    assert len(many) == 1003
    hostile = table_of(lake, "SELECT chr(27) || '[31m' || chr(10) AS \"a\nb\"")
    assert hostile[0] == "a\\nb"
    assert hostile[2] == "\\x1b[31m\\n"


def test_csv_distinguishes_null_from_an_empty_text(
    lake: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = (
        "SELECT * FROM (VALUES (1, NULL, '', 'a,b'), (2, 'q\"', 'l' || chr(10), 'ü')) AS v(n, \"x,y\", e, t)"
    )
    assert asked(lake, "--csv", sql) == 0
    text = capsys.readouterr().out
    assert text == 'n,"x,y",e,t\n1,,"","a,b"\n2,"q""","l\n",ü\n'
    assert list(csv.reader(io.StringIO(text)))[2] == ["2", 'q"', "l\n", "ü"]
    assert asked(lake, "--csv", "--limit", "1", sql) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_json_has_every_number(lake: NativeLake, capsys: pytest.CaptureFixture[str]) -> None:
    sql = (
        "SELECT 9007199254740993::BIGINT, 12345678901234567890123456789.5::DECIMAL(38,1), 'NaN'::DOUBLE, "
        "[1.5::DOUBLE, 'Infinity'::DOUBLE, NULL], {'x': 'NaN'::FLOAT}, NULL, true, '\\xAB'::BLOB"
    )
    assert asked(lake, "--json", sql) == 0
    rows = json.loads(capsys.readouterr().out, parse_float=str)["rows"]
    numbers = [9007199254740993, "12345678901234567890123456789.5", "nan", ["1.5", "inf", None]]
    assert rows == [[*numbers, "{'x': nan}", None, True, "\\xAB"]]


@pytest.mark.costly
@pytest.mark.promise("queries are read-only")
@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO '/tmp/pgdelta-test'",
        "ATTACH '/tmp/pgdelta-test.db' AS other",
        "INSTALL httpfs",
        "LOAD '/tmp/extension'",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE t (a INT)",
        "DROP VIEW public.t0000",
        "EXPORT DATABASE '/tmp/pgdelta-test'",
        "CALL pragma_version()",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd'",
        "FROM read_csv('/etc/passwd')",
        "FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM read_parquet('{file}')",
        "SELECT getenv('HOME')",
        "WITH q AS (DELETE FROM public.t0000 RETURNING *) SELECT * FROM q",
        "SELECT * FROM query('ATTACH ''/tmp/pgdelta-test.db''')",
        "SELEKT",
    ],
)
def test_a_query_reads_nothing_else_and_writes_nothing(
    lake: NativeLake, capsys: pytest.CaptureFixture[str], sql: str
) -> None:
    file = next((lake.root / "silver" / "public" / "t0000").glob("*.parquet"))
    assert asked(lake, sql.replace("{file}", str(file))) == 2
    found = capsys.readouterr()
    assert not found.out
    assert found.err.count("\n") == 1
    assert not Path("/tmp/pgdelta-test").exists()
    assert not Path("/tmp/pgdelta-test.db").exists()


def test_an_error_has_no_value_of_a_row(lake: NativeLake, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(lake, "SELECT CAST(name AS INT) FROM t0000") == 1
    assert "a value" not in capsys.readouterr().err
    assert asked(lake, "SELECT error(name) FROM t0000") == 1
    assert "a value" not in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_named_and_stops_no_other(
    lake: NativeLake, capsys: pytest.CaptureFixture[str]
) -> None:
    silver = silver_live(lake.config)
    gone = TableName("public", "t0002")
    refused = {gone: "Table public.t0002 is held."}
    tables = {name: rows for name, rows in silver.tables.items() if name != gone}
    session = QuerySession(tables, refused)
    try:
        assert [column.name for column in session.columns("FROM t0000")] == list(
            tables[lake.names[0]].schema.names
        )
        with pytest.raises(LakeError, match="is held"):
            session.columns("SELECT id FROM public.t0002")
        with pytest.raises(ConfigError, match="nothing does not exist"):
            session.columns("SELECT id FROM nothing")
    finally:
        session.close()
    file = next((lake.root / "silver" / "public" / "t0001").glob("*.parquet"))
    file.unlink()
    assert asked(lake, "SELECT count(DISTINCT id) FROM t0001") == 1
    assert "is missing: VACUUM removes" in capsys.readouterr().err
    assert asked(lake, "SELECT count(DISTINCT id) FROM t0000") == 0


def test_names_are_the_source_s_and_differ_in_case(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 3)
    lake.insert(lake.names[:1], 2000, 30)
    more, rows, _ = (rows for _, rows in sorted(silver_live(lake.config).tables.items()))
    held = TableName("public", "Held")
    names = [
        TableName('Sch"ema', "a.b"),
        TableName("main", "pgdelta rows 0"),
        TableName("public", "orders"),
        TableName("public", "se'lect; --"),
        TableName("public", "held"),
        TableName("public", "Sole"),
    ]
    tables = {**dict.fromkeys(names, rows), TableName("public", "Orders"): more}
    session = QuerySession(tables, {held: "Table public.Held is held."})
    try:
        for sql, count in (
            ('SELECT id FROM "Sch""ema"."a.b"', 20),
            ('SELECT id FROM main."pgdelta rows 0"', 20),
            ("SELECT id FROM public.ORDERS", 20),
            ('SELECT id FROM public."Orders"', 30),
            ('SELECT id FROM "orders" AS "Orders"', 20),
            ('WITH "Orders" AS (SELECT id FROM orders) FROM "Orders"', 20),
            ("SELECT count(*) FROM \"Orders\" WHERE 'é' = 'é' UNION ALL FROM range(29)", 30),
            ('SELECT id FROM "se\'lect; --"', 20),
            ("SELECT id FROM HELD", 20),
        ):
            assert sum(batch.num_rows for batch in session.texts(sql, 1)) == count, sql
        with pytest.raises(LakeError, match="is held"):
            session.columns('SELECT id FROM "Held"')
        with pytest.raises(ConfigError, match=r'no table "public"\."sole", but "public"\."Sole"'):
            session.columns("SELECT id FROM Sole")
        with pytest.raises(ConfigError, match="differ only in case, and one query cannot have both"):
            session.columns('SELECT * FROM orders JOIN "Orders" USING (id)')
    finally:
        session.close()


def test_a_query_larger_than_its_memory_uses_temporary_files(
    lake: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.silver.read import query_session

    hashes = "SELECT md5(i::VARCHAR) || repeat('x', 100) AS h FROM range(600000) t(i)"
    sql = f"SELECT count(*) FROM (SELECT DISTINCT h FROM ({hashes}))"

    def count(**settings: str) -> list[Any]:
        found = {**query_session.SETTINGS, "memory_limit": "48MB", **settings}
        monkeypatch.setattr(query_session, "SETTINGS", found)
        session = QuerySession(silver_live(lake.config).tables, {})
        folder = Path(session._folder.name)
        try:
            return [row for batch in session.texts(sql, 1) for row in batch.to_pylist()]
        finally:
            session.close()
            assert not folder.exists()

    assert count() == [{"c0": "600000"}]
    with pytest.raises(LakeError, match="more memory or temporary files than it may use"):
        count(max_temp_directory_size="1MB")


def test_a_scan_reads_the_columns_and_files_that_a_query_needs(
    lake: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[tuple[Any, Any]] = []
    scanner = SilverRows.scanner

    def record(rows: SilverRows, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        scans.append((columns, filter))
        return scanner(rows, columns, filter, **options)

    monkeypatch.setattr(SilverRows, "scanner", record)
    silver = silver_live(lake.config)
    session = QuerySession(silver.tables, {})
    try:
        batches = list(session.texts("SELECT name FROM t0000 WHERE id = 3", 1))
    finally:
        session.close()
    assert pa.Table.from_batches(batches).num_rows == 1
    [(columns, condition)] = scans
    assert columns == ["name"]
    assert "id" in str(condition)
    assert silver_as_of(lake.config, None).lsn == LSN(COPIED_AT + 8)
