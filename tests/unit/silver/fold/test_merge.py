"""The whole text of the writes for one table; names appear in it as quoted columns only."""

from dataclasses import replace

import pytest

from pipeline.bronze.table_input import TruncatedAt
from pipeline.delta.sql import literal, quoted
from pipeline.engine import DUCKDB
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import UNKNOWN, Fold, FoldColumn, is_present, is_sent, pick
from pipeline.silver.fold.merge import merge_by_image, merge_by_key
from pipeline.silver.fold.modes import MetadataNames, metadata_columns
from pipeline.silver.fold.write import image_of_row, image_of_texts, misfit_count, misfits
from pipeline.silver.types.text_parsers import BINARY, INT, STRING

ID = FoldColumn("id", INT, {1: 0, 2: 1})
NOTE = FoldColumn("no`te", STRING, {1: 1, 2: 0}, is_partial=True)
ADDED = FoldColumn("it's", BINARY, {2: 2}, is_partial=True, missing_value="\\x00")
DROPPED = FoldColumn("dropped", STRING, {}, is_partial=True)
FOLD = Fold((ID, NOTE, ADDED, DROPPED), (0,), (1, 2))
METADATA = MetadataNames("_commit_lsn", "_commit_time")


def test_merge_by_key_deletes_updates_what_was_sent_and_inserts() -> None:
    assert merge_by_key(FOLD, METADATA).statement("delta.`/lake/t`", "folded") == (
        "MERGE INTO delta.`/lake/t` t USING folded s ON t.`id` <=> s.k0\n"
        "WHEN MATCHED AND s.op = 'D' THEN DELETE\n"
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.c0, "
        "t.`no``te` = CASE WHEN s.s1 IS NULL THEN t.`no``te` ELSE s.c1 END, "
        "t.`it's` = CASE WHEN s.s2 IS NULL THEN t.`it's` ELSE s.c2 END, "
        "t.`dropped` = CASE WHEN s.s3 IS NULL THEN t.`dropped` ELSE s.c3 END, "
        "t.`_commit_lsn` = s.commit_lsn, t.`_commit_time` = s.commit_time\n"
        "WHEN NOT MATCHED AND s.op <> 'D' THEN "
        "INSERT (`id`, `no``te`, `it's`, `dropped`, `_commit_lsn`, `_commit_time`) "
        "VALUES (s.c0, s.c1, s.c2, s.c3, s.commit_lsn, s.commit_time)"
    )


def test_merge_without_metadata_columns_writes_the_source_s_only() -> None:
    plain = Fold((ID, FoldColumn("v", STRING, {1: 1, 2: 1})), (0, 1), (1, 2))
    assert merge_by_key(plain, MetadataNames(None, None)).statement("t1", "s1") == (
        "MERGE INTO t1 t USING s1 s ON t.`id` <=> s.k0 AND t.`v` <=> s.k1\n"
        "WHEN MATCHED AND s.op = 'D' THEN DELETE\n"
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.c0, t.`v` = s.c1\n"
        "WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT (`id`, `v`) VALUES (s.c0, s.c1)"
    )


def test_merge_by_image_deletes_all_equal_rows_and_inserts_those_that_stay() -> None:
    columns = (ID, FoldColumn("b", BINARY, {1: 1}))
    image = image_of_row(columns, "t")
    assert image == "to_json(named_struct('q0', CAST(t.`id` AS STRING), 'q1', hex(t.`b`)))"
    assert merge_by_image(image, columns, METADATA).statement("t1", "s1") == (
        f"MERGE INTO t1 t USING s1 s ON s.op = 'D' AND {image} = s.image\n"
        "WHEN MATCHED THEN DELETE\n"
        "WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT (`id`, `b`, `_commit_lsn`, `_commit_time`) "
        "VALUES (s.c0, s.c1, s.commit_lsn, s.commit_time)"
    )


def test_image_of_a_table_without_columns_is_one_for_all_rows() -> None:
    assert image_of_row((), "t") == image_of_texts(()) == image_of_row((DROPPED,), "t") == "'{}'"


def test_index_of_a_column_depends_on_the_version_only_if_it_differs() -> None:
    assert pick(FOLD, 0, "new") == "CASE relation_version WHEN 1 THEN get(new, 0) WHEN 2 THEN get(new, 1) END"
    assert pick(Fold((FoldColumn("a", INT, {1: 3, 2: 3}),), (), (1, 2)), 0, "old") == "get(old, 3)"
    assert pick(FOLD, 3, "new") == "CAST(NULL AS STRING)"
    assert (is_present(FOLD, 0), is_present(FOLD, 2), is_present(FOLD, 3)) == (
        "true",
        "relation_version IN (2)",
        "false",
    )
    assert (is_sent(FOLD, 0), is_sent(FOLD, 3)) == ("true", "false")


def test_value_that_cannot_be_lost_is_not_checked() -> None:
    assert misfits(Fold((FoldColumn("v", STRING, {1: 0}),), (0,), (1,))) is None
    text = misfits(FOLD)
    assert text is not None
    assert "'dropped'" not in text


@pytest.mark.costly
def test_misfits_are_counted_as_they_are_recorded() -> None:
    """Of a wide table, too: engines limit the depth of an expression."""
    columns = (*(FoldColumn(f"v{i}", INT, {1: i}) for i in range(1600)), NOTE)
    fold = Fold(columns, (0,), (1,))
    recorded = misfits(fold, DUCKDB)
    values = ", ".join(f"x{i % 2} AS x{i}, c{i % 2} AS c{i}" for i in range(1600))
    rows = f"SELECT op, {values}, s AS s1600 FROM rows"
    session = DuckSql()
    session.define(
        "rows",
        f"SELECT * FROM (VALUES ('U', '1', 1, 'x', NULL, {UNKNOWN}), ('U', '1', 1, '2', 2, 0), "
        f"('U', 'x', NULL, 'y', NULL, 0), ('D', 'x', NULL, '1', 1, {UNKNOWN})) AS r(op, x0, c0, x1, c1, s)",
    )
    found = session.row(
        f"SELECT {misfit_count(fold, DUCKDB)} AS counted, "
        f"sum(CASE WHEN op <> 'D' THEN len({recorded}) END) AS recorded FROM ({rows}) AS r"
    )
    session.close()
    assert (found.counted, found.recorded) == (2401, 2401)
    assert misfit_count(Fold((FoldColumn("v", STRING, {1: 0}),), (0,), (1,)), DUCKDB) == "0"


@pytest.mark.parametrize("name", ["a b", "a.b", "a`b", "", "`", "``", "SELECT", "a\nb", "t.`x`"])
def test_quoted_name_is_one_identifier(name: str) -> None:
    assert quoted(name)[1:-1].replace("``", "") == name.replace("`", "")
    assert quoted(name)[1:-1].count("`") == 2 * name.count("`")


def test_literal_holds_no_variable_that_spark_would_replace() -> None:
    assert literal("it's \\ ${env:HOME}") == "'it\\'s \\\\ \\u0024{env:HOME}'"


TRUNCATES = (TruncatedAt(70, 2, 1_000_000), TruncatedAt(80, 0, 2_000_000))


def test_merge_of_soft_deletes_marks_deleted_rows() -> None:
    soft = Fold((ID, NOTE), (0,), (1, 2), mode="soft_delete", truncates=TRUNCATES, current_column="_deleted_")
    names = MetadataNames("_commit_lsn", None, (("_deleted_", "is_deleted"), ("_deleted_at", "deleted_at")))
    assert merge_by_key(soft, names).statement("t1", "s1") == (
        "MERGE INTO t1 t USING s1 s ON t.`id` <=> s.k0\n"
        "WHEN MATCHED AND s.op = 'D' THEN UPDATE SET t.`_commit_lsn` = s.commit_lsn, "
        "t.`_deleted_` = s.is_deleted, t.`_deleted_at` = s.deleted_at\n"
        "WHEN MATCHED THEN UPDATE SET t.`id` = s.c0, "
        "t.`no``te` = CASE WHEN s.s1 IS NULL THEN t.`no``te` ELSE s.c1 END, "
        "t.`_commit_lsn` = s.commit_lsn, t.`_deleted_` = s.is_deleted, t.`_deleted_at` = s.deleted_at\n"
        "WHEN NOT MATCHED AND s.op <> 'D' THEN "
        "INSERT (`id`, `no``te`, `_commit_lsn`, `_deleted_`, `_deleted_at`) "
        "VALUES (s.c0, s.c1, s.commit_lsn, s.is_deleted, s.deleted_at)\n"
        "WHEN NOT MATCHED BY SOURCE AND t.`_deleted_` = false THEN UPDATE SET "
        "t.`_commit_lsn` = CAST(70 AS BIGINT), t.`_deleted_` = true, "
        "t.`_deleted_at` = timestamp_micros(1000000)"
    )


def test_merge_of_a_history_ends_current_versions_and_inserts_new_ones() -> None:
    own = metadata_columns("history", has_commit=True)
    names = MetadataNames(None, None, tuple((column.name, column.source) for column in own))
    history = Fold((ID,), (0,), (1, 2), mode="history", current_column="_valid_to_lsn")
    assert merge_by_key(history, names).statement("t1", "s1", "t.`id` = 4") == (
        "MERGE INTO t1 t USING s1 s ON s.op = 'D' AND t.`_valid_to_lsn` IS NULL AND t.`id` <=> s.k0 "
        "AND t.`id` = 4\n"
        "WHEN MATCHED THEN UPDATE SET t.`_valid_to_lsn` = s.valid_to_lsn, "
        "t.`_valid_to_time` = s.valid_to_time, t.`_is_current` = s.is_current\n"
        "WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT (`id`, `_valid_from_lsn`, `_valid_from_time`, "
        "`_valid_to_lsn`, `_valid_to_time`, `_is_current`) VALUES (s.c0, s.valid_from_lsn, "
        "s.valid_from_time, s.valid_to_lsn, s.valid_to_time, s.is_current)"
    )
    truncated = replace(history, truncates=TRUNCATES)
    assert (
        merge_by_key(truncated, names)
        .statement("t1", "s1")
        .endswith(
            "\nWHEN NOT MATCHED BY SOURCE AND t.`_valid_to_lsn` IS NULL THEN UPDATE SET "
            "t.`_valid_to_lsn` = CAST(70 AS BIGINT), t.`_valid_to_time` = timestamp_micros(1000000), "
            "t.`_is_current` = false"
        )
    )
