"""Rows of a live server as numbers: each value in the form that Spark gives it too, under one snapshot."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from pipeline.fingerprint import Fingerprint, total
from pipeline.postgres.snapshot.comparable_forms import PLAIN, TEXT, Form, HashedKind
from pipeline.postgres.snapshot.export import RowsMoved, SnapshotKeeper
from pipeline.postgres.snapshot.hashed_rows import HashedColumns, HashedTable, SourceRows
from pipeline.table_name import TableName
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

FORMS = {
    "id": PLAIN,
    "ok": PLAIN,
    "price": Form(HashedKind.DECIMAL, 12, 3),
    "exact": Form(HashedKind.DECIMAL, 12, 2, is_exact=True),
    "free": Form(HashedKind.DECIMAL, 4, 1, fits=False),
    "near": Form(HashedKind.DECIMAL, 4, 1, fits=False, clamps=True),
    "real": Form(HashedKind.REAL),
    "double": Form(HashedKind.DOUBLE),
    "name": TEXT,
    "day": Form(HashedKind.DATE),
    "nearest_day": Form(HashedKind.DATE, clamps=True),
    "local": Form(HashedKind.TIMESTAMP),
    "instant": Form(HashedKind.TIMESTAMPTZ),
    "days": Form(HashedKind.DATE, is_array=True),
    "doubles": Form(HashedKind.DOUBLE, is_array=True),
    "texts": Form(HashedKind.TEXT, is_array=True),
    "pair": TEXT,
}
TABLE = """CREATE TABLE t (id int PRIMARY KEY, ok bool, price numeric(12,2), exact numeric(12,2),
    free numeric, near numeric, "real" float4, "double" float8, name char(4), day date, nearest_day date,
    local timestamp, instant timestamptz, days date[], doubles float8[], texts text[], pair pair)"""
ROWS = {
    r"""1, true, 1.5, 1.5, 1.50, 1.25, 0.1, '-0', 'ab', '2024-02-29', 'infinity', '0001-01-01',
        '2024-01-01 00:00:00.5+02', '{2024-01-01,NULL,infinity}', '{1,NaN}', '{"a,b",NULL,""}',
        '(,)'""": (
        "1", "t", "1.500", "1.50", "1.5", "1.3", "3dcccccd", "8000000000000000", "ab  ", "2024-02-29",
        "9999-12-31", "0001-01-01 00:00:00", "2023-12-31 22:00:00.5+00", "{2024-01-01,NULL,NULL}",
        "{3ff0000000000000,NaN}", '{"a,b",NULL,""}', "(,)",
    ),
    r"""2, false, 'NaN', 'NaN', 1.55, 1e9, 'NaN', 'Infinity', NULL, '0044-03-15 BC', '0044-03-15 BC',
        '10000-01-01', '-infinity', '[0:0]={2024-01-01}', '{}', '{{a},{b}}', NULL""": (
        "2", "f", None, None, None, "999.9", "NaN", "7ff0000000000000", None, None, "0001-01-01",
        None, None, None, "{}", None, None,
    ),
    r"""3, NULL, NULL, NULL, 1000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL""": (
        "3", *[None] * 16,
    ),
}  # fmt: skip


def shape(*key: int) -> HashedColumns:
    return HashedColumns(tuple(FORMS.items()), key)


def md5(values: Mapping[str, str | None]) -> str:
    """Return the hash of a row, or of some of its columns by name."""
    sized = {name for name, form in FORMS.items() if form.kind is HashedKind.TEXT or form.is_array}
    texts = (
        "" if value is None else f"{len(value)}:{value}" if name in sized else value
        for name, value in values.items()
    )
    return hashlib.md5(",".join(texts).rstrip(",").encode()).hexdigest()


@contextmanager
def source(database: Database, name: str = "t") -> Iterator[HashedTable]:
    with (
        closing(SnapshotKeeper(database.conninfo)) as keeper,
        HashedTable(database.conninfo, keeper.snapshot, database.name, TableName("public", name)) as table,
    ):
        yield table


def fill(database: Database) -> None:
    inserts = (f"INSERT INTO t VALUES ({row})" for row in ROWS)
    database.run(
        "CREATE TYPE pair AS (a int, b text)",
        TABLE,
        *inserts,
        f"CREATE PUBLICATION {database.name} FOR TABLE t",
    )


@pytest.mark.parametrize("name", ["database", "old_database"])
def test_values_are_hashed_in_their_forms(name: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(name)
    fill(database)
    expected = {md5({"id": values[0]}): dict(zip(FORMS, values, strict=True)) for values in ROWS.values()}
    with source(database) as table:
        rows = SourceRows(table, shape(0))
        sums = rows.sums(2)
        found = {row.key: row for row in rows.rows(sorted(sums))}
        assert {row.texts for row in found.values()} == {("1",), ("2",), ("3",)}
        for key, values in expected.items():
            parts = [md5({name: value})[:8] for name, value in values.items()]
            differing = [
                column for column, a, b in zip(FORMS, found[key].columns, parts, strict=True) if a != b
            ]
            assert not differing, values["id"]
            assert found[key].row == md5(values)
        by_range: Counter[str] = Counter()
        for key, values in expected.items():
            by_range[key[:2]] += int(md5(values)[:15], 16)
        assert {name: found.first for name, found in sums.items()} == by_range
        assert rows.misfits == {
            "price": 1, "exact": 1, "free": 2, "day": 1, "local": 1, "instant": 1, "days": 1, "texts": 1,
        }  # fmt: skip


@pytest.mark.parametrize("name", ["database", "old_database"])
def test_the_sum_of_all_rows_is_that_of_their_texts(name: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(name)
    fill(database)
    database.run("INSERT INTO t SELECT i, i > 9, i, i, i, i, i, i, 'a,', day.day, day.day, day.day, day.day, "
        "ARRAY[day.day], '{1}', '{a}', row(i, ',')::pair FROM generate_series(4, 40) i, "
        "(SELECT date '2024-02-29' AS day) day")  # fmt: skip
    misfits = {
        "price": 1, "exact": 1, "free": 2, "day": 1, "local": 1, "instant": 1, "days": 1, "texts": 1,
    }  # fmt: skip
    columns = list(FORMS.items())
    sidecar = ("day", replace(FORMS["day"], is_misfit=True))
    with source(database) as table:
        for last in range(1, len(columns) + 1):
            names = columns[:last]
            found = {name: count for name, count in misfits.items() if name in dict(names)}
            with_sidecar = [c for each in names for c in ([each, sidecar] if each[0] == "day" else [each])]
            for some in (names, with_sidecar):
                rows = SourceRows(table, HashedColumns(tuple(some), ()))
                parts = rows.sums(1)
                assert rows.misfits == found
                assert (rows.sums(0), rows.misfits) == ({"": total(parts.values())}, found)


def test_commas_at_the_end_of_a_row_are_not_hashed(database: Database) -> None:
    tails = ["NULL", "''", "','", "',a'", "'a,,'", "'ü,'", "'ü'", "'" + "," * 300 + "'"]
    values = ", ".join(f"({one}, {other})" for one in tails for other in tails)
    wide = [f"c{i} int" for i in range(120)]
    database.run(
        "CREATE TABLE t (a text, b text)",
        f"INSERT INTO t VALUES {values}",
        f"CREATE TABLE wide ({', '.join(wide)}, v text)",
        "INSERT INTO wide (c0, c60, c119) VALUES (1, NULL, 3), (1, 2, NULL)",
        "INSERT INTO wide SELECT "
        + ", ".join(str(i) for i in range(120))
        + ", v FROM (VALUES ('a'), (','), (NULL)) t (v)",
        f"CREATE PUBLICATION {database.name} FOR TABLE t, wide",
    )
    for name, types in (("t", [TEXT, TEXT]), ("wide", [*[PLAIN] * 120, TEXT])):
        rows_of_table = database.run(f"SELECT * FROM {name}")
        texts = [
            ",".join(
                "" if v is None else f"{len(str(v))}:{v}" if form == TEXT else str(v)
                for v, form in zip(row, types, strict=True)
            ).rstrip(",")
            for row in rows_of_table
        ]
        digests = [hashlib.md5(text.encode()).hexdigest() for text in texts]
        expected = total(Fingerprint(1, int(d[:15], 16), int(d[16:31], 16)) for d in digests)
        names = ["a", "b"] if name == "t" else [*(f"c{i}" for i in range(120)), "v"]
        with source(database, name) as table:
            rows = SourceRows(table, HashedColumns(tuple(zip(names, types, strict=True)), ()))
            assert rows.sums(0) == {"": expected}
            assert total(rows.sums(2).values()) == expected


def test_a_row_of_more_than_134_million_characters_is_hashed(database: Database) -> None:
    count = 140_000_000
    database.run(
        "CREATE TABLE t (v text, n int)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (repeat('t', {count}), NULL)",
        f"CREATE PUBLICATION {database.name} FOR TABLE t",
    )
    digest = hashlib.md5(f"{count}:".encode())
    digest.update(b"t" * count)
    found = digest.hexdigest()
    with source(database) as table:
        rows = SourceRows(table, HashedColumns((("v", TEXT), ("n", PLAIN)), ()))
        assert rows.sums(0) == {"": Fingerprint(1, int(found[:15], 16), int(found[16:31], 16))}
        assert [*rows.sums(1)] == [found[0]]


def test_equal_rows_count_and_ranges_are_cut(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int, v text)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 500) i, generate_series(1, 2)",
        f"CREATE PUBLICATION {database.name} FOR TABLE t",
    )
    with source(database) as table:
        rows = SourceRows(table, HashedColumns((("id", TEXT), ("v", TEXT)), ()))
        coarse, fine = rows.sums(1), rows.sums(3)
        assert sum(found.rows for found in coarse.values()) == 1000
        for name, found in coarse.items():
            parts = [part for range_, part in fine.items() if range_.startswith(name)]
            assert found == total(parts)
        name = min(coarse)
        assert rows.sums(3, [name]) == {r: found for r, found in fine.items() if r.startswith(name)}
        assert len(rows.rows([name])) == coarse[name].rows


def test_rows_that_are_rewritten_are_not_taken_for_missing(database: Database) -> None:
    fill(database)
    with source(database) as table:
        rows = SourceRows(table, shape(0))
        database.run("TRUNCATE t")
        with pytest.raises(RowsMoved):
            rows.sums(1)


def test_what_is_not_published_is_not_read(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE a PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE b (v text, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION b FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t SELECT i, '{%s}' FROM generate_series(1, 19) i",
        f"CREATE PUBLICATION {database.name} FOR TABLE t WHERE (v <> '{{0}}%' AND id > 5)"
        " WITH (publish_via_partition_root = true)",
    )
    with source(database) as table:
        sums = SourceRows(table, HashedColumns((("id", TEXT), ("v", TEXT)), (0,))).sums(1)
        assert sum(found.rows for found in sums.values()) == 14


def test_many_partitions_are_summed_by_several_queries(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.postgres.snapshot.hashed_rows._LEAVES", 2)
    database.run(
        "CREATE TABLE t (id int, day date) PARTITION BY LIST (id)",
        *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES IN ({n})" for n in range(5)),
        "INSERT INTO t VALUES (0, '2024-01-01'), (2, NULL), (4, 'infinity'), (3, '-infinity')",
        f"CREATE PUBLICATION {database.name} FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    with source(database) as table:
        rows = SourceRows(table, HashedColumns((("id", PLAIN), ("day", Form(HashedKind.DATE))), ()))
        whole = total(rows.sums(1).values())
        assert (rows.sums(0), rows.misfits, whole.rows) == ({"": whole}, {"day": 2}, 4)
