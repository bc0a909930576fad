"""Columns that are renamed, swapped, dropped and added again, or widened: silver equals the source after it.

Each change comes between rows of one transaction, in a batch of its own, and unseen: the catalog is read
when all is done, so that it contradicts what the stream sent before.
"""

import pytest

from pipeline.crash_steps import CrashStep
from tests.support.fault_points import crash_at
from tests.support.pipelines import Crash, Pipeline, succeeded

# table → what happens to it; rows come before, between and after
CHANGES = {
    "renamed": ("ALTER TABLE renamed RENAME v TO title",),
    "renamed_twice": (
        "ALTER TABLE renamed_twice RENAME v TO x",
        "UPDATE renamed_twice SET x = 'x' WHERE id = 2",
        "ALTER TABLE renamed_twice RENAME x TO y",
    ),
    "renamed_back": (
        "ALTER TABLE renamed_back RENAME v TO x",
        "UPDATE renamed_back SET x = 'x' WHERE id = 2",
        "ALTER TABLE renamed_back RENAME x TO v",
    ),
    "key_renamed": ("ALTER TABLE key_renamed RENAME id TO pk",),
    "swapped": (
        "ALTER TABLE swapped RENAME v TO between",
        "ALTER TABLE swapped RENAME w TO v",
        "ALTER TABLE swapped RENAME between TO w",
    ),
    "cased": ('ALTER TABLE cased RENAME v TO "V"',),
    "spaced": ('ALTER TABLE spaced RENAME v TO "a name, with {all};"',),
    "added_again": ("ALTER TABLE added_again DROP v", "ALTER TABLE added_again ADD v text"),
    "default_again": (
        "ALTER TABLE default_again DROP v",
        "ALTER TABLE default_again ADD v text DEFAULT 'filled'",
    ),
    "other_type": ("ALTER TABLE other_type DROP n", "ALTER TABLE other_type ADD n text DEFAULT 'seven'"),
    "name_taken": (
        "ALTER TABLE name_taken RENAME v TO old",
        "ALTER TABLE name_taken ADD v int DEFAULT 4",
    ),
    "widened": (
        "ALTER TABLE widened ALTER id TYPE bigint",
        "ALTER TABLE widened ALTER n TYPE numeric(14, 3)",
        "ALTER TABLE widened ALTER at TYPE timestamp",
    ),
    "added": (
        "ALTER TABLE added ADD stamp timestamp DEFAULT TIMESTAMP '2020-01-01 12:00'",
        'ALTER TABLE added ADD "a = b" int DEFAULT 3',
    ),
    "whole_row": ("ALTER TABLE whole_row RENAME v TO title", "ALTER TABLE whole_row ALTER n TYPE bigint"),
}
LEFT = ("added_again", "default_again", "other_type")  # silver keeps what was dropped
# one of each kind: names, keys, whole rows, columns that come again under their name, and types
REPRESENTATIVES = (
    "renamed_back",
    "key_renamed",
    "swapped",
    "default_again",
    "other_type",
    "widened",
    "whole_row",
)


def create(table: str) -> list[str]:
    made = f"CREATE TABLE {table} (id int PRIMARY KEY, v text, w text, n int, at date, big text)"
    identity = "FULL" if table == "whole_row" else "DEFAULT"
    return [
        made,
        f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
        f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
    ]


def fill(table: str) -> str:
    values = "g, 'v' || g, 'w' || g, g, DATE '2020-01-01' + g, repeat('b', 3000)"
    return f"INSERT INTO {table} SELECT {values} FROM generate_series(1, 9) g"


def change(pipeline: Pipeline, table: str, statements: tuple[str, ...], *, together: bool) -> None:
    """Run the changes with rows before and after them: updates leave out the TOAST, one key moves."""
    [key] = pipeline.source.execute(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum = 1", (table,)
    ).fetchall()
    before = (
        f"UPDATE {table} SET w = 'before' WHERE id IN (2, 3)",
        f"DELETE FROM {table} WHERE id = 4",
        f"INSERT INTO {table} (id, v, w) VALUES (20, 'before', 'before')",
    )
    last = "pk" if table == "key_renamed" else key[0]
    after = (
        f"UPDATE {table} SET {last} = {last} + 50 WHERE {last} IN (3, 5)",
        f"UPDATE {table} SET big = 'small' WHERE {last} = 6",
        f"INSERT INTO {table} ({last}, w) VALUES (30, 'after')",
        f"DELETE FROM {table} WHERE {last} = 7",
    )
    run = pipeline.transact if together else pipeline.run
    run(*before, *statements, *after)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("tables", "together"),
    [
        pytest.param(REPRESENTATIVES, True, id="some in one transaction"),
        pytest.param(tuple(CHANGES), True, id="in one transaction", marks=pytest.mark.slow),
        pytest.param(tuple(CHANGES), False, id="one after the other", marks=pytest.mark.slow),
    ],
)
def test_columns_are_followed_by_their_numbers(
    pipeline: Pipeline, tables: tuple[str, ...], together: bool
) -> None:
    for table in tables:
        pipeline.run(*create(table))
    pipeline.ingest()
    pipeline.catch_up(*map(fill, tables))
    for table in tables:
        change(pipeline, table, CHANGES[table], together=together)
    pipeline.catch_up()
    followed = [table for table in tables if table not in LEFT]
    left_columns = [table for table in tables if table in LEFT]
    pipeline.assert_equal(*followed)
    pipeline.assert_equal(*left_columns, ignore_left_columns=True)
    for table in tables:
        # a column that has its name again was never seen with another
        expected = set() if table == "renamed_back" else {"evolved"}
        assert {kind for kind, _ in pipeline.events(table)} == expected, table
    for table, left in (("added_again", "v__2"), ("default_again", "v__2"), ("other_type", "n__4")):
        if table not in tables:
            continue
        values = {r.id: r[left] for r in pipeline.frame("silver", "public", table).collect()}
        assert values[1] is not None
        assert values[30] is None

    # Silver goes on from there, one change a batch.
    pipeline.catch_up(*(f"UPDATE {table} SET w = 'last', at = DATE '2021-01-01'" for table in tables))
    pipeline.assert_equal(*followed)
    pipeline.assert_equal(*left_columns, ignore_left_columns=True)
    plain = pipeline.session.sql(f"DESCRIBE DETAIL delta.`{pipeline.root}/silver/public/widened`").collect()[
        0
    ]
    assert "columnMapping" not in plain.tableFeatures


@pytest.mark.spark
@pytest.mark.slow
def test_a_crash_after_a_rename_neither_repeats_nor_undoes_it(pipeline: Pipeline) -> None:
    tables = ("renamed", "swapped", "default_again", "name_taken")
    for table in tables:
        pipeline.run(*create(table))
    pipeline.ingest()
    pipeline.catch_up(*map(fill, tables))
    pipeline.run(*(f"UPDATE {table} SET v = 'early' WHERE id = 1" for table in tables))
    for table in tables:
        change(pipeline, table, CHANGES[table], together=False)
    pipeline.ingest()
    from pipeline.apply.applier import Applier

    for step in (CrashStep.WRITE_TABLE, CrashStep.RECORD_MANIFEST):
        with crash_at(step), pytest.raises(Crash):
            Applier(pipeline.spark, pipeline.config).apply_pending()
    succeeded(Applier(pipeline.spark, pipeline.config).apply_pending())
    pipeline.assert_equal(*tables, ignore_left_columns=True)
    # A default is filled in once, whatever ended in between.
    pipeline.catch_up("UPDATE default_again SET v = NULL", "UPDATE name_taken SET v = NULL")
    pipeline.catch_up(*(f"UPDATE {table} SET w = 'last'" for table in tables))
    pipeline.assert_equal(*tables, ignore_left_columns=True)
