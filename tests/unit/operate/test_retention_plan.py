"""What `bronze.retention` may compact: never what a silver table, a copy or a rebuild still needs."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from pipeline.bronze.bases import Base, BaseHistory
from pipeline.bronze.copy_states import (
    COMPLETE,
    DROPPED,
    READING,
    CopyHistory,
    CopyRequest,
    CopyState,
    Gap,
    SnapshotChunks,
)
from pipeline.bronze.source_relations import SourceRelation
from pipeline.key_ranges import KeyRange
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.operate.retention_plan import LakeRecords, is_due, is_in_run, last_expired, plan_retention
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.write.base_rows import BaseInput
from pipeline.table_name import TableName

NAME = TableName("public", "t")
NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
MONTH = timedelta(days=30)
END = LSN(100)
KEYS = (KeyRange(("1",), ("1",)),)


def entry(*, applied: int = 200, is_behind: bool = False) -> ManifestEntry:
    return ManifestEntry("public", "t", "/lake/silver/public/t", 3, LSN(applied), is_behind, "id", None)


def copy(state: str, id_: int, lsn: int, *, ranges: tuple[KeyRange, ...] = ()) -> CopyState:
    snapshots = [SnapshotChunks(LSN(lsn), (), 0, ())]
    dropped_at = LSN(lsn) if state == DROPPED else INVALID
    return CopyState(id_, NAME, state, 1, 1, 7, snapshots, key_ranges=ranges, dropped_at=dropped_at)


def history(*states: CopyState, gaps: tuple[Gap, ...] = ()) -> CopyHistory:
    return CopyHistory({NAME: list(states)} if states else {}, gaps)


def relation(name: str = "t", oid: int = 1, lsn: int = 1) -> SourceRelation:
    return SourceRelation(7, oid, "public", name, "d", (), lsn)


RECORDS = LakeRecords(
    Manifest(LSN(200), None, (entry(),)), history(copy(COMPLETE, 5, 10)), {NAME}, [relation()], {}
)


def planned(**changed: object) -> BaseInput | str | None:
    """Return what is planned for the table: its input, why it keeps everything, or None if nothing is new."""
    plan = plan_retention(lambda name: END, replace(RECORDS, **changed))  # type: ignore[arg-type]
    assert len(plan.tables) + len(plan.kept) <= 1
    found: list[BaseInput | str] = [*plan.tables, *plan.kept.values()]
    return found[0] if found else None


def test_a_table_is_compacted_from_its_newest_copy_on() -> None:
    found = planned(history=history(copy(COMPLETE, 4, 5), copy(COMPLETE, 5, 10), copy(COMPLETE, 6, 150)))
    assert isinstance(found, BaseInput)
    assert (found.end_lsn, found.copy and found.copy.id, found.is_gone) == (END, 5, False)
    assert planned(bases={NAME: LSN(101)}) is None
    assert planned(relations=[relation(lsn=101)]) is None
    assert planned(with_past={NAME}) == "its mode or rule keeps rows that are gone"
    without = planned(history=history())
    assert isinstance(without, BaseInput)
    assert without.copy is None


def test_copies_of_keys_before_the_base_are_a_part_of_it() -> None:
    keys = [copy(COMPLETE, n, lsn, ranges=KEYS) for n, lsn in ((3, 7), (6, 20), (7, 30), (8, 101))]
    found = planned(history=history(copy(COMPLETE, 5, 10), *keys))
    assert isinstance(found, BaseInput)
    assert [each.id for each in found.partial_copies] == [6, 7]
    alone = planned(history=history(*keys))
    assert isinstance(alone, BaseInput)
    assert (alone.copy, [each.id for each in alone.partial_copies]) == (None, [3, 6, 7])
    requested = replace(history(copy(COMPLETE, 5, 10), *keys), requests=(CopyRequest.of(NAME, "keys", KEYS),))
    assert isinstance(planned(history=requested), BaseInput)
    for later in (
        replace(requested, requests=(CopyRequest.of(NAME, "all"),)),
        history(copy(COMPLETE, 5, 10), *keys, copy(COMPLETE, 9, 105)),
    ):
        assert planned(history=later) == (
            "all its rows were copied after some of its keys, within the retention"
        )


def test_a_table_that_is_behind_keeps_what_it_lacks() -> None:
    behind = replace(RECORDS.manifest, entries=(entry(applied=50, is_behind=True),))
    found = planned(manifest=behind)
    assert isinstance(found, BaseInput)
    assert found.end_lsn == LSN(50)
    assert planned(manifest=behind, registered=()) == found  # its first batch is not complete
    assert planned(manifest=replace(RECORDS.manifest, entries=())) == "silver does not show it"


@pytest.mark.parametrize(
    ("states", "gaps", "reason"),
    [
        ((copy(COMPLETE, 5, 10), copy(READING, 6, 20)), (), "a copy of it is not complete"),
        (
            (copy(COMPLETE, 5, 10), copy(COMPLETE, 6, 100, ranges=KEYS)),
            (),
            "some of its keys were being copied again at that time",
        ),
        ((copy(DROPPED, 5, 10),), (), "it is not published any more, and silver still has it"),
        ((copy(COMPLETE, 5, 10),), (Gap(LSN(20), LSN(30), ""),), "it waits for a copy"),
        (
            (copy(COMPLETE, 4, 5), copy(DROPPED, 5, 8), copy(READING, 6, 9)),
            (),
            "a copy of it is not complete",
        ),
    ],
)
def test_what_is_still_needed_is_kept(
    states: tuple[CopyState, ...], gaps: tuple[Gap, ...], reason: str
) -> None:
    assert planned(history=history(*states, gaps=gaps)) == reason


def test_the_names_of_a_renamed_table_are_compacted_each() -> None:
    plan = plan_retention(lambda name: END, replace(RECORDS, relations=[relation(), relation("u")]))
    assert [(table.name.table, table.has_other_names) for table in plan.tables] == [("t", True), ("u", True)]
    found = planned()
    assert isinstance(found, BaseInput)
    assert not found.has_other_names


def test_a_table_that_left_source_and_silver_is_removed_after_retention() -> None:
    found = planned(history=history(copy(COMPLETE, 5, 10), copy(DROPPED, 6, 20)), registered=())
    assert isinstance(found, BaseInput)
    assert found.is_gone
    lately = planned(history=history(copy(DROPPED, 6, 150)), registered=())
    assert lately == "it left the publication within the retention"


def test_the_lsn_is_that_of_the_newest_manifest_that_is_old_enough() -> None:
    manifests = [(LSN(10 * n), NOW - timedelta(days=40 - n)) for n in range(1, 30)]
    assert last_expired(manifests, MONTH, NOW) == LSN(100)
    assert last_expired(manifests[20:], MONTH, NOW) == INVALID


def test_runs_are_a_tenth_of_the_retention_apart() -> None:
    assert is_due(MONTH, None, NOW)
    assert is_due(MONTH, NOW - timedelta(days=3), NOW)
    assert not is_due(MONTH, NOW - timedelta(days=2), NOW)


def test_tables_of_a_longer_retention_are_in_a_run_once_in_each_tenth() -> None:
    runs = [NOW + timedelta(hours=7 * n) for n in range(100)]
    pairs = pairwise(runs)
    found = [now for last, now in pairs if is_in_run(MONTH, last, now)]
    assert len(found) == (runs[-1] - runs[0]) // (MONTH / 10)
    assert all(later - earlier >= MONTH / 10 - timedelta(hours=7) for earlier, later in pairwise(found))
    assert is_in_run(MONTH, None, NOW)
    assert is_in_run(MONTH, NOW - MONTH / 10, NOW), "what is due is in the run"


def test_each_table_is_compacted_up_to_an_lsn_of_its_own() -> None:
    other = TableName("public", "u")
    records = replace(
        RECORDS,
        manifest=Manifest(LSN(200), None, (entry(), replace(entry(), table_name="u"))),
        relations=[relation(), relation("u", oid=2, lsn=40)],
        registered={NAME, other},
    )
    plan = plan_retention(lambda name: LSN(50) if name == other else END, records, LSN(70))
    assert {table.name: table.end_lsn for table in plan.tables} == {NAME: END, other: LSN(50)}
    assert (plan.end_lsn, plan.messages_lsn) == (END, LSN(70))
    plan = plan_retention(lambda name: INVALID if name == NAME else LSN(39), records, LSN(170))
    assert (plan.tables, plan.kept, plan.end_lsn) == ((), {}, LSN(170))


def test_bases_give_the_lsn_after_which_bronze_is_complete() -> None:
    other = TableName("public", "u")
    bases = BaseHistory({NAME: Base(NAME, LSN(10), 5), other: Base(other, LSN(30))})
    assert (bases.lsn, bases.lsn_of(NAME), bases.lsn_of(TableName("public", "v"))) == (
        LSN(30),
        LSN(10),
        INVALID,
    )
    states = [copy(COMPLETE, copy_id, 1) for copy_id in (4, 5, 6)]
    assert [bases.may_lack_rows(state) for state in states] == [True, True, False]
    keys = [copy(COMPLETE, 6, lsn, ranges=KEYS) for lsn in (9, 10)]
    assert [bases.may_lack_rows(state) for state in keys] == [True, False]
    assert bases.may_lack_rows(replace(states[0], id=9, name=other))
    assert BaseHistory({}).lsn == INVALID
    assert BaseHistory(bases.tables, messages_lsn=LSN(40)).lsn == LSN(40)
