"""Tables join, are detached, come back, and are copied again."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from pipeline.errors import LakeError, SourceError
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.report.status import read_status
from pipeline.silver.read.as_of import as_of
from pipeline.table_copy.planner import CopyPlanner
from pipeline.table_copy.reader_pool import ReaderPool
from pipeline.table_name import TableName
from tests.support.lives import FILL, TABLE, forbid_copies
from tests.support.pipelines import Pipeline


def altered(pipeline: Pipeline, change: str) -> str:
    """Return what changes the publication."""
    return f"ALTER PUBLICATION {pipeline.config.source.publication} {change}"


def states(pipeline: Pipeline) -> dict[str, str]:
    status = read_status(pipeline.config)
    return {table.name[1]: table.state for table in status.tables}


def with_silver(pipeline: Pipeline, **options: Any) -> Pipeline:
    config = pipeline.config
    silver = replace(config.silver, **options)
    rules = tuple(replace(rule, detached_tables=silver.detached_tables) for rule in config.tables)
    return replace(pipeline, config=replace(config, silver=silver, tables=rules))


@pytest.mark.promise("tables join and leave")
def test_a_table_joins_leaves_and_comes_back(life: Pipeline) -> None:
    life.run(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    life.catch_up("UPDATE b SET v = 'changed' WHERE id < 10", "DELETE FROM a WHERE id < 10")
    life.assert_equal("a", "b")
    life.run(altered(life, "DROP TABLE b"))
    life.catch_up("DELETE FROM b WHERE id > 60", "DELETE FROM a WHERE id > 45", unpublished=["b"])
    life.assert_equal("a")
    assert states(life) == {"a": "current", "b": "unpublished"}
    assert life.frame("silver", "public", "b").count() == 70
    life.catch_up(altered(life, "ADD TABLE b"), "INSERT INTO b VALUES (1000, 'back')")
    life.assert_equal("a", "b")
    assert states(life) == {"a": "current", "b": "current"}
    # removed and added between two looks
    life.run(altered(life, "DROP TABLE b"), "DELETE FROM b WHERE id = 1000", altered(life, "ADD TABLE b"))
    life.catch_up()
    life.assert_follows("a", "b")
    assert not any(kind == "resync" for kind, _ in life.events("b"))
    assert any(kind == "evolved" and "came back" in sentence for kind, sentence in life.events("b"))


@pytest.mark.spark
@pytest.mark.promise("tables that are gone")
@pytest.mark.slow
def test_what_left_is_archived_by_policy(life: Pipeline) -> None:
    life.catch_up(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    life.run("DELETE FROM b WHERE id = 1", "DROP TABLE b")
    archiving = with_silver(life, detached_tables="archive")
    archiving.catch_up()
    assert not life.path("silver", "public", "b").exists()
    assert life.frame("archive", "public", "b").count() == 69
    assert states(life)["b"] == "detached"
    assert any("archive/public/b" in sentence for _, sentence in life.events("b"))
    archiving.catch_up("INSERT INTO a VALUES (100, 'b is left alone')")
    assert [path.name for path in life.path("archive", "public").iterdir()] == ["b"]
    assert not life.path("silver", "public", "b").exists()
    life.run(TABLE.format("b"), FILL.format("b", 1, 7), altered(life, "ADD TABLE b"))
    archiving.catch_up()
    life.assert_equal("a", "b")
    assert life.frame("archive", "public", "b").count() == 69


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
def test_a_table_that_a_copy_described_before_the_stream_came_there_waits(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.run(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    life.run("UPDATE b SET v = 'changed' WHERE id < 10")
    with monkeypatch.context() as patch:
        forbid_copies(patch)
        life.ingest()
    relations = f"delta.`{life.path('bronze', 'relations')}`"
    life.session.sql(f"UPDATE {relations} SET lsn = {2**62} WHERE table_name = 'b'")
    life.apply()
    assert not life.path("silver", "public", "b").exists(), "it would have the changed rows only"
    life.session.sql(f"UPDATE {relations} SET lsn = 1 WHERE table_name = 'b'")
    life.assert_follows("a", "b")


@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
@pytest.mark.slow
@pytest.mark.parametrize("detached_tables", ["keep", "archive"])
def test_a_table_that_came_back_waits_for_its_new_copy(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch, detached_tables: str
) -> None:
    kept = with_silver(life, detached_tables=detached_tables)
    life.run(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    kept.catch_up()
    life.run(altered(life, "DROP TABLE b"), "UPDATE b SET v = 'unseen' WHERE id < 10")
    kept.catch_up(unpublished=["b"])
    life.run(altered(life, "ADD TABLE b"), "UPDATE b SET v = 'seen' WHERE id = 20")
    with monkeypatch.context() as patch:
        patch.setattr(ReaderPool, "run", lambda self: (_ for _ in ()).throw(OSError("only begun today")))
        kept.ingest()
    kept.apply()
    assert states(kept)["b"] == "copying"
    place = ("silver" if detached_tables == "keep" else "archive", "public", "b")
    assert life.frame(*place).where("v = 'seen'").count() == 0
    assert life.path("silver", "public", "b").exists() == (detached_tables == "keep")
    kept.catch_up()
    life.assert_equal("a", "b")


@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
@pytest.mark.slow
def test_a_table_published_again_between_two_runs_is_behind_until_its_copy(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.catch_up(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    life.ingest(altered(life, "DROP TABLE b"), "UPDATE b SET v = 'unseen' WHERE id < 10")
    life.run(altered(life, "ADD TABLE b"))
    life.run("UPDATE b SET v = 'seen' WHERE id = 20", "DELETE FROM a WHERE id = 1")
    with monkeypatch.context() as patch:
        patch.setattr(ReaderPool, "run", lambda self: (_ for _ in ()).throw(OSError("only begun today")))
        life.ingest()
    life.apply()
    silver = as_of(life.session, life.root)
    assert ([*silver], [*silver.behind]) == ([TableName("public", "a")], [TableName("public", "b")])
    rewritten = run_rebuild(life.config, ["public.b"])
    assert "waits for its copy" in (rewritten.tables[TableName("public", "b")].held or "")
    assert [*as_of(life.session, life.root).behind] == [TableName("public", "b")]
    life.assert_follows("a", "b")
    assert as_of(life.session, life.root).behind == {}
    with pytest.raises(LakeError, match="the other tables show"):
        as_of(life.session, life.root, lsn=silver.lsn)[TableName("public", "b")]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
def test_a_table_created_again_between_two_polls_waits_for_its_copy(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = life.config.source.publication
    life.transact(
        "DROP TABLE a",
        "CREATE TABLE a AS SELECT i AS id, 'new' || i AS v FROM generate_series(1, 30) i",
        "ALTER TABLE a ADD PRIMARY KEY (id)",
        f"ALTER PUBLICATION {publication} ADD TABLE a",
    )
    life.run("UPDATE a SET v = 'changed' WHERE id = 7")
    with monkeypatch.context() as patch:
        forbid_copies(patch)
        life.ingest()
    for _ in range(2):
        life.apply()
        assert life.frame("silver", "public", "a").count() == 50, "the old table's rows"
        assert [*as_of(life.session, life.root).behind] == [TableName("public", "a")]
    life.assert_follows("a")
    assert as_of(life.session, life.root).behind == {}
    assert life.frame("bronze", "copies").where("state = 'complete'").count() == 2, "copied once more"


@pytest.mark.spark
@pytest.mark.slow
def test_a_name_that_another_table_had_for_a_moment_has_its_table_copied(life: Pipeline) -> None:
    life.catch_up(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    swap = ("ALTER TABLE a RENAME TO c", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b")
    for _ in range(2):
        life.transact(*swap)
        life.run("UPDATE a SET v = 'as a' WHERE id = 1", "UPDATE b SET v = 'as b' WHERE id = 2")
    for _ in range(3):  # it waits, is asked for, is there
        life.ingest()
        life.apply()
    life.assert_equal("a", "b")
    assert as_of(life.session, life.root).behind == {}


def test_a_table_that_cannot_be_copied_is_held_until_it_can_be(life: Pipeline) -> None:
    role = f"{life.database.name}_reader"
    life.run(f"CREATE ROLE {role} LOGIN", TABLE.format("b"), FILL.format("b", 1, 70))
    life.run(altered(life, "ADD TABLE b"))
    conninfo = life.database.server.conninfo_of(life.database.name, role)
    source = replace(life.config.source, copying=replace(life.config.source.copying, conninfo=conninfo))
    reading = replace(life, config=replace(life.config, source=source))
    for _ in range(2):
        assert reading.ingest().exit_code(strict=False) == 1
        reading.apply()
    [(kind, sentence)] = life.events("b")
    assert kind == "held"
    assert f'GRANT SELECT ON … TO "{role}"' in sentence
    status = read_status(reading.config)
    assert {table.name[1]: (table.state, table.sentence) for table in status.tables}["b"] == (kind, sentence)
    assert status.is_held
    life.run(f"GRANT SELECT ON b TO {role}")
    reading.catch_up()
    life.assert_equal("a", "b")
    assert states(reading) == {"a": "current", "b": "current"}
    life.run(TABLE.format("c"), FILL.format("c", 1, 7), altered(life, "ADD TABLE c"))
    reading.ingest()
    assert states(reading)["c"] == "held"
    life.ingest("DROP TABLE c", f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert "c" not in states(life)


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_that_cannot_be_described_is_held_until_it_can_be(
    life: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.run(TABLE.format("b"), FILL.format("b", 1, 70), altered(life, "ADD TABLE b"))
    with monkeypatch.context() as patch:
        patch.setattr(CopyPlanner, "plan", lambda *_: (_ for _ in ()).throw(SourceError("not today.")))
        assert life.ingest().exit_code(strict=False) == 1
    assert life.events("b") == [("held", "The table cannot be copied: not today.")]
    assert states(life)["b"] == "held"
    life.assert_follows("a", "b")
    assert states(life) == {"a": "current", "b": "current"}


@pytest.mark.spark
@pytest.mark.slow
def test_changes_under_another_name_of_a_table_are_an_event_and_are_copied(life: Pipeline) -> None:
    auto = with_silver(life, resync="auto")
    away = "ALTER TABLE a RENAME TO c"
    back = "ALTER TABLE c RENAME TO a"
    for night in range(3):
        with life.source.transaction() if night == 2 else nullcontext():
            life.run(away, f"UPDATE c SET v = 'as c {night}' WHERE id = 1", back)
            if night == 1:  # nothing came under its own name since: ingest sees that, and copies it
                life.run("INSERT INTO d VALUES (1)")
                auto.catch_up()
                life.assert_equal("a")
            life.run(f"UPDATE a SET v = 'as a {night}' WHERE id = 2")
        if night == 0:
            life.run(TABLE.format("d"), altered(life, "ADD TABLE d"))
        auto.catch_up()
        told = [sentence for kind, sentence in life.events("a") if kind == "resync"]
        assert len(told) == (1, 1, 2)[night]
        assert all("public.c" in sentence for sentence in told)
        auto.catch_up()
        life.assert_equal("a")


@pytest.mark.spark
@pytest.mark.promise("tables join and leave")
@pytest.mark.slow
def test_a_table_out_of_the_configuration_and_back(life: Pipeline) -> None:
    rules = life.config.tables
    without = replace(life, config=replace(life.config, tables=(replace(rules[0], source="public.none"),)))
    life.run("INSERT INTO a VALUES (100, 'seen')")
    without.ingest()
    without.apply()
    assert states(without) == {"a": "detached"}
    life.catch_up("INSERT INTO a VALUES (101, 'seen later')")
    life.assert_equal("a")


@pytest.mark.spark
@pytest.mark.promise("resyncs")
@pytest.mark.slow
def test_a_table_is_copied_again_on_request(life: Pipeline) -> None:
    # silver differs from the source, which nobody but an operator knows
    life.run("ALTER TABLE a DISABLE TRIGGER ALL", altered(life, "SET (publish = 'insert')"))
    life.run("DELETE FROM a WHERE id = 5")
    life.catch_up(altered(life, "SET (publish = 'insert, update, delete, truncate')"))
    assert life.frame("silver", "public", "a").where("id = 5").count() == 1
    summary = run_resync(life.config, ["public.a"])
    assert summary.tables == (TableName("public", "a"),)
    assert states(life) == {"a": "current"}
    life.apply()
    assert life.frame("silver", "public", "a").where("id = 5").count() == 1  # as it was, until it is copied
    version = life.frame("silver", "public", "a").count()
    assert version == 50
    life.assert_follows("a")
    history = life.session.sql(
        f"DESCRIBE HISTORY delta.`{life.path('silver', 'public', 'a')}` LIMIT 1"
    ).collect()
    assert history[0].operation == "WRITE"  # by one commit
    life.catch_up("UPDATE a SET v = 'after' WHERE id < 20")
    life.assert_equal("a")


def test_a_volatile_default_added_after_an_unapplied_copy_is_an_event(life: Pipeline) -> None:
    auto = with_silver(life, resync="auto")
    run_resync(life.config, ["public.a"])
    life.ingest()  # the copy is complete, and silver has not got it
    life.run(
        "ALTER TABLE a ADD c timestamptz DEFAULT clock_timestamp()", "INSERT INTO a VALUES (100, 'behind it')"
    )
    auto.catch_up()
    assert life.frame("silver", "public", "a").where("c IS NULL").count() == 50
    [sentence] = [sentence for kind, sentence in life.events("a") if kind == "resync"]
    assert sentence.startswith("Column c was added with a default")
    auto.catch_up()
    life.assert_equal("a")


@pytest.mark.spark
@pytest.mark.slow
def test_what_the_stream_cannot_carry_is_copied_by_policy(life: Pipeline) -> None:
    auto = with_silver(life, resync="auto")
    life.run("ALTER TABLE a ADD w char(3) DEFAULT 'x'", "UPDATE a SET v = 'see' WHERE id = 1")
    auto.catch_up()
    life.run("ALTER TABLE a ALTER w TYPE char(5)", "UPDATE a SET v = 'it' WHERE id = 1")
    auto.catch_up()
    assert any(kind == "resync" for kind, _ in life.events("a"))
    auto.catch_up()
    life.assert_equal("a")
