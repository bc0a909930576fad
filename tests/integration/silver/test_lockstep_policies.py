"""Values that silver cannot hold or that the source did not send, by the rules of the configuration."""

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from pipeline.config.tables import ColumnRules, Misfits, RowMode, TableRule
from pipeline.delta.table import Lake
from pipeline.metadata.registry import Records
from pipeline.silver.schema.table_partitions import partitions_to_come
from pipeline.table_name import TableName
from tests.support.lockstep import CAPTURED, STOPPED, Group, Lane, Steps, lockstep
from tests.support.modes.oracle import assert_equals_model

pytestmark = pytest.mark.postgres

GROUP = Group(source={"hash_key": "the key of the tests, 123"})
LAST_DAY = date(9999, 12, 31)
TABLE = "CREATE TABLE t (id int PRIMARY KEY, price numeric(5,2), day date, n numeric, note text)"


def stops(lane: Lane, table: str) -> list[tuple[str, str]]:
    """Return the events of a table that stop it or ask for a copy."""
    return [each for each in lane.events(table) if each[0] in ("resync", "refused", "held")]


@lockstep(TableRule("*.t", types={"n": "INT"}, misfit="clamp"))
def test_clamp_takes_the_nearest_value_and_records_it(lane: Lane) -> Steps:
    lane.run(
        TABLE,
        "INSERT INTO t VALUES (1, 'NaN', 'infinity', 1e20, 'a'), (2, 5, '0044-03-15 BC', -1.5, 'b')",
    )
    yield
    assert lane.state("t").misfits == 5
    assert lane.rows("t", "id", "price", "day", "n") == [
        (1, None, LAST_DAY, 2**31 - 1),
        (2, Decimal(5), date(1, 1, 1), -2),
    ]
    misfits = sorted((row.column_name, row.policy) for row in lane.records("misfits", "t"))
    assert misfits == [*[("day", "clamp")] * 2, *[("n", "clamp")] * 2, ("price", "null")]


@pytest.mark.promise("misfit policies")
@lockstep(TableRule("*.t", misfits={"day": "error"}))
def test_error_holds_that_table_before_the_transaction_until_a_fix(lane: Lane) -> Steps:
    lane.run(
        TABLE,
        "CREATE TABLE other (id int PRIMARY KEY, day date)",
        "INSERT INTO t VALUES (1, 'NaN', '2024-01-01')",
        "INSERT INTO other VALUES (1, 'infinity')",
    )
    lane.transact(
        "INSERT INTO t VALUES (2, 1, '2024-01-02')",
        "INSERT INTO t VALUES (3, 1, 'infinity')",
        "DELETE FROM t WHERE id = 3",
    )
    lane.run("INSERT INTO t VALUES (4, 1, '2024-01-04')", "INSERT INTO other VALUES (2, '2024-01-01')")
    for _ in range(2):
        yield STOPPED
        held = lane.state("t").held or ""
        assert "a value of column day that its silver type cannot hold" in held
        assert "infinity" not in held
        assert (lane.summary.exit_code(strict=False), lane.summary.exit_code(strict=True)) == (0, 1)
        assert lane.rows("t", "id") == [(1,)]
    assert [kind for kind, _ in lane.events("t")] == ["refused"]
    assert lane.frame("other").count() == 2
    lane.set_rules()
    yield
    assert lane.rows("t", "id") == [(1,), (2,), (4,)]


def values(lane: Lane, table: str) -> dict[int, Any]:
    """Return column c of a silver table, by id."""
    rows = lane.rows(table, "id", "c")
    assert len(dict(rows)) == len(rows)
    return dict(rows)


@pytest.mark.promise("defaults of dropped columns")
@lockstep()
def test_rows_after_a_dropped_column_are_as_in_a_batch_of_their_own(lane: Lane) -> Steps:
    identities = {"keyed": "DEFAULT", "whole": "FULL"}
    statements = (
        ("CREATE TABLE {} (id int PRIMARY KEY, v text)", "INSERT INTO {} VALUES (1, 'a')"),
        ("ALTER TABLE {} ADD c int DEFAULT 7", "INSERT INTO {} VALUES (2, 'b', 8), (4, 'd', 9)"),
        ("ALTER TABLE {} DROP c", "INSERT INTO {} VALUES (3, 'c')", "UPDATE {} SET v = 'z' WHERE id = 2"),
    )
    for cut in ("apart", "together"):
        for step in statements:
            for table, identity in identities.items():
                lane.run(*(each.format(f"{table}_{cut}") for each in step))
                lane.run(f"ALTER TABLE {table}_{cut} REPLICA IDENTITY {identity}")
            # ingest runs while the catalog has the column and its default
            yield CAPTURED if cut == "together" and step is not statements[-1] else None
    assert values(lane, "keyed_together") == values(lane, "keyed_apart") == {1: 7, 2: 8, 3: None, 4: 9}
    # PostgreSQL sends all values of the updated row, and c is none of them any more
    assert values(lane, "whole_together") == values(lane, "whole_apart") == {1: 7, 2: None, 3: None, 4: 9}
    lane.assert_equal("keyed_together", "whole_together", ignore_left_columns=True)


@pytest.mark.promise("defaults of dropped columns")
@lockstep()
def test_a_new_table_has_no_default_of_the_former_one(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD c int DEFAULT 7",
        "INSERT INTO t VALUES (2, 8)",
    )
    yield CAPTURED  # while the catalog has the former table
    lane.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (3)")
    yield CAPTURED
    lane.run("ALTER TABLE t ADD c int", "INSERT INTO t VALUES (4, 9)")
    yield
    assert values(lane, "t") == {3: None, 4: 9}
    lane.assert_equal("t")


POLICIES: tuple[Misfits, ...] = ("null", "text", "clamp", "error")


@pytest.mark.promise("misfit policies")
@lockstep(*(TableRule(f"*.by_{policy}", misfits={"d": policy}) for policy in POLICIES))
def test_a_default_that_does_not_fit_is_an_event(lane: Lane) -> Steps:
    tables = {policy: f"by_{policy}" for policy in POLICIES}
    for table in tables.values():
        lane.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    yield
    for table in tables.values():
        lane.run(
            f"ALTER TABLE {table} ADD d date DEFAULT 'infinity'",
            f"INSERT INTO {table} VALUES (3, '2024-01-01')",
        )
    yield STOPPED
    for policy, table in tables.items():
        assert (lane.state(table).held is not None) == (policy == "error")
        [(kind, sentence)] = stops(lane, table)
        assert kind == ("refused" if policy == "error" else "resync")
        assert "column d was added with a default that its silver type cannot hold" in sentence.lower()
    assert lane.rows("by_error", "id") == [(1,), (2,)]
    lane.set_rules(*(rule for rule in lane.rules if rule.source != "*.by_error"))
    yield
    for policy, table in tables.items():
        older = LAST_DAY if policy == "clamp" else None
        assert lane.rows(table, "id", "d") == [(1, older), (2, older), (3, date(2024, 1, 1))]
    lane.resync(*tables.values())
    yield
    assert lane.rows("by_text", "id", "d__text") == [(1, "infinity"), (2, "infinity"), (3, None)]
    for table in tables.values():
        assert {row.key for row in lane.records("misfits", table)} == {'{"id":"1"}', '{"id":"2"}'}


@lockstep(TableRule("*.t", misfits={"e": "error"}))
def test_a_default_that_fits_and_one_of_a_table_without_rows_are_no_event(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    yield
    lane.run("ALTER TABLE t ADD d date DEFAULT '2024-01-01'", "DELETE FROM t")
    yield
    lane.run("ALTER TABLE t ADD e date DEFAULT 'infinity'", "INSERT INTO t VALUES (2, NULL, NULL)")
    yield
    assert not stops(lane, "t")
    assert lane.rows("t", "id", "d", "e") == [(2, None, None)]


KEYED_MODES: tuple[RowMode, ...] = ("mirror", "history")
SAME_IN_SILVER = {
    "TIMESTAMP": ("2024-01-01 10:00:00+00", "2024-01-01 12:00:00+02"),
    "INT": ("1", "01"),
    "BINARY": ("\\xab", "\\xAB"),
}


@pytest.mark.promise("different keys stay different")
@lockstep(
    *(
        TableRule(f"*.{mode}_{kind.lower()}", types={"k": kind}, mode=mode)
        for mode in KEYED_MODES
        for kind in SAME_IN_SILVER
    )
)
def test_a_type_in_which_different_keys_are_equal_holds_the_table(lane: Lane) -> Steps:
    tables = {f"{mode}_{kind.lower()}": kind for mode in KEYED_MODES for kind in SAME_IN_SILVER}
    for number in (0, 1):
        for table, kind in tables.items():
            if not number:
                lane.run(f"CREATE TABLE {table} (k text PRIMARY KEY, v text)")
            lane.run(f"INSERT INTO {table} VALUES ('{SAME_IN_SILVER[kind][number]}', '{number}')")
        yield STOPPED
    for table, kind in tables.items():
        [(_, sentence)] = [each for each in lane.events(table) if each[0] == "held"]
        assert f"has {kind} for column k of the key, in which different keys may be equal" in sentence
    lane.set_rules(*(replace(rule, types={}) for rule in lane.rules))
    yield
    for table, kind in tables.items():
        one, other = SAME_IN_SILVER[kind]
        assert lane.rows(table, "k", "v") == sorted([(one, "0"), (other, "1")], key=repr)


APART = {
    "int": ("DECIMAL(20,0)", "7"),
    "numeric": ("DECIMAL(20,2)", "7.00"),
    "date": ("TIMESTAMP_NTZ", "2024-01-01"),
    "uuid": ("STRING", "7b1d7f50-7b1d-7f50-7b1d-7f507b1d7f50"),
}


@lockstep(*(TableRule(f"*.of_{source}", types={"k": kind}) for source, (kind, _) in APART.items()))
def test_a_type_that_keeps_keys_apart_is_used(lane: Lane) -> Steps:
    for source, (_, value) in APART.items():
        lane.run(f"CREATE TABLE of_{source} (k {source} PRIMARY KEY)")
        lane.run(f"INSERT INTO of_{source} VALUES ('{value}')")
    yield
    for source in APART:
        assert len(lane.rows(f"of_{source}", "k")) == 1
        assert not stops(lane, f"of_{source}")


@lockstep(
    TableRule(
        "*.t",
        types={"A": "DECIMAL(10,2)"},
        misfits={"D": "clamp", "E": "text", "e": "null"},
        partition_by=("P",),
        columns=ColumnRules(hash={"H": "hmac-sha256"}),
    )
)
def test_rules_reach_columns_that_differ_only_in_case(lane: Lane) -> Steps:
    kinds = {"a": "numeric", "d": "date", "e": "date", "p": "text", "h": "text"}
    columns = ", ".join(f'{low} {kind}, "{low.upper()}" {kind}' for low, kind in kinds.items())
    values = "1.5, 1.5, 'infinity', 'infinity', 'infinity', 'infinity', 'p', 'q', 'h', 'h'"

    def check(count: int) -> None:
        names = ("a", "A__3", "d", "D__5", "e", "E__7", "E__7__text", "p", "P__9", "h")
        expected = ("1.5", Decimal("1.50"), None, LAST_DAY, None, None, "infinity", "p", "q", "h")
        assert lane.rows("t", *names) == [expected] * count
        assert lane.silver("t").snapshot().partition_columns == ("P__9",)
        assert "e__text" not in lane.frame("t").columns

    lane.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})", f"INSERT INTO t VALUES (1, {values})")
    yield
    check(1)
    lane.run(f"INSERT INTO t VALUES (2, {values})", "UPDATE t SET a = 1.5 WHERE id = 1")
    yield
    check(2)
    assert lane.events("t") == []
    lane.rebuild("t")
    check(2)


@lockstep(TableRule("*.t", misfits={"price": "clamp"}))
def test_a_rule_of_a_renamed_column_is_an_event(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY, price date)", "INSERT INTO t VALUES (1, '-infinity')")
    yield CAPTURED
    lane.run("ALTER TABLE t RENAME price TO cost", "INSERT INTO t VALUES (2, 'infinity')")
    yield
    [(kind, sentence)] = lane.events("t")
    assert kind == "evolved"
    assert sentence.endswith("Its rule does not follow. Name cost in tables[].misfits.")
    lane.set_rules(TableRule("*.t", misfits={"cost": "clamp"}))
    lane.run("UPDATE t SET cost = 'infinity'")
    yield
    assert lane.rows("t", "cost") == [(LAST_DAY,)] * 2
    assert len(lane.events("t")) == 1


@lockstep(TableRule("*.t", partition_by=("P",)))
def test_partitions_of_such_a_column_are_those_of_the_rule(lane: Lane) -> Steps:
    lane.run('CREATE TABLE t (id int PRIMARY KEY, p int, "P" int)', "INSERT INTO t VALUES (1, 2, 3)")
    yield
    name, snapshot = lane.name("t"), lane.silver("t").snapshot()
    columns = Records(Lake(lane.config.storage)).tables.read()[name].columns
    [rule] = lane.rules
    assert partitions_to_come(name, rule, snapshot, columns) is None
    assert partitions_to_come(name, replace(rule, partition_by=("p",)), snapshot, columns) is not None


MODES: tuple[RowMode, ...] = ("mirror", "soft_delete", "history", "append")
SHOWN = {"soft_delete": ("_deleted",), "history": ("_is_current",), "append": ("_op",)}
LATER: tuple[Misfits, ...] = ("clamp", "null")


@lockstep(
    *(TableRule(f"*.{mode}_{later}", mode=mode, misfits={"d": "text"}) for mode in MODES for later in LATER)
)
def test_the_text_of_a_misfit_goes_with_it(lane: Lane) -> Steps:
    tables = {f"{mode}_{later}": (mode, later) for mode in MODES for later in LATER}
    for table in tables:
        lane.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, d date, d2 text, d2__text text, big text)",
            f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO {table}"
            " SELECT n, 'infinity', 'a', 'own', repeat('x', 5000) FROM generate_series(1, 5) n",
        )
    yield
    lane.set_rules(*(replace(rule, misfits={"d": tables[rule.source[2:]][1]}) for rule in lane.rules))
    for table in tables:
        lane.run(
            f"UPDATE {table} SET d = '2024-01-01' WHERE id = 1",
            f"UPDATE {table} SET id = 20, d = '2024-01-02' WHERE id = 2",
            f"UPDATE {table} SET d2 = 'b' WHERE id = 3",
            f"INSERT INTO {table} VALUES (6, '-infinity', 'c', 'own', 'short')",
            f"UPDATE {table} SET d2__text = 'other' WHERE id = 4",
        )
    yield
    for table, (mode, _) in tables.items():
        rows = lane.rows(table, "id", "d__text", "d2__text", *SHOWN.get(mode, ()))
        expected = {1: None, 20: None, 3: None, 4: None, 5: "infinity", 6: None}
        if mode == "append":
            rows = [row for row in rows if row[3] != "I" or row[0] == 6]
            del expected[5]
        else:
            rows = [row for row in rows if mode == "mirror" or row[3] is (mode == "history")]
        assert {row[0]: row[1] for row in rows} == expected, table
        assert {row[2] for row in rows} == {"own", "other"}, table


@lockstep(TableRule("*.t", misfits={"d": "text"}))
def test_rows_that_are_found_as_a_whole_lose_it_too(lane: Lane) -> Steps:
    lane.run(
        "CREATE TABLE t (id int, d date)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'infinity'), (2, 'infinity'), (3, 'infinity')",
    )
    yield
    lane.set_rules()
    lane.run("UPDATE t SET d = '2024-01-01' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    yield
    assert lane.rows("t", "id", "d__text") == [(1, None), (3, "infinity")]


@lockstep(TableRule("*.t", "shop"), TableRule("shop.*"))
def test_a_table_does_not_lie_in_the_folder_of_another(lane: Lane) -> Steps:
    lane.run("CREATE SCHEMA shop", "CREATE TABLE shop.o (id int PRIMARY KEY)", "CREATE TABLE t (id int)")
    lane.run("INSERT INTO shop.o VALUES (1)", "INSERT INTO t VALUES (1)")
    yield STOPPED
    assert lane.state("t").failure is None
    failure = lane.summary.tables[TableName("shop", "o")].failure
    assert failure is not None
    assert failure.startswith("Table shop.o would lie in the folder of the silver table shop")
    assert lane.summary.exit_code(strict=False) == 1


DOCUMENTS = "(id int PRIMARY KEY, n int, body text, notes text[])"


def changes(lane: Lane, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table in mode `append`, in the order of changes."""
    order = [("_commit_lsn", "ascending"), ("_ordinal", "ascending")]
    found: list[dict[str, Any]] = lane.silver(table).rows().sort_by(order).to_pylist()
    return found


@lockstep(TableRule("*.*", mode="append"))
def test_rows_that_another_key_identified_are_not_searched(lane: Lane) -> Steps:
    for table in ("batches", "one_batch"):
        lane.run(f"CREATE TABLE {table} {DOCUMENTS}", f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL")
    yield
    steps = (
        ("INSERT INTO {} VALUES (1, 0, repeat('a', 3000), NULL)", "UPDATE {} SET n = 1"),
        ("ALTER TABLE {} REPLICA IDENTITY FULL", "UPDATE {} SET n = 2"),
        ("ALTER TABLE {} REPLICA IDENTITY DEFAULT", "UPDATE {} SET n = 3"),
    )
    for statements in steps:
        lane.run(*(each.format("batches") for each in statements))
        if statements is steps[-1]:
            lane.run(*(each.format("one_batch") for step in steps for each in step))
        yield
    for table in ("batches", "one_batch"):
        storage = lane.config.storage
        assert assert_equals_model(
            lane.source, storage.root, lane.config.pipeline, "append", lane.name(table)
        )
        found = [
            (row["id"], row["_op"], row["body"] and row["body"][0], row["notes"], row["_unchanged"])
            for row in changes(lane, table)
        ]
        assert found == [
            (1, "I", "a", None, None),
            (1, "U", "a", None, None),
            (1, "U", "a", None, None),
            (1, "U", None, None, ["body"]),
        ], table


LOST: tuple[Misfits, ...] = ("null", "text")


@lockstep(*(TableRule(f"*.{p}_*", mode="append", types={"body": "DATE"}, misfits={"body": p}) for p in LOST))
def test_a_misfit_is_not_filled_from_an_earlier_row(lane: Lane) -> Steps:
    policies = {f"{policy}_{cut}": policy for policy in LOST for cut in ("batches", "one_batch")}
    for table in policies:
        lane.run(f"CREATE TABLE {table} {DOCUMENTS}", f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL")
    yield
    batches = (
        "INSERT INTO {} VALUES (1, 0, '2026-01-31', NULL), (2, 0, repeat('a', 3000), NULL)",
        "UPDATE {} SET body = repeat('b', 3000)",
        "UPDATE {} SET n = 1 WHERE id = 1",
    )
    for statement in batches:
        lane.run(*(statement.format(table) for table in policies if table.endswith("_batches")))
        if statement is batches[-1]:
            lane.run(*(b.format(table) for b in batches for table in policies if "one" in table))
        yield
    for table, policy in policies.items():
        last = changes(lane, table)[-1]
        texts = {name: value for name, value in last.items() if name.startswith("body") and name != "body"}
        assert last["body"] is None
        if policy == "text":
            assert [value and value[0] for value in texts.values()] == ["b"]
            assert last["_unchanged"] is None
        else:
            assert not texts
            assert last["_unchanged"] == ["body"]
        assert len(lane.records("misfits", table)) == 3  # one for each value that was sent
