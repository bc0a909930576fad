"""Hashes are those of texts: where a type has other texts, silver is held or an event is recorded."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.bronze.log import Bronze
from pipeline.bronze.schema import RELATIONS, spark_ddl
from pipeline.config.config import Protocol
from pipeline.config.tables import ColumnRules, RowMode, TableRule
from pipeline.delta.table import Lake
from pipeline.operate.resync import run_resync
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import succeeded
from tests.support.servers import Database

KEY = "the key of the tests, 123"
HASHED = ColumnRules(hash={"k": "hmac-sha256"})


def make(
    database: Database, folder: Path, rules: ColumnRules = HASHED, mode: RowMode = "mirror"
) -> NativePipeline:
    rule = TableRule("public.*", columns=rules, mode=mode)
    return NativePipeline.make(database, folder, rule, hash_key=KEY)


def kinds(pipeline: NativePipeline, table: str) -> list[str]:
    return [kind for kind, _ in pipeline.events(table)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history"])
def test_a_key_whose_type_has_other_texts_holds_its_table(
    database: Database, tmp_path: Path, mode: RowMode
) -> None:
    pipeline = make(database, tmp_path, mode=mode)
    pipeline.catch_up(
        "CREATE TABLE t (k numeric(10,2) PRIMARY KEY, v text)", "INSERT INTO t VALUES (1,'a'),(2,'b'),(3,'c')"
    )
    succeeded(pipeline.catch_up("ALTER TABLE t ALTER k TYPE numeric(12,2)", "UPDATE t SET v='b2' WHERE k=2"))
    assert kinds(pipeline, "t") == []
    assert ("b2",) in pipeline.rows("t", "v")
    before = pipeline.rows("t", "v")
    pipeline.catch_up(
        "ALTER TABLE t ALTER k TYPE numeric(12,3)",
        "UPDATE t SET v='x' WHERE k=1",
        "DELETE FROM t WHERE k=2",
    )
    assert pipeline.rows("t", "v") == before
    [(kind, sentence)] = pipeline.events("t")
    assert kind == "resync"
    assert "the type of k changed" in sentence
    assert "pgdelta resync --table public.t" in sentence
    run_resync(pipeline.config, ["public.t"])
    pipeline.catch_up("UPDATE t SET v='y' WHERE k=3")
    if mode == "mirror":
        assert pipeline.rows("t", "v") == [("x",), ("y",)]


@pytest.mark.promise("protected columns")
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_hashed_key_is_copied_after_a_type_change(
    database: Database, tmp_path: Path, identity: str
) -> None:
    rule = TableRule("public.*", columns=HASHED)
    pipeline = NativePipeline.make(database, tmp_path, rule, copy="initial", hash_key=KEY)
    pipeline.config = replace(pipeline.config, silver=replace(pipeline.config.silver, resync="auto"))
    key = "PRIMARY KEY" if identity == "DEFAULT" else "NOT NULL"
    pipeline.catch_up(
        f"CREATE TABLE t (k numeric(10,2) {key}, v text)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1,'a'),(2,'b')",
    )
    pipeline.catch_up("ALTER TABLE t ALTER k TYPE numeric(12,3)", "UPDATE t SET v='x' WHERE k=1")
    assert "resync" in kinds(pipeline, "t"), pipeline.events("t")
    pipeline.catch_up("UPDATE t SET v='y' WHERE k=2")
    assert pipeline.rows("t", "v") == [("x",), ("y",)]
    assert pipeline.apply().doubts == {}


@pytest.mark.promise("protected columns")
def test_names_that_a_prepared_transaction_swaps_hold_the_table(database: Database, tmp_path: Path) -> None:
    pipeline = NativePipeline.make(
        database,
        tmp_path,
        TableRule("public.*", columns=ColumnRules(hash={"email": "hmac-sha256"})),
        copy="initial",
        hash_key=KEY,
        protocol=Protocol(two_phase=True),
    )
    pipeline.catch_up(
        "CREATE TABLE t (id int PRIMARY KEY, email text, mid int, note text)",
        "INSERT INTO t VALUES (1, 'e', 1, 'n')",
    )
    before = pipeline.rows("t", "id", "note")
    moves = "email TO x", "note TO email", "x TO note"
    swap = "; ".join(f"ALTER TABLE t RENAME {move}" for move in moves)
    name = f"swap_{database.name}"
    insert = "INSERT INTO t (id, note, email) VALUES (2, 'e', 'n')"
    pipeline.catch_up(f"BEGIN; {swap}; {insert}; PREPARE TRANSACTION '{name}'")
    pipeline.catch_up(f"COMMIT PREPARED '{name}'")
    assert any("the rule of column email changed from none" in text for _, text in pipeline.events("t"))
    assert pipeline.rows("t", "id", "note") == before
    run_resync(pipeline.config, ["public.t"])
    pipeline.catch_up()
    assert [row[0] for row in pipeline.rows("t", "id")] == [1, 2]


def test_a_column_whose_type_has_other_texts_is_an_event(database: Database, tmp_path: Path) -> None:
    rules = ColumnRules(hash={"e": "hmac-sha256"}, mask={"c": "last4", "m": "***"})
    pipeline = make(database, tmp_path, rules)
    columns = "e varchar(20), c varchar(20), m varchar(20)"
    row = "'a','12345678','m'"
    pipeline.catch_up(f"CREATE TABLE t (id int PRIMARY KEY, {columns})", f"INSERT INTO t VALUES (1,{row})")
    pipeline.catch_up("ALTER TABLE t ALTER e TYPE varchar(30)", f"INSERT INTO t VALUES (2,{row})")
    assert kinds(pipeline, "t") == []
    pipeline.catch_up(
        *(f"ALTER TABLE t ALTER {name} TYPE char(9) USING 'x'||{name}" for name in "ecm"),
        f"INSERT INTO t VALUES (3,{row})",
    )
    assert [row[0] for row in pipeline.rows("t", "id")] == [1, 2, 3]
    changed = [sentence.split(" changed")[0] for kind, sentence in pipeline.events("t") if kind == "resync"]
    assert sorted(changed) == ["The type of column c", "The type of column e"]
    pipeline.catch_up(f"INSERT INTO t VALUES (4,{row})")
    assert len(pipeline.events("t")) == 2


def test_a_dropped_default_of_an_added_column_is_an_event(database: Database, tmp_path: Path) -> None:
    rules = {
        "plain": ColumnRules(),
        "hashed": ColumnRules(hash={"e": "hmac-sha256"}),
        "masked": ColumnRules(mask={"e": "***"}),
        "nothing": ColumnRules(mask={"e": None}),
        "out": ColumnRules(exclude=("e",)),
    }
    tables = (TableRule(f"public.{name}", columns=columns) for name, columns in rules.items())
    pipeline = NativePipeline.make(database, tmp_path, *tables, hash_key=KEY)
    for statements in (
        ("CREATE TABLE {} (id int PRIMARY KEY)", "INSERT INTO {} VALUES (1)"),
        (
            "ALTER TABLE {} ADD e text NOT NULL DEFAULT 'x'",
            "ALTER TABLE {} ALTER e DROP DEFAULT",
            "VACUUM FULL {}",  # writes the default into the rows
            "INSERT INTO {} VALUES (3, 'x')",
        ),
    ):
        pipeline.catch_up(*(statement.format(name) for name in rules for statement in statements))
    assert {name for name in rules if "resync" in kinds(pipeline, name)} == {"plain", "hashed", "masked"}
    assert pipeline.rows("nothing", "id", "e") == [(1, None), (3, None)]


@pytest.mark.parametrize(("identity", "mode"), [("FULL", "mirror"), ("DEFAULT", "append")])
def test_rows_are_found_by_all_columns_or_by_none(
    database: Database, tmp_path: Path, identity: str, mode: RowMode
) -> None:
    pipeline = make(database, tmp_path, ColumnRules(hash=dict.fromkeys("ke", "hmac-sha256")), mode)
    pipeline.catch_up(
        "CREATE TABLE t (k int PRIMARY KEY, e numeric(5,1))",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1,1),(2,2)",
    )
    pipeline.catch_up(
        "ALTER TABLE t ALTER e TYPE numeric(5,2), ALTER k TYPE numeric(5,1)", "DELETE FROM t WHERE k=1"
    )
    assert len(pipeline.rows("t", "k")) == (2 if identity == "FULL" else 3)
    assert kinds(pipeline, "t") == (["resync"] if identity == "FULL" else [])


def test_a_lake_of_an_earlier_version_records_types_from_now_on(database: Database, tmp_path: Path) -> None:
    pipeline = make(database, tmp_path)
    relations = Bronze(Lake(pipeline.config.storage), pipeline.config.pipeline).relations
    pipeline.catch_up("CREATE TABLE t (k numeric(10,2) PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    earlier = spark_ddl(RELATIONS).replace(", type_oid: BIGINT, type_modifier: INT>>", ">>")
    assert earlier != spark_ddl(RELATIONS)
    relations.overwrite_rows(relations.rows().to_pylist(), earlier, replaces_schema=True)
    pipeline.catch_up("ALTER TABLE t ADD v text", "INSERT INTO t VALUES (2)")
    assert len(pipeline.rows("t", "k")) == 2
    pipeline.catch_up("ALTER TABLE t ALTER k TYPE numeric(10,3)", "INSERT INTO t VALUES (3)")
    assert kinds(pipeline, "t") == ["evolved", "resync"]
