"""Which keys `pgdelta forget` erases, and which rows have one of them."""

import re
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from pipeline.bronze.erasures import erasures_in
from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.errors import ConfigError, LakeError
from pipeline.reading.key_types import family_of, texts_of
from pipeline.reading.row_keys import ForgottenTable, SubjectRows, close_keys, plan_table
from pipeline.table_name import TableName

NAME = TableName("public", "t")
NUMERIC, INT, TEXT, UUID, CHAR = 1700, 23, 25, 2950, 1042
BOOLEAN, BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ, INTERVAL, MACADDR = 16, 17, 1082, 1114, 1184, 1186, 829


def column(name: str, number: int, oid: int = INT, *, is_key: bool = False) -> SourceColumn:
    return SourceColumn(name, oid, -1, is_key, number, oid)


def relation(
    version: int, *columns: SourceColumn, oid: int = 1, name: str = "t", identity: str = "d", lsn: int = 0
) -> SourceRelation:
    return SourceRelation(version, oid, "public", name, identity, columns, lsn or version)


ID = column("id", 1, is_key=True)
PART = column("part", 2, TEXT, is_key=True)
V = column("v", 3, TEXT)
TABLE = plan_table(NAME, [relation(1, ID, PART, V)])


def rows(*found: tuple[int, list[str | None] | None, list[str | None] | None, list[int] | None]) -> pa.Table:
    cells = pa.list_(pa.string())
    schema = pa.schema(
        {"relation_version": pa.int64(), "old": cells, "new": cells, "unsent": pa.list_(pa.int32())}
    )
    names = schema.names
    return pa.Table.from_pylist([dict(zip(names, each, strict=True)) for each in found], schema=schema)


def test_keys_are_closed_under_changes_in_both_directions() -> None:
    changes = [("a", "b"), ("b", "c"), ("x", "b"), ("p", "q")]
    for key in "abcx":
        assert close_keys([key], changes) == set("abcx")
    assert close_keys(["p", "z"], changes) == {"p", "q", "z"}
    assert close_keys(["a"], [("a", "a"), ("a", "b"), ("b", "a")]) == {"a", "b"}


def test_columns_are_found_by_their_numbers_in_each_version() -> None:
    before = relation(1, V, column("nr", 1, is_key=True), column("part", 2, TEXT, is_key=True))
    full = relation(2, replace(ID, is_key=False), V, replace(PART, is_key=False), identity="f")
    table = plan_table(NAME, [before, full, relation(3, PART, ID)])
    assert [each.name for each in table.key] == ["part", "id"]
    assert table.indexes == {1: (2, 1), 2: (2, 0), 3: (0, 1)}
    assert table.key_in_json('{"nr": "1", "part": "x"}') == table.key_of(["x", "1"])
    assert table.key_in_json('{"id": "1", "part": "x"}') == table.key_of(["x", "1"])
    for text in (None, "no", "[1]", '{"id": "1"}', '{"id": null, "part": "x"}', '{"id": "z", "part": "x"}'):
        assert table.key_in_json(text) is None


@pytest.mark.parametrize(
    ("relations", "sentence"),
    [
        ([relation(1, V)], "is not known"),
        (
            [relation(1, ID), relation(2, ID, oid=2, name="u"), relation(3, ID, name="u")],
            "also that of another",
        ),
        ([relation(1, ID, V), relation(2, ID, replace(V, is_key=True))], "another key before"),
        ([relation(1, column("id", 1, INTERVAL, is_key=True))], "does not support"),
        ([relation(1, ID), relation(2, column("id", 1, DATE, is_key=True))], "does not support"),
        ([relation(1, ID), relation(2, column("id", 1, TEXT, is_key=True))], "does not support"),
    ],
)
def test_tables_whose_rows_cannot_be_distinguished_are_refused(
    relations: list[SourceRelation], sentence: str
) -> None:
    with pytest.raises(LakeError, match=sentence):
        plan_table(NAME, relations)


def test_a_table_that_bronze_does_not_have_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"Bronze has no table public\.u"):
        plan_table(TableName("public", "u"), [relation(1, ID)])


@pytest.mark.parametrize(
    ("oid", "texts", "other"),
    [
        (NUMERIC, ["1.50", "1.5", "01.5", "+1.5", "15e-1"], "15"),
        (NUMERIC, ["100", "1e2", "100.000"], "1"),
        (NUMERIC, ["0", "-0", "0.00"], "0.01"),
        (INT, ["17", " 17 ", "017"], "170"),
        (CHAR, ["a  ", "a"], "a b"),
        (TEXT, ["a"], "a "),
        (UUID, ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"], "0" * 32),
        (BOOLEAN, ["t", "true", "TRUE"], "f"),
        (BYTEA, ["\\x00ff"], "\\x00"),
        (DATE, ["2026-01-31"], "infinity"),
        (TIMESTAMP, ["2026-01-31 09:30:00.5"], "0044-03-15 09:30:00 BC"),
        (TIMESTAMPTZ, ["2026-01-31 09:30:00+00"], "10000-01-31 09:30:00+00"),
        (MACADDR, ["08:00:2b:01:02:03"], "08:00:2b:01:02:04"),
    ],
)
def test_equal_values_have_one_key(oid: int, texts: list[str], other: str) -> None:
    table = plan_table(NAME, [relation(1, column("id", 1, oid, is_key=True))])
    assert len({table.key_of([text]) for text in texts}) == 1
    assert table.key_of([other]) != table.key_of(texts[:1])


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (BOOLEAN, "yes"),
        (BYTEA, "00ff"),
        (DATE, "31.01.2026"),
        (TIMESTAMP, "2026-01-31T09:30:00"),
        (TIMESTAMP, "2026-01-31 09:30:00.50"),
        (TIMESTAMPTZ, "2026-01-31 10:30:00+01"),
    ],
)
def test_a_value_is_written_as_postgresql_prints_it(oid: int, text: str) -> None:
    table = plan_table(NAME, [relation(1, column("id", 1, oid, is_key=True))])
    with pytest.raises(ValueError, match="as PostgreSQL prints it"):
        table.key_of([text])
    sentence = (
        "A value of --key is not valid for its column's type in public.t. Write it as SELECT prints it."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        table.parse_key([text], "--key")


def test_no_text_of_postgresql_can_move_between_the_columns_of_a_key() -> None:
    table = plan_table(NAME, [relation(1, column("a", 1, TEXT, is_key=True), PART)])
    for code in (*range(1, 0x250), 0x2028, 0xFFFD, 0x1F600):
        mark = chr(code)
        texts = [[f"x{mark}", "y"], ["x", f"{mark}y"], [f"x{mark}{mark}", "y"], [f"x{mark}y{mark}", ""]]
        assert len({table.key_of(each) for each in texts}) == len(texts), hex(code)


def test_a_key_has_a_value_for_each_of_its_columns() -> None:
    assert TABLE.parse_key(["1", "x"], "KEY") == TABLE.key_of(["1", "x"])
    sentence = "KEY has 1 value, but the key of public.t is (id, part). Give a value for each of its columns."
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        TABLE.parse_key(["1"], "KEY")


@pytest.mark.parametrize(
    ("oid", "column_type", "value", "text"),
    [
        (BOOLEAN, pa.bool_(), False, "f"),
        (BYTEA, pa.binary(), b"\0\xff", "\\x00ff"),
        (DATE, pa.date32(), date(1, 2, 3), "0001-02-03"),
        (TIMESTAMP, pa.timestamp("us"), datetime(2026, 1, 31, 9, 30), "2026-01-31 09:30:00"),
        (TIMESTAMP, pa.timestamp("us"), datetime(1, 1, 1, 0, 0, 10, 120), "0001-01-01 00:00:10.00012"),
        (
            TIMESTAMPTZ,
            pa.timestamp("us", tz="UTC"),
            datetime(2026, 1, 31, 9, 30, 0, 500_000, tzinfo=timezone.utc),
            "2026-01-31 09:30:00.5+00",
        ),
        (NUMERIC, pa.decimal128(10, 8), Decimal("0.00000001"), "0.00000001"),
        (MACADDR, pa.string(), "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
        (TIMESTAMP, pa.timestamp("us", tz="UTC"), None, None),
        (TEXT, pa.int32(), 7, None),
        (DATE, pa.timestamp("us"), None, None),
    ],
)
def test_values_of_silver_have_the_texts_of_bronze(
    oid: int, column_type: pa.DataType, value: object, text: str | None
) -> None:
    family = family_of([column("id", 1, oid)])
    assert family is not None
    found = texts_of(pa.array([value, None], column_type), family)
    assert (None if found is None else found.to_pylist()) == (None if text is None else [text, None])


def test_texts_of_no_value_are_refused() -> None:
    for oid in (INT, UUID):
        table = plan_table(NAME, [relation(1, column("id", 1, oid, is_key=True))])
        with pytest.raises(ValueError, match=r"not a number|badly formed"):
            table.key_of(["x"])


def found(table: ForgottenTable, keys: list[list[str]], read: pa.Table) -> list[bool]:
    flags: list[bool] = SubjectRows(table, [table.key_of(key) for key in keys]).mask(read).to_pylist()
    return flags


def test_rows_are_found_by_old_and_new_keys_of_their_version() -> None:
    table = plan_table(NAME, [relation(1, ID, PART, V, lsn=9), relation(2, V, PART, ID)])
    read = rows(
        (1, None, ["1", "a", "v"], None),
        (2, None, ["v", "a", "1"], None),
        (1, None, ["2", "a", "v"], None),
        (1, ["1", "a", None], ["3", "a", "v"], None),
        (1, ["3", "a", None], ["1", "a", "v"], None),
        (1, ["1", "a", None], None, None),
        (9, None, ["1", "a", "v"], None),
        (1, None, None, None),
        (1, ["1", "a", None], ["9", None, None], [1, 2]),  # part is unchanged TOAST
    )
    assert found(table, [["1", "a"]], read) == [True, True, False, True, True, True, False, False, True]
    changes = {tuple(sorted(each)) for each in SubjectRows(table).key_changes(read)}
    one, three, nine = (table.key_of([number, "a"]) for number in "139")
    assert changes == {tuple(sorted((one, three))), tuple(sorted((one, nine)))}


def test_a_key_that_was_not_sent_is_refused() -> None:
    with pytest.raises(LakeError, match="was not sent"):
        found(TABLE, [["1", "a"]], rows((1, None, ["1", None, "v"], [1])))


def test_what_commits_erased_is_counted_by_lsn() -> None:
    commit = {"operation": "forget", "forget_id": "1", "erased": [[5, 2], [9, 1]], "erased_copies": [[3, 4]]}
    erasures = erasures_in([{}, commit, {"operation": "rebuild"}, {**commit, "forget_id": "2"}])
    assert [erasures.count(*bounds) for bounds in ((0, 5), (5, 9), (4, 10), (9, 20))] == [4, 2, 6, 0]
    assert erasures.copies == {3: 8}
    assert erasures.ids == {"1", "2"}
