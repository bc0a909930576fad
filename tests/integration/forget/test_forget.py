"""A subject that was erased is nowhere in the lake any more, and everything else is as it was."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.config.config import Protocol
from pipeline.config.tables import TableRule
from pipeline.crash_steps import ForgetStep
from pipeline.delta.locks import lock_apply
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError
from pipeline.forget.forget import run_forget
from pipeline.forget.receipt import ForgetReceipt
from pipeline.key_ranges import KeyRange
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.reconciliations import DIFFERENCES
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.postgres.replication.slot_lock import connect_with_lock
from pipeline.protocol.lsn import LSN
from pipeline.silver.read.as_of import as_of
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from pipeline.verify.fingerprint import run_fingerprint
from tests.support import oracle
from tests.support.fault_points import crash_at
from tests.support.files import places_of
from tests.support.pages import render
from tests.support.pipelines import Crash, MakePipeline, Pipeline, with_rules, with_writer
from tests.support.running import applying
from tests.support.threads import wait_until

SECRET = "xyzzySubject"  # in every value of the subject, also in its keys
PERSON = (
    "CREATE TABLE person (id text PRIMARY KEY, name text, big text, doc jsonb, tags text[], odd text)",
    "ALTER TABLE person ALTER big SET STORAGE EXTERNAL",
)
BIG = f"repeat('{SECRET}Big', 2000)"


def row(key: str, word: str = SECRET) -> str:
    """Return a statement that inserts a row with a word in every column."""
    doc = json.dumps({"word": word})
    return (
        f"INSERT INTO person VALUES ('{key}', '{word}Name', {BIG.replace(SECRET, word)}, '{doc}', "
        f"'{{{word}Tag}}', '{word}Odd')"
    )


def forget(pipeline: Pipeline, *keys: str, **options: Any) -> ForgetReceipt:
    given = [(key,) for key in keys]
    return run_forget(pipeline.config, "public.person", given, **options)


def assert_whole(pipeline: Pipeline) -> None:
    """Assert that all that reads the lake finds it complete."""
    audit = run_audit(pipeline.config)
    assert audit.findings == ()
    assert audit.chain.is_from_the_beginning
    assert_equal(pipeline, "person", "other")
    manifest = Manifests(Lake(pipeline.root)).last()
    assert manifest is not None
    entry = manifest.by_name[TableName("public", "person")]
    shown = Lake(pipeline.root).table_at(entry.path).snapshot(entry.version)
    assert shown.row_count == len(people(pipeline))
    table = DeltaTable(str(pipeline.path("silver", "public", "person")))
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == people(pipeline)


def assert_equal(pipeline: Pipeline, *tables: str) -> None:
    """Assert that silver equals the source; bronze lacks the ordinals of erased changes."""
    names = [TableName("public", table) for table in tables]
    types = {"odd": "int"}
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, names, overrides=types)


def people(pipeline: Pipeline) -> list[str]:
    return [row[0] for row in pipeline.source.execute('SELECT id FROM person ORDER BY id COLLATE "C"')]


@pytest.fixture
def lived(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose source has deleted a subject that left traces in all places."""
    protocol = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))
    made = make_pipeline(create_publication="all", copy="initial", protocol=protocol)
    pipeline = with_rules(made, TableRule("public.*", types={"odd": "INT"}))
    pipeline.run(
        *PERSON,
        "CREATE TABLE other (id int PRIMARY KEY, v text)",
        "ALTER TABLE other ALTER v SET STORAGE PLAIN",  # else it would not fill the server's memory
        "INSERT INTO other VALUES (1, 'one')",
        f"ALTER DATABASE {pipeline.database.name} SET logical_decoding_work_mem = '64kB'",
        row(f"{SECRET}1"),
        row("kept", "kept"),
    )
    pipeline.catch_up()  # by a copy
    run_resync(
        pipeline.config,
        ["public.person"],
        key_ranges=[KeyRange((f"{SECRET}1",), (f"{SECRET}1",))],
    )
    pipeline.catch_up()
    pipeline.catch_up(
        f"UPDATE person SET name = '{SECRET}Second' WHERE id = '{SECRET}1'",
        f"UPDATE person SET id = '{SECRET}2' WHERE id = '{SECRET}1'",
        row("later", "later"),
        "UPDATE person SET name = 'new' WHERE id = 'kept'",
    )
    pipeline.run("UPDATE person SET odd = '7' WHERE id IN ('kept', 'later')")
    pipeline.prepare("p", f"UPDATE person SET name = '{SECRET}Prepared' WHERE id = '{SECRET}2'")
    pipeline.ingest()
    pipeline.run("COMMIT PREPARED 'p'")
    filler = "INSERT INTO other SELECT 100 + i, repeat('x', 6000) FROM generate_series(1, 40) i"
    with pipeline.database.connect() as session:
        rolled_back = f"UPDATE person SET name = '{SECRET}RolledBack' WHERE id = '{SECRET}2'"
        for statement in ("BEGIN", rolled_back, filler):
            session.execute(statement.encode())
        pipeline.ingest()
        session.execute("ROLLBACK")
    with pipeline.database.connect() as session:
        for statement in ("BEGIN", row(f"{SECRET}9"), filler, f"DELETE FROM person WHERE id = '{SECRET}9'"):
            session.execute(statement.encode())
        session.execute("COMMIT")  # streamed
    pipeline.catch_up("UPDATE other SET v = 'two' WHERE id = 1")
    streamed = "SELECT sum(stream_txns) > 0 FROM pg_stat_replication_slots"
    wait_until(lambda: pipeline.database.run(streamed) == [(True,)])
    found = Lake(pipeline.root, pipeline.spark).table("_pgdelta", "differences")
    found.ensure(DIFFERENCES)
    different = {"run_id": "1", "schema_name": "public", "table_name": "person", "lsn": 1, "kind": "changed"}
    differences = [
        {**different, "key": json.dumps({"id": key}), "columns": ["name"], "copies": 1}
        for key in (f"{SECRET}2", "kept")
    ]
    found.append_rows(differences, DIFFERENCES)
    pipeline.catch_up(f"DELETE FROM person WHERE id = '{SECRET}2'")
    return pipeline


@pytest.mark.spark
@pytest.mark.promise("erasure")
def test_nothing_of_the_subject_remains(lived: Pipeline) -> None:
    lake = lived.path()
    run_fingerprint(lived.config)
    before = places_of(lake, SECRET)
    for place in ("bronze/changes", "bronze/copies", "bronze/prepared", "silver/public/person"):
        assert any(path.startswith(place) for path in before), place
    for place in ("misfits", "differences", "requests"):
        assert any(path.startswith(f"_pgdelta/{place}") for path in before), place
    history = lived.frame("bronze", "changes").where("table_name = 'person'").count()
    others = lived.frame("bronze", "changes").where(f"NOT array_contains(new, '{SECRET}')").count()
    assert others > 0

    counted = forget(lived, f"{SECRET}2", f"{SECRET}9", is_dry_run=True)
    assert places_of(lake, SECRET) == before
    receipt = forget(lived, f"{SECRET}2", f"{SECRET}9")
    assert places_of(lake, SECRET) == []
    rows = {place.place: place.rows for place in receipt.places}
    assert rows == {place.place: place.rows for place in counted.places} | {"bronze/prepared": 0}
    assert (receipt.keys_given, receipt.keys) == (2, 3)
    assert (rows["_pgdelta/differences"], rows["_pgdelta/requests"]) == (1, 1)
    assert rows["_pgdelta/fingerprints"] == 1
    assert rows["_pgdelta/misfits"] >= 1
    page = render(receipt.print, 80)
    assert "3 keys" in page
    assert all(len(line) <= 80 for line in page.splitlines())
    assert SECRET not in page + json.dumps(receipt.as_json())

    # what is not the subject's is all there
    left = lived.frame("bronze", "changes").where("table_name = 'person'")
    assert left.count() == history - rows["bronze/changes"]
    assert {r.new[1] for r in left.where("op IN ('R', 'I', 'U')").collect()} == {
        "keptName",
        "new",
        "laterName",
    }
    assert [r.key for r in lived.frame("_pgdelta", "differences").collect()] == ['{"id": "kept"}']
    misfits = {r.raw_text for r in lived.frame("_pgdelta", "misfits").collect()}
    assert misfits == {"keptOdd", "laterOdd"}
    assert_whole(lived)
    recorded = lived.frame("_pgdelta", "erasures").collect()
    assert [{p.place: p.rows for p in r.places} for r in recorded] == [rows]

    # all commands go on
    first = lived.frame("_pgdelta", "manifests").orderBy("lsn").first()
    assert first is not None
    earlier = as_of(lived.session, lived.root, lsn=LSN(first.lsn))
    with pytest.raises(LakeError, match=r"Delta's log of .* does not have version"):
        _ = earlier[TableName("public", "person")]
    lived.catch_up(row("newer", "newer"), "UPDATE person SET odd = '8', name = 'again' WHERE id <> 'later'")
    assert_whole(lived)
    run_resync(lived.config, ["public.person"], key_ranges=[KeyRange(("kept",), ("kept",))])
    lived.catch_up()
    run_rebuild(lived.config, ["public.person"])
    assert_whole(lived)
    assert places_of(lake, SECRET) == []
    again = forget(lived, f"{SECRET}2")
    assert sum(place.rows for place in again.places) == 0
    assert_whole(lived)


@pytest.mark.sample(1)
@pytest.mark.spark
@pytest.mark.promise("erasure")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_crashes_is_ended_by_the_next(lived: Pipeline, when: str) -> None:
    keys = (f"{SECRET}2", f"{SECRET}9")
    for step in ForgetStep:
        for passing in (0, 2) if step is ForgetStep.END_HISTORY else (0,):
            with crash_at(step, when, passing=passing), pytest.raises(Crash):
                forget(lived, *keys)
            assert_whole(lived)
            if step is ForgetStep.REMOVE_INTENT and when == "after":
                assert places_of(lived.path(), SECRET) == []
                return
    forget(lived, f"{SECRET}2")  # the other keys are on disk
    assert places_of(lived.path(), SECRET) == []
    assert not lived.path("_pgdelta", "forget").exists()
    assert_whole(lived)
    assert lived.frame("_pgdelta", "erasures").count() == 1


@pytest.fixture
def small(pipeline: Pipeline) -> Pipeline:
    """Give a pipeline whose silver shows a subject."""
    pipeline.ingest()
    pipeline.catch_up(
        "CREATE TABLE person (id numeric(6,2), part int, name text, PRIMARY KEY (id, part))",
        "INSERT INTO person VALUES (1.50, 1, 'one'), (2, 1, 'two')",
        "CREATE TABLE other (id int)",
        "ALTER TABLE other REPLICA IDENTITY FULL",
        "INSERT INTO other VALUES (1)",
    )
    return pipeline


def forget_keys(pipeline: Pipeline, *keys: tuple[str, ...], table: str = "public.person") -> ForgetReceipt:
    return run_forget(pipeline.config, table, keys)


@contextmanager
def refused(pipeline: Pipeline, sentence: str, kind: type[Exception] = LakeError) -> Iterator[None]:
    """Assert that the block is refused, and changes nothing."""
    before = {path for path in pipeline.path().rglob("*") if path.is_file()}
    with pytest.raises(kind, match=sentence):
        yield
    now = {path for path in pipeline.path().rglob("*") if path.is_file()}
    assert {p for p in now ^ before if "spark" not in p.name and "locks" not in p.parts} == set()


def test_what_cannot_be_promised_is_refused(small: Pipeline) -> None:
    with refused(small, "still has a row with one of the keys"):
        forget_keys(small, ("1.5", "1"))
    with refused(small, "--key has 1 value, but the key of public.person is .id, part.", ConfigError):
        forget_keys(small, ("1.5",))
    with refused(small, "is not valid for its column's type", ConfigError):
        forget_keys(small, ("one", "1"))
    with refused(small, "neither has the source", ConfigError):
        forget_keys(small, ("1", "1"), table="public.persons")
    with refused(small, "The key of public.other is not known"):
        forget_keys(small, ("1",), table="public.other")
    small.ingest("DELETE FROM person WHERE id = 1.5")
    with refused(small, "does not show all changes of bronze yet"):
        forget_keys(small, ("1.5", "1"))
    small.catch_up("UPDATE person SET id = 3 WHERE id = 2")
    with refused(small, "the row lives on"):
        forget_keys(small, ("2", "1"))
    with lock_apply(Lake(small.root, small.spark), "shop"), refused(small, "Another apply is writing"):
        forget_keys(small, ("1.5", "1"))
    source = small.config.source
    with (
        connect_with_lock(source.conninfo, source.slot),
        refused(small, "An ingest of the slot .* is running"),
    ):
        forget_keys(small, ("1.5", "1"))
    receipt = forget_keys(small, ("1.5", "1"))
    assert {p.place: p.rows for p in receipt.places}["bronze/changes"] == 2
    assert_equal(small, "person")


@pytest.mark.slow
@pytest.mark.spark
def test_equal_values_of_a_key_have_several_texts(small: Pipeline) -> None:
    small.catch_up(
        "DELETE FROM person WHERE id = 1.5",
        "ALTER TABLE person ALTER id TYPE numeric(8,4), ADD born date",
        "INSERT INTO person VALUES (1.5, 1, 'x', '2000-01-01'), (15, 1, 'y', NULL)",
        "DELETE FROM person WHERE id = 1.5",
    )
    receipt = forget_keys(small, ("1.50000", "01"))
    assert {p.place: p.rows for p in receipt.places}["bronze/changes"] == 4
    assert_equal(small, "person")


def test_rows_under_a_former_name_that_another_table_has_are_not_erased(small: Pipeline) -> None:
    small.run("ALTER TABLE person RENAME TO customer", "DELETE FROM customer WHERE id = 1.5")
    small.run("CREATE TABLE person (id numeric(6,2), part int, PRIMARY KEY (id, part))")
    small.ingest("INSERT INTO person VALUES (1.5, 1)", "INSERT INTO customer VALUES (4, 4, 'four')")
    small.apply()
    with pytest.raises(LakeError, match=r"was also that of another table|does not show|still has a row"):
        forget_keys(small, ("1.5", "1"), table="public.customer")
    rows = small.frame("bronze", "changes").where("table_name = 'person' AND op = 'I'")
    assert rows.count() == 3


def test_only_the_archive_of_a_former_table_is_refused(
    make_pipeline: MakePipeline,
) -> None:
    made = make_pipeline(create_publication="all", copy="initial")
    pipeline = with_rules(made, TableRule("public.*", detached_tables="archive"))
    pipeline.catch_up(
        "CREATE TABLE person (id int PRIMARY KEY)",
        "INSERT INTO person VALUES (1), (2)",
        'CREATE TABLE "person.5" (id int PRIMARY KEY)',
        'INSERT INTO "person.5" VALUES (5)',
    )
    pipeline.catch_up('DROP TABLE "person.5"', "DELETE FROM person WHERE id = 1")
    former = pipeline.path("archive", "public", "person.6")
    former.mkdir()
    with refused(pipeline, "person.6 has the rows of a former table public.person"):
        forget_keys(pipeline, ("1",))
    former.rmdir()
    forget_keys(pipeline, ("1",))
    assert DeltaTable(str(pipeline.path("archive", "public", "person.5"))).to_pyarrow_table().num_rows == 1


@pytest.mark.promise("erasure")
@pytest.mark.parametrize("policy", ["keep", "archive"])
def test_a_subject_of_a_table_that_the_source_dropped_is_erased(
    make_pipeline: MakePipeline, policy: Any
) -> None:
    made = make_pipeline(create_publication="all", copy="initial")
    pipeline = with_rules(made, TableRule("public.*", detached_tables=policy))
    row = "INSERT INTO person VALUES ({}, '{}')".format
    pipeline.run("CREATE TABLE person (id int PRIMARY KEY, name text)", row(1, "first" + SECRET))
    pipeline.catch_up(row(2, "second" + SECRET), row(3, "third"))
    pipeline.catch_up("DELETE FROM person WHERE id = 1")
    pipeline.catch_up("DROP TABLE person")
    forget_keys(pipeline, ("1",))
    assert places_of(pipeline.path(), "first" + SECRET) == []
    with pytest.raises(LakeError, match=r"follows the source no longer\. Delete the row in .*person"):
        forget_keys(pipeline, ("2",))
    folder = ("archive" if policy == "archive" else "silver", "public")
    [silver] = pipeline.path(*folder).glob("person*")
    DeltaTable(str(silver)).delete("id = 2")
    forget_keys(pipeline, ("2",))
    assert places_of(pipeline.path(), SECRET) == []
    assert DeltaTable(str(silver)).to_pyarrow_table()["name"].to_pylist() == ["third"]
    pipeline.catch_up()
    assert run_audit(pipeline.config).findings == ()


@pytest.mark.promise("erasure")
def test_a_subject_of_a_renamed_table_is_erased(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(create_publication="all", copy="initial")
    pipeline.run("CREATE TABLE person (id int PRIMARY KEY, name text)")
    pipeline.catch_up(f"INSERT INTO person VALUES (1, '{SECRET}'), (2, 'second')")
    pipeline.catch_up("ALTER TABLE person RENAME TO people", "DELETE FROM people WHERE id = 1")
    with pytest.raises(LakeError, match=r"follows the source no longer\. Delete the row in .*person"):
        forget_keys(pipeline, ("1",), table="public.people")
    DeltaTable(str(pipeline.path("silver", "public", "person"))).delete("id = 1")
    forget_keys(pipeline, ("1",), table="public.people")
    assert places_of(pipeline.path(), SECRET) == []
    pipeline.catch_up("INSERT INTO people VALUES (3, 'third')")
    pipeline.assert_equal("people")


def test_files_of_writers_that_died_are_removed_and_those_of_others_stay(small: Pipeline) -> None:
    small.catch_up("DELETE FROM person WHERE id = 1.5")
    changes = small.path("bronze", "changes")
    file = next(path for path in changes.glob("*.parquet") if b"person" in path.read_bytes())
    with_rows = changes / "dead.parquet"
    with_rows.write_bytes(file.read_bytes())
    without = changes / "young.parquet"
    rows = pq.read_table(file).slice(0, 0)
    pq.write_table(pa.Table.from_batches([], rows.schema), without)
    old = changes / "old.parquet"
    old.write_bytes(without.read_bytes())
    os.utime(old, (1, 1))
    staged = small.path("_pgdelta", "staging", "run", "a.parquet")
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.write_bytes(file.read_bytes())
    receipt = forget_keys(small, ("1.5", "1"))
    assert (with_rows.exists(), without.exists(), old.exists(), staged.exists()) == (
        False,
        True,
        False,
        False,
    )
    # Spark leaves files without rows in silver
    (left,) = (place.files_left for place in receipt.places if place.place == "bronze/changes")
    assert left == 1
    without.write_bytes(b"half written")
    with pytest.raises(LakeError, match="1 file that no commit names cannot be read"):
        forget_keys(small, ("1.5", "1"))
    without.unlink()
    forget_keys(small, ("1.5", "1"))
    assert_equal(small, "person")


@pytest.mark.slow
@pytest.mark.spark
def test_rows_that_a_deletion_vector_marks_are_erased(small: Pipeline) -> None:
    table = f"delta.`{small.path('silver', 'public', 'person')}`"
    small.session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    small.catch_up("INSERT INTO person SELECT 100 + i, i, 'row' || i FROM generate_series(1, 50) i")
    small.run("DELETE FROM person WHERE part = 17")
    with_writer(small, "spark").catch_up()
    files = Lake(small.root, small.spark).table("silver", "public", "person").snapshot().files
    assert any(add.get("deletionVector") for add in files.values())
    forget_keys(small, ("117", "17"))
    assert places_of(small.path(), "row17") == []
    assert_equal(small, "person")


@pytest.mark.slow
@pytest.mark.spark
def test_a_continuous_apply_continues_after_forget(small: Pipeline) -> None:
    small.catch_up("DELETE FROM person WHERE id = 1.5")
    forget_keys(small, ("1.5", "1"))
    with applying(small):
        small.ingest("INSERT INTO person VALUES (7, 7, 'seven')")
        wait_until(lambda: small.frame("silver", "public", "person").where("part = 7").count())
    assert_equal(small, "person")
