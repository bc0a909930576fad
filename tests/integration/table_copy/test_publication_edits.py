"""Edits of the publication: what missed no change does nothing, and the rest is compared with the source."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal

import pytest

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.errors import PublicationGapError, SourceError
from pipeline.metadata.catalog import CatalogTable
from pipeline.operate.machine_checks import run_all_checks
from pipeline.postgres.connection import connect
from pipeline.postgres.publication_rows import HarmlessEdits, read_publication_rows
from pipeline.table_copy import coordinator
from pipeline.table_name import TableName
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.running import continuous
from tests.support.servers import Database, database_of_each
from tests.support.threads import wait_until

TABLES = ("a", "b")
WHOLE = "publish = 'insert, update, delete, truncate'"

database = database_of_each(13, 15)


@pytest.fixture
def tables(database: Database, make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline whose silver tables equal the source, with a publication that a person made."""
    pipeline = make_pipeline("public.a", "public.b", copy="initial")
    for name in TABLES:
        pipeline.run(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int, w int)",
            f"INSERT INTO {name} SELECT i, i, i FROM generate_series(1, 20) i",
        )
    pipeline.catch_up(f"CREATE PUBLICATION {database.name} FOR TABLE a, b")
    pipeline.catch_up("UPDATE a SET v = 0 WHERE id = 1")
    return pipeline


def edit(pipeline: Pipeline, *edits: str) -> None:
    """Edit the publication in one transaction."""
    name = pipeline.config.source.publication
    pipeline.transact(*(f"ALTER PUBLICATION {name} {each}" for each in edits))


def requested(pipeline: Pipeline) -> set[str]:
    """Return the tables for which a comparison is requested, and no copy."""
    found = Bronze(Lake(pipeline.root), pipeline.config.pipeline).copies.read().open_requests
    assert all(each.compares for requests in found.values() for each in requests)
    return {name.table for name in found}


def copies(pipeline: Pipeline) -> list[str]:
    """Return what was copied, and in which state it is."""
    rows = pipeline.frame("bronze", "copies").collect()
    return sorted(f"{row.table_name} {row.state}" for row in rows if row.state in ("complete", "dropped"))


HARMLESS = (
    ("DROP TABLE a", "ADD TABLE a"),
    ("DROP TABLE a, b", "ADD TABLE a", "ADD TABLE b"),
    (f"SET ({WHOLE})",),
    ("OWNER TO {role}",),
)
NARROWED = "SET (publish = 'insert')"
UNPROVED = (
    (("DROP TABLE a",), ("ADD TABLE a",)),
    ((NARROWED,), (f"SET ({WHOLE})",)),
    ((NARROWED, f"SET ({WHOLE})"),),
)


def with_owner(tables: Pipeline, edits: Iterable[str]) -> list[str]:
    """Return edits with the name of a role that exists."""
    role = f"owner_{tables.database.name}"
    if not tables.database.run(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
        tables.run(f"CREATE ROLE {role} SUPERUSER")
    return [each.format(role=role) for each in edits]


def is_proved(pipeline: Pipeline, *transactions: Sequence[str]) -> bool:
    """Return whether two snapshots prove that transactions of edits let no change be missed."""
    name, found = pipeline.config.source.publication, HarmlessEdits()
    with closing(connect(pipeline.config.source.conninfo)) as held:
        held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        earlier = {(row.kind, row.facts): row for row in read_publication_rows(held, name)}
        for edits in transactions:
            edit(pipeline, *edits)
        before = read_publication_rows(held, name)
        held.execute("ROLLBACK")
        now = read_publication_rows(held, name)
    found.add(before, now)
    pairs = [(earlier[row.kind, row.facts], row) for row in now]
    return all(
        found.keeps_entry(old.oid, new.oid) if new.kind else found.is_harmless(old.xmin, new.xmin)
        for old, new in pairs
    )


def test_two_snapshots_prove_which_edits_missed_no_change(tables: Pipeline) -> None:
    for edits in HARMLESS:
        assert is_proved(tables, with_owner(tables, edits)), edits
    for transactions in UNPROVED:
        assert not is_proved(tables, *transactions), transactions
    between = f"; INSERT INTO a VALUES (91, 1, 1); ALTER PUBLICATION {tables.config.source.publication}"
    assert not is_proved(tables, [f"DROP TABLE a{between} ADD TABLE a"]), "that row is not sent"
    if tables.database.server_major >= 15:
        assert not is_proved(tables, ["SET TABLE a WHERE (id > 5), b"], ["SET TABLE a, b"])


@pytest.mark.promise("edited publications")
def test_edits_during_a_continuous_run_do_nothing(tables: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "POLL_SECONDS", 1.5)
    name, before = tables.database.name, copies(tables)
    held = f"SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = '{name}'"
    with continuous(tables) as running:
        for number, edits in enumerate(HARMLESS):
            wait_until(lambda: tables.database.run(held))
            edit(tables, *with_owner(tables, edits))
            tables.run(f"UPDATE a SET v = {number} WHERE id < 9")
            wait_until(lambda: is_recorded(tables))
    assert running.error is None
    assert copies(tables) == before
    tables.catch_up()
    assert requested(tables) == set()
    assert about_edits(tables) == []
    tables.assert_equal(*TABLES)


def is_recorded(pipeline: Pipeline) -> bool:
    """Return whether ingest has recorded the publication and its entries as they are now."""
    query = "SELECT (SELECT xmin::text::bigint FROM pg_publication WHERE pubname = %s), max(oid::bigint)"
    row = pipeline.source.execute(f"{query} FROM pg_publication_rel", (pipeline.database.name,)).fetchone()
    state = CatalogTable(Lake(pipeline.root)).read()
    history = Bronze(Lake(pipeline.root), pipeline.config.pipeline).copies.read()
    entries = [history.membership(TableName("public", name))[1] or 0 for name in TABLES]
    return state is not None and row == (state.publication_xmin, max(entries))


def about_edits(pipeline: Pipeline) -> list[tuple[str, str]]:
    events = [each for table in TABLES for each in pipeline.events(table)]
    return [(kind, text) for kind, text in events if "publication" in text]


@pytest.mark.promise("edited publications")
def test_edits_between_runs_are_compared_and_not_copied(tables: Pipeline) -> None:
    before = copies(tables)
    edit(tables, "DROP TABLE a", "ADD TABLE a")
    found = tables.ingest()
    assert requested(tables) == {"a"}
    waits = "The first ingest after apply has brought it there compares it."
    assert waits in found.compared[TableName("public", "a")]
    [(kind, sentence)] = about_edits(tables)
    assert (kind, sentence) == (
        "evolved",
        "The table left the publication and came back, or its row filter or column list changed. Changes of"
        " that time may be missing until it is compared with the source, and what differs is copied.",
    )
    edit(tables, f"SET ({WHOLE})")
    tables.ingest()
    assert requested(tables) == set(TABLES)
    assert len(about_edits(tables)) == 1
    if tables.database.server_major >= 15:
        edit(tables, "SET TABLE a (id, v), b")
        tables.ingest()
        assert about_edits(tables)[-1][1].endswith(
            " Columns that are not published any more: w. Silver keeps their values, also in rows that are"
            " updated; rows that are inserted or copied from now on have NULL there."
        )
    assert copies(tables) == before


def test_what_overlapped_an_edit_has_ended_before_a_comparison(tables: Pipeline) -> None:
    with tables.database.connect() as other, other.transaction():
        other.execute("UPDATE a SET v = 7 WHERE id = 3")
        with continuous(tables) as running:
            edit(tables, NARROWED)
            edit(tables, f"SET ({WHOLE})")
            edit(tables, "DROP TABLE b")
            wait_until(lambda: tables.frame("bronze", "copies").where("state = 'dropped'").count())
        assert running.error is None
        assert requested(tables) == set()
    tables.ingest()
    assert requested(tables) == {"a"}


@pytest.mark.spark
@pytest.mark.promise("gaps are never silent")
def test_a_publication_that_was_created_again_is_a_gap(tables: Pipeline) -> None:
    name, is_old = tables.config.source.publication, tables.database.server_major < 18
    tables.config = replace(
        tables.config, source=replace(tables.config.source, route="sql" if is_old else "walsender")
    )
    tables.run(
        f"DROP PUBLICATION {name}",
        "UPDATE a SET v = 5 WHERE id IN (2, 3)",
        f"CREATE PUBLICATION {name} FOR TABLE a{'' if is_old else ' (id, v)'}, b",
        "UPDATE b SET v = 5 WHERE id = 2",
    )
    advices: dict[Literal["stop", "compare"], str] = {
        "stop": "follow its sentence",
        "compare": "copies what differs",
    }
    for lost_slot, advice in advices.items():
        source = replace(tables.config.source, lost_slot=lost_slot)
        checks = {each.name: each for each in run_all_checks(replace(tables.config, source=source))}
        assert "was created again" in checks["publication and slot"].sentence
        assert advice in checks["publication and slot"].fix
    with pytest.raises(PublicationGapError) as raised:
        tables.ingest()
    assert "a time without the publication" in str(raised.value)
    assert "Set source.lost_slot to compare to copy what differs" in str(raised.value)
    tables.config = replace(tables.config, source=replace(tables.config.source, lost_slot="compare"))
    tables.ingest()
    tables.apply()
    found = tables.ingest()
    tables.catch_up()
    [gap] = tables.frame("bronze", "copies").where("state = 'gap'").collect()
    assert gap.sentence == str(raised.value)
    assert requested(tables) == set(), found.compared
    compared = [text for table in TABLES for _, text in tables.events(table) if "after the gap" in text]
    assert [text.partition(". ")[2] for text in compared] == [
        "2 keys differ of 20 rows; 2 key ranges copied.",
        "1 key differs of 20 rows; 1 key range copied.",
    ]
    rows = {row.id: (row.v, row.w) for row in tables.frame("silver", "public", "a").collect()}
    assert rows[2] == (5, 2 if is_old else None)
    assert rows[4] == (4, 4), "silver keeps the column"
    tables.assert_equal("b")
    assert "publication and slot" not in {each.name for each in run_all_checks(tables.config)}


def test_a_publication_that_is_missing_is_created_where_gaps_are_closed(tables: Pipeline) -> None:
    name = tables.config.source.publication
    tables.run(f"DROP PUBLICATION {name}")
    with pytest.raises(SourceError, match="and ingest creates the publication"):
        tables.ingest()
    tables.config = replace(tables.config, source=replace(tables.config.source, lost_slot="resync"))
    tables.ingest("DELETE FROM b WHERE id = 9")
    tables.assert_follows(*TABLES)
