"""New tables, resumed copies and snapshots open the files of bronze that concern them, and no others."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.bronze import change_rows
from pipeline.bronze.activity import newest_commit
from pipeline.bronze.change_rows import ChangeRows
from pipeline.bronze.copy_states import Chunk, CompleteCopy, CopyHistory, Gap, SnapshotChunks
from pipeline.bronze.log import Bronze
from pipeline.bronze.relations import relation_version
from pipeline.bronze.table_input import InputStart
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.table_copy.invisible_commits import find_invisible_commits
from pipeline.table_name import TableName
from tests.support.bronze_reads import bronze_reads
from tests.support.native_lakes import COPIED_AT, START, NativeLake, change, write_file

OLD_FILES = 30
SECOND_COPY, SECOND_SNAPSHOT = 77, LSN(9000)
LAST_LSN = 2000 + 10 * OLD_FILES
NEW = TableName("public", "t0001x")  # its name lies between those of the other tables


@pytest.fixture
def lake(tmp_path: Path) -> NativeLake:
    """Give a lake with 30 files of changes of all of its tables."""
    found = NativeLake(tmp_path / "lake", 3)
    for number in range(OLD_FILES):
        found.insert(found.names, 2000 + 10 * number)
    return found


def fresh(lake: NativeLake) -> Bronze:
    """Return bronze as another process sees it."""
    return Bronze(Lake(str(lake.root)), "p")


def add_table(lake: NativeLake, lsn: int) -> int:
    """Record a table at an LSN, and land changes of it together with those of the others."""
    columns = (Column(True, "id", 23, -1), Column(False, "name", 25, -1))
    version = relation_version(Relation(99, *NEW, "d", columns), None, LSN(lsn))
    lake.writer.record_relations([version])
    rows = [change(name, lake.versions[name].id, n, lsn) for n, name in enumerate(lake.names)]
    lake.land(LSN(lsn + 8), [*rows, change(NEW, version.id, 3, lsn, relation_id=99)])
    return version.id


def test_of_a_large_file_only_the_row_groups_of_an_input_are_read(
    lake: NativeLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, version, first = lake.names[0], lake.versions[lake.names[0]].id, LAST_LSN + 100
    groups = [[change(name, version, n, first + 10 * g, new=["1", "x"]) for n in range(50)] for g in range(8)]
    lake.land_files(LSN(first + 100), [write_file(lake.bronze.changes.folder, *groups)])
    monkeypatch.setattr(change_rows, "_MAX_BYTES_OF_PART", 1)
    bronze = fresh(lake)
    rows, start = ChangeRows(bronze), InputStart(LSN(first + 18))  # where the second transaction ends
    with bronze_reads() as reads:
        found = rows.read(name, start, LSN(first + 48))
        assert set(found.column("commit_lsn").to_pylist()) == {first + 20, first + 30, first + 40}
        assert len(reads.paths) == 3
        assert pa.table(rows.stream(name, start, LSN(first + 58))).num_rows == 4 * 50
        assert len(reads.paths) == 4, "what was read is kept for the batch"
    assert ChangeRows(bronze).read(name, InputStart(LSN(first)), LSN(first + 100)).num_rows == 8 * 50


def test_a_new_table_is_read_from_its_first_lsn(lake: NativeLake) -> None:
    version = add_table(lake, LAST_LSN)
    lake.insert(lake.names, LAST_LSN + 10)
    bronze, end = fresh(lake), lake.offset
    newest = set(list(lake.bronze.changes.snapshot().files)[-2:])
    with bronze_reads() as reads:
        [found] = bronze.survey_tables({NEW: INVALID}, end)[NEW]
    assert (found.survey.version, found.counts["I"]) == (version, 1)
    assert {Path(path).name for path in reads.paths} <= newest
    with bronze_reads() as reads:
        assert len(bronze.survey_table(NEW, InputStart(), end)) == 1
        assert bronze.count_of(NEW, end) == 1
        assert bronze.exact_runs(NEW, InputStart(), end, {version: 0})
        assert ChangeRows(bronze).read(NEW, InputStart(), end).num_rows == 1
    assert reads.paths
    assert {Path(path).name for path in reads.paths} <= newest


def test_a_version_of_a_later_copy_is_not_among_those_recorded_before_it(lake: NativeLake) -> None:
    known = lake.versions[lake.names[0]].id
    later = relation_version(Relation(99, *NEW, "d", (Column(True, "id", 23, -1),)), None, LSN(5000))
    lake.writer.record_relations([later])
    assert fresh(lake).relation_version_ids(lake.offset) == {v.id for v in lake.versions.values()}
    assert known in fresh(lake).relation_version_ids(LSN(1))
    assert later.id in fresh(lake).relation_version_ids(LSN(5000))


def land_copy(lake: NativeLake, name: TableName, counts: list[int], lsn: LSN, copy_id: int) -> None:
    """Land copied rows, one file for each count."""
    before = lake.bronze.chunk_count(name)
    common = {"commit_lsn": int(lsn), "end_lsn": int(lsn), "copy_id": copy_id, "xid": None}
    for number, count in enumerate(counts):
        rows = [change(name, lake.versions[name].id, n, int(lsn), "R") | common for n in range(count)]
        data = write_file(lake.bronze.changes.folder, rows)
        lake.writer.commit([data], TableCommit(lake.bronze.copy_txn(name), LSN(before + number + 1)))


def test_the_rows_of_a_copy_are_counted_without_reading_them(lake: NativeLake) -> None:
    name = lake.names[1]
    land_copy(lake, name, [40, 2], SECOND_SNAPSHOT, SECOND_COPY)
    land_copy(lake, lake.names[2], [7], SECOND_SNAPSHOT, SECOND_COPY + 1)
    land_copy(lake, name, [5], LSN(9500), SECOND_COPY)
    bronze = fresh(lake)
    with bronze_reads() as reads:
        assert bronze.copied_rows(name, SECOND_COPY, [SECOND_SNAPSHOT]) == 42
        assert bronze.copied_rows(name, SECOND_COPY, [SECOND_SNAPSHOT, LSN(9500)]) == 47
        assert bronze.copied_rows(lake.names[0], SECOND_COPY, [SECOND_SNAPSHOT]) == 0
    assert not reads.paths
    with bronze_reads() as reads:  # the first copies of all tables are in one file
        assert bronze.copied_rows(name, 2, [COPIED_AT]) == 20
    assert len(reads.paths) == 1


def test_surveys_open_no_file_of_copied_rows(lake: NativeLake) -> None:
    land_copy(lake, lake.names[0], [10], SECOND_SNAPSHOT, SECOND_COPY)
    lake.insert(lake.names, 9100)
    with bronze_reads() as reads:
        found = fresh(lake).survey_tables({lake.names[0]: LSN(LAST_LSN)}, lake.offset)
    assert found[lake.names[0]][0].counts["I"] == 1
    assert len(reads.paths) == 1


def test_the_time_of_copies_is_read_from_one_file_of_each_snapshot(lake: NativeLake) -> None:
    for number, name in enumerate(lake.names):
        land_copy(lake, name, [10, 10], SECOND_SNAPSHOT, SECOND_COPY + number)
    copies = [
        CompleteCopy(SECOND_COPY + number, lake.versions[name].id, (SECOND_SNAPSHOT,), 20)
        for number, name in enumerate(lake.names)
    ]
    with bronze_reads() as reads:
        found = newest_commit(fresh(lake), {}, lake.offset, copies)
    assert found is not None
    assert (found - START).total_seconds() == int(SECOND_SNAPSHOT) / 1000
    assert len(reads.paths) == 1


@pytest.mark.costly
def test_invisible_commits_are_found_in_the_files_of_their_transactions(lake: NativeLake) -> None:
    rng = random.Random(3)
    transactions = [(10_000 + 10 * n, 500 + n) for n in range(40)]
    rng.shuffle(transactions)  # a transaction with a low id may commit late
    transactions = [(10_000 + 10 * n, xid) for n, (_, xid) in enumerate(transactions)]
    for lsn, xid in transactions:
        name = rng.choice(lake.names)
        lake.land(LSN(lsn + 8), [change(name, lake.versions[name].id, 0, lsn, xid=xid)])
    running = (transactions[7][1], transactions[11][1], transactions[30][1])
    snapshot = SnapshotChunks(LSN(10_200), running, 0, (Chunk(1, 1, 0, 1),))
    rows = lake.bronze.changes.rows(["schema_name", "table_name", "commit_lsn", "xid"]).to_pylist()
    expected: dict[TableName, tuple[LSN, ...]] = {}
    for row in sorted(rows, key=lambda row: row["commit_lsn"]):
        if row["xid"] in running and row["commit_lsn"] <= snapshot.lsn:
            name = TableName(row["schema_name"], row["table_name"])
            expected[name] = (*expected.get(name, ()), LSN(row["commit_lsn"]))
    with bronze_reads() as reads:
        snapshots = {name: [snapshot] for name in lake.names}
        found = find_invisible_commits(fresh(lake).changes, snapshots, CopyHistory())
    assert found == expected
    assert sum(map(len, found.values())) == 2
    assert len(reads.paths) == 2
    with bronze_reads() as reads:
        of_one = {lake.names[0]: [snapshot]}
        assert find_invisible_commits(fresh(lake).changes, of_one, CopyHistory()) == {
            name: lsns for name, lsns in expected.items() if name == lake.names[0]
        }
    assert len(reads.paths) == len(expected.get(lake.names[0], ()))
    # another server, or an earlier state of this one, had other transactions under the same xids
    for is_fork in (False, True):
        history = CopyHistory(gaps=(Gap(LSN(10_050), LSN(10_100), "", is_fork),))
        after = {name: tuple(lsn for lsn in lsns if lsn >= 10_100) for name, lsns in expected.items()}
        after = {name: lsns for name, lsns in after.items() if lsns} if is_fork else expected
        assert find_invisible_commits(fresh(lake).changes, snapshots, history) == after


def test_tables_that_a_batch_left_behind_need_not_read_its_files_again(lake: NativeLake) -> None:
    first, second, third = (LSN(LAST_LSN + 100 * number) for number in range(3))
    for number in range(20):
        lake.insert(lake.names, LAST_LSN + 10 * number)
    bronze = fresh(lake)
    rows = ChangeRows(bronze)

    def reads_of(name: TableName, start: LSN, end: LSN) -> int:
        with bronze_reads() as reads:
            assert rows.read(name, InputStart(start), end).num_rows
        return len(reads.paths)

    rows.begin_batch(first)
    assert reads_of(lake.names[0], first, second)
    rows.begin_batch(second, [first])
    assert reads_of(lake.names[0], second, third)
    rows.begin_batch(second, [first])  # nothing was new
    assert reads_of(lake.names[1], first, second) == 0
    assert reads_of(lake.names[1], second, third) == 0
    rows.begin_batch(third, [first])  # a table that does not keep up reads on its own
    assert reads_of(lake.names[2], first, second)


def test_values_are_read_to_be_counted_only_for_a_batch(lake: NativeLake) -> None:
    """A plan, or the rebuild of one table, would read all of bronze for it."""
    name, first, last = lake.names[0], LSN(LAST_LSN), LSN(LAST_LSN + 100)
    for number in range(20):
        lake.insert(lake.names, LAST_LSN + 10 * number)
    rows = ChangeRows(fresh(lake))

    def values(limit: int) -> tuple[float, int]:
        with bronze_reads() as reads:
            found = rows.values_by_lsn(name, InputStart(first), last, 9, limit)
        return sum(size for _, size in found), len(reads.paths)

    estimated, count = values(0)
    assert (estimated > 0, count) == (True, 0)
    rows.begin_batch(first)
    assert values(1 << 30) == (estimated, 0)
    counted, count = values(0)
    assert (counted > 0, count) == (True, 10)
    assert counted != estimated
