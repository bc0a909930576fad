"""Where a row of mode `append` finds a value that the source did not send."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.bronze.copy_states import Gap
from pipeline.bronze.source_relations import SourceRelation
from pipeline.delta.table import LakeTable
from pipeline.engine import DUCKDB
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import Fold, FoldColumn
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.mode_sql import appended
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.unchanged_plan import Filling, plan_filling
from pipeline.silver.fold.unchanged_values import fill_unchanged
from pipeline.silver.fold.write import FOLDED
from pipeline.silver.fold.write_plan import Identity, WriteStep
from pipeline.silver.types.text_parsers import INT, STRING
from pipeline.silver.write.file_committer import FileCommitter
from pipeline.silver.write.native_target import NativeTarget
from pipeline.silver.write.table_version import TableVersion
from tests.support.silver.relations import INT4, INT8, column, relation

KEY, PLAIN, BODY = column("id", 1, INT4, is_key=True), column("code", 2, INT4), column("body", 3)
KEYED = replace(relation(KEY, PLAIN, BODY), lsn=10)
RENAMED = replace(relation(replace(KEY, name="number"), PLAIN, BODY, version=2), lsn=20)
BOTH = replace(relation(KEY, replace(PLAIN, is_key=True), BODY, version=2), lsn=20)
OTHER = replace(
    relation(replace(KEY, is_key=False), replace(PLAIN, is_key=True), BODY, version=2, identity="i"), lsn=20
)
FULL = replace(relation(KEY, PLAIN, BODY, version=2, identity="f"), lsn=20)
WIDER = replace(relation(replace(KEY, type_oid=INT8, base_oid=INT8), PLAIN, BODY, version=2), lsn=20)
AGAIN = replace(relation(replace(PLAIN, is_key=True), version=2, oid=501), lsn=20)
FOLD = Fold(
    (FoldColumn("id", INT, {1: 0}), FoldColumn("body", STRING, {1: 1}, True)), (0,), (1,), mode="append"
)
NAMES = MetadataNames(
    "_commit_lsn",
    "_commit_time",
    (("_op", "change_op"), ("_ordinal", "ordinal"), ("_old", "old_values"), ("_unchanged", "unchanged")),
)
SCHEMA = (
    "id INT, body STRING, _commit_lsn BIGINT, _commit_time TIMESTAMP, _op STRING, _ordinal BIGINT, "
    "_old STRING, _unchanged ARRAY<STRING>"
)
CHANGES = pa.schema(
    [
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int64()),
        ("commit_time", pa.timestamp("us", "UTC")),
        ("op", pa.string()),
        ("relation_version", pa.int64()),
        ("old_kind", pa.string()),
        ("old", pa.list_(pa.string())),
        ("new", pa.list_(pa.string())),
        ("unsent", pa.list_(pa.int32())),
    ]
)
GAP = Gap(LSN(15), LSN(18), "The stream has a gap.")
TIME = datetime(2026, 1, 31, tzinfo=timezone.utc)
UNSENT = object()
Earlier = tuple[int, str, int, str | None]  # LSN, operation, key, body
Change = tuple[int, str, int | None, int, object]  # LSN, operation, key before it, key, body
Found = list[tuple[str | None, list[str] | None]]


def step(*versions: int, start: int = 0, identity: Identity = Identity.KEY) -> WriteStep:
    return WriteStep(identity, versions, (start, -1), (90, 0), replaces=False, end_lsn=LSN(90))


def fill(
    session: DuckSql,
    folder: Path,
    earlier: Sequence[Earlier],
    changes: Sequence[Change],
    filling: Filling | None = None,
) -> Found:
    """Return body and `_unchanged` of each change, in order; earlier rows are one file each."""
    table = LakeTable(str(folder / "t"))
    table.ensure(SCHEMA)
    for lsn, op, key, body in earlier:
        row = {"id": key, "body": body, "_commit_lsn": lsn, "_commit_time": TIME, "_op": op, "_ordinal": 0}
        table.append_rows([row], SCHEMA)
    rows = []
    for lsn, op, before, key, value in changes:
        sent = None if op == "D" else [str(key), None if value is UNSENT else value]
        old = [str(key if op == "D" else before), None] if op == "D" or before is not None else None
        unsent = [1] if value is UNSENT else None
        row_of = (lsn, 0, TIME, op, 1, old and "K", old, sent, unsent)
        rows.append(dict(zip(CHANGES.names, row_of, strict=True)))
    session.add("changes", pa.Table.from_pylist(rows, CHANGES))
    rows_fold = replace(FOLD, key=(), has_key_changes=False)
    sql = FoldSql(rows_fold, DUCKDB)
    session.define("inserted", appended(sql, "changes"))
    session.define("typed", sql.typed("inserted"))
    version = TableVersion(table, table.snapshot())
    target = NativeTarget(session, version, FileCommitter(version))
    fill_unchanged(target, filling or Filling(FOLD), rows_fold, NAMES, replaces=False)
    found = session.table(f"SELECT c1 AS body, unchanged FROM {FOLDED} ORDER BY commit_lsn").to_pylist()
    return [(row["body"], row["unchanged"]) for row in found]


def test_the_newest_row_before_the_change_has_the_value(session: DuckSql, tmp_path: Path) -> None:
    earlier: list[Earlier] = [(10, "I", 1, "a"), (20, "U", 1, "b"), (30, "I", 2, "c"), (50, "R", 1, "later")]
    changes: list[Change] = [(40, "U", None, 1, UNSENT), (60, "U", None, 1, UNSENT)]
    assert fill(session, tmp_path, earlier, changes) == [("b", None), ("later", None)]


def test_a_copied_row_between_two_changes_of_the_input_counts(session: DuckSql, tmp_path: Path) -> None:
    changes: list[Change] = [(40, "U", None, 1, "a"), (60, "U", None, 1, UNSENT)]
    assert fill(session, tmp_path, [(50, "R", 1, "b")], changes) == [("a", None), ("b", None)]


def test_rows_that_met_and_moved_have_their_own_values(session: DuckSql, tmp_path: Path) -> None:
    earlier: list[Earlier] = [(10, "I", 1, "a"), (20, "I", 2, "b")]
    changes: list[Change] = [
        (30, "U", 1, 3, UNSENT),
        (40, "U", 2, 1, UNSENT),
        (50, "U", 3, 2, UNSENT),
        (60, "U", None, 1, UNSENT),
        (70, "U", None, 2, UNSENT),
    ]
    assert [body for body, _ in fill(session, tmp_path, earlier, changes)] == ["a", "b", "a", "b", "a"]


def test_a_row_of_a_deleted_key_has_nothing(session: DuckSql, tmp_path: Path) -> None:
    earlier: list[Earlier] = [(10, "I", 1, "a"), (20, "D", 1, None)]
    assert fill(session, tmp_path, earlier, [(30, "U", None, 1, UNSENT)]) == [(None, ["body"])]


@pytest.mark.parametrize("in_input", [False, True])
def test_rows_before_a_gap_of_the_stream_are_not_searched(
    session: DuckSql, tmp_path: Path, in_input: bool
) -> None:
    earlier: list[Earlier] = [] if in_input else [(10, "I", 1, "a")]
    changes: list[Change] = [(10, "I", None, 1, "a")] if in_input else []
    changes += [(20, "U", None, 1, UNSENT), (40, "U", None, 1, UNSENT), (50, "U", None, 1, "b")]
    changes += [(60, "U", None, 1, UNSENT)]
    found = fill(session, tmp_path, earlier, changes, Filling(FOLD, gap_lsns=(LSN(30),)))
    assert found[-4:] == [("a", None), (None, ["body"]), ("b", None), ("b", None)]


def test_after_another_key_nothing_is_searched(session: DuckSql, tmp_path: Path) -> None:
    changes: list[Change] = [(20, "U", None, 1, UNSENT), (40, "U", None, 1, UNSENT)]
    found = fill(session, tmp_path, [(10, "I", 1, "a")], changes, Filling(FOLD, last_lsn=LSN(20)))
    assert found == [("a", None), (None, ["body"])]


@pytest.mark.parametrize(
    ("relations", "last_lsn"),
    [
        ([KEYED], None),
        ([KEYED, RENAMED], None),
        ([KEYED, AGAIN], None),
        ([KEYED, OTHER], 20),
        ([KEYED, FULL], 20),
        ([KEYED, WIDER], 20),
        ([KEYED, BOTH], 20),
    ],
)
def test_other_keys_end_the_search(relations: list[SourceRelation], last_lsn: int | None) -> None:
    found = plan_filling(step(1), FOLD, {each.version: each for each in relations}, [GAP])
    assert found == Filling(FOLD, None if last_lsn is None else LSN(last_lsn), (LSN(15),))


def test_a_key_with_more_columns_finds_earlier_rows() -> None:
    assert plan_filling(step(2), FOLD, {1: KEYED, 2: BOTH}, []) == Filling(FOLD)


def test_a_step_that_can_find_nothing_searches_nothing() -> None:
    assert plan_filling(step(1, start=21), FOLD, {1: KEYED, 2: OTHER}, []) is None
    assert plan_filling(step(1), replace(FOLD, columns=FOLD.columns[:1]), {1: KEYED}, []) is None
    assert plan_filling(step(1, identity=Identity.WHOLE_ROW), FOLD, {1: KEYED}, []) is None
    assert plan_filling(step(1), replace(FOLD, mode="history"), {1: KEYED}, []) is None
    assert plan_filling(replace(step(1), copy_id=7), FOLD, {1: KEYED}, []) is None
