"""Checkpoints and checksum files that are written without Spark, and the clean-up of a log."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from pipeline.delta import checkpoints, native_write
from pipeline.delta.checkpoint_files import list_log
from pipeline.delta.checkpoints import (
    expired_files,
    remove_expired,
    superseded_checkpoints,
    superseded_checksums,
    write_checkpoint,
)
from pipeline.delta.checksum import next_checksum, write_checksum
from pipeline.delta.log_retention import LOG_COMMITS, LogRetention, short_log
from pipeline.delta.store.mirror import remove_files
from pipeline.delta.table import Lake, LakeTable
from pipeline.delta.table_log import TableLog
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.protocol.lsn import LSN
from tests.support.seeds import seed_of_run

DDL = "id INT, tag STRING"
DAY = 86_400


def table_of(folder: Path, *numbers: int, **properties: str) -> LakeTable:
    made = Lake(str(folder)).table("t")
    made.ensure(DDL, {f"delta.{name}": value for name, value in properties.items()})
    append(made, *numbers)
    return made


def append(table: LakeTable, *numbers: int) -> None:
    for number in numbers:
        table.append_rows([{"id": number}], DDL, TableCommit(TxnId(f"p{number % 3}"), LSN(number + 1)))


def log_of(table: LakeTable) -> Path:
    return table.folder / "_delta_log"


def names(table: LakeTable, ending: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in log_of(table).glob(f"*{ending}"))


def read_anew(table: LakeTable) -> tuple[Any, ...]:
    """Read a table as a process that knows nothing of it does: all that its next commits are made of."""
    TableLog.forget(table.path)
    snapshot = table.snapshot()
    rows = sorted(table.rows(["id"])["id"].to_pylist())
    files = {path: dict(action) for path, action in snapshot.files.items()}
    return snapshot.version, dict(snapshot.offsets), dict(snapshot.metadata), snapshot.protocol, files, rows


@pytest.mark.costly
@pytest.mark.parametrize("interval", [1, 4, 10])
def test_a_checkpoint_replaces_the_commits_before_it(tmp_path: Path, interval: int) -> None:
    table = table_of(tmp_path, *range(12), checkpointInterval=str(interval))
    table.delete_rows(pc.field("id") == 3, "id = 3", ["id"])
    before = read_anew(table)
    assert names(table, ".checkpoint.parquet") == [v for v in range(1, 14) if v % interval == 0]
    last = json.loads((log_of(table) / "_last_checkpoint").read_text())
    assert last["version"] == 13 // interval * interval
    for version in range(last["version"]):
        (log_of(table) / f"{version:020}.json").unlink()
    assert read_anew(table) == before
    assert [path for path in table.folder.iterdir() if path.name.startswith(".")] == []


def test_a_checkpoint_has_what_the_commits_have(tmp_path: Path) -> None:
    """Maps without an entry too, as the options of the format: the next commits copy them."""
    table = table_of(tmp_path, 1, 2)
    before = read_anew(table)
    write_checkpoint(table.folder, 2)
    for version in range(3):
        (log_of(table) / f"{version:020}.json").unlink()
    assert read_anew(table) == before


def test_removed_files_stay_in_a_checkpoint_until_they_expire(tmp_path: Path) -> None:
    """VACUUM would remove a file that was removed a moment ago, if it were not for that."""
    table = table_of(tmp_path, 1, 2, checkpointInterval="3")
    table.overwrite_rows([{"id": 9}], DDL)
    import pyarrow.parquet as pq

    rows = pq.read_table(log_of(table) / f"{3:020}.checkpoint.parquet").to_pylist()
    assert len([row for row in rows if row["remove"]]) == 2


def test_a_checkpoint_that_fails_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints, "write_checkpoint", fail)
    table = table_of(tmp_path, 1, 2, 3, checkpointInterval="2")
    assert table.version() == 3


def test_an_older_checkpoint_does_not_replace_the_newest(tmp_path: Path) -> None:
    table = table_of(tmp_path, *range(6), checkpointInterval="100")
    for version in (5, 2):
        write_checkpoint(table.folder, version)
    assert json.loads((log_of(table) / "_last_checkpoint").read_text())["version"] == 5
    write_checkpoint(table.folder, 5)
    assert names(table, ".checkpoint.parquet") == [2, 5]


def test_what_a_dead_writer_left_is_removed(tmp_path: Path) -> None:
    table = table_of(tmp_path, checkpointInterval="2")
    left = [table.folder / f".checkpoint-{name}" for name in ("old", "new")]
    for folder in left:
        (folder / "_delta_log").mkdir(parents=True)
    os.utime(left[0], (0, 0))
    append(table, 1, 2)
    assert [folder.exists() for folder in left] == [False, True]


def age(table: LakeTable, until: int, days: float) -> None:
    then = time.time() - days * DAY
    for path in log_of(table).iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) <= until:
            os.utime(path, (then, then))


def test_only_what_no_version_within_the_retention_needs_is_removed(tmp_path: Path) -> None:
    table = table_of(tmp_path, *range(11), checkpointInterval="4")
    age(table, 9, 31)
    before = read_anew(table)
    remove_expired(table.folder, 11, LogRetention(), time.time())
    assert names(table, ".json") == [8, 9, 10, 11]
    assert names(table, ".checkpoint.parquet") == [8]
    assert names(table, ".crc") == [8, 9, 10, 11]
    assert read_anew(table) == before
    assert table.snapshot(9).version == 9, "a version after the newest expired checkpoint can be read"


@pytest.mark.costly
@pytest.mark.parametrize(
    ("properties", "is_cleaned"),
    [
        ({}, True),
        ({"logRetentionDuration": "interval 40 days"}, False),
        ({"logRetentionDuration": "interval 1 week"}, True),
        ({"logRetentionDuration": "no interval"}, True),
        ({"enableExpiredLogCleanup": "false"}, False),
    ],
)
def test_a_log_is_cleaned_with_each_checkpoint(
    tmp_path: Path, properties: dict[str, str], is_cleaned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"delta.enableExpiredLogCleanup"}
    monkeypatch.setattr(native_write, "PLAIN_PROPERTIES", native_write.PLAIN_PROPERTIES | more)
    table = table_of(tmp_path, *range(9), checkpointInterval="2", **properties)
    age(table, 6, 31)
    append(table, 9)
    assert (names(table, ".json")[0] == 6) == is_cleaned


def test_a_checksum_follows_from_the_one_before(tmp_path: Path) -> None:
    table = table_of(tmp_path, *range(5))
    table.delete_rows(pc.field("id") == 3, "id = 3", ["id"])
    table.compact_rows()
    table.overwrite_rows([{"id": 1}], "id BIGINT", replaces_schema=True)
    snapshot = table.snapshot()
    found = json.loads((log_of(table) / f"{snapshot.version:020}.crc").read_text())
    assert found["numFiles"] == len(snapshot.files) == 1
    assert found["tableSizeBytes"] == sum(add["size"] for add in snapshot.files.values())
    assert {each["appId"]: each["version"] for each in found["setTransactions"]} == snapshot.offsets
    assert found["metadata"]["schemaString"] == snapshot.schema_string
    assert found["protocol"] == snapshot.protocol


def test_without_the_checksum_before_there_is_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, 1)
    (log_of(table) / f"{1:020}.crc").unlink()
    append(table, 2)
    assert names(table, ".crc") == [0]


@pytest.mark.parametrize("line", ['{"commitInfo":{"txnId":"cut o', '{"commitInfo":null}', '{"txn":{}}'])
def test_a_checksum_does_not_follow_a_commit_that_cannot_be_read(tmp_path: Path, line: str) -> None:
    table = table_of(tmp_path, 1)
    newest = log_of(table) / f"{1:020}.json"
    newest.write_text(line + "\n")
    write_checksum(log_of(table), 2, [], "ours")
    assert names(table, ".crc") == [0, 1]


def test_a_checksum_of_a_commit_that_was_removed_is_not_continued(tmp_path: Path) -> None:
    table = table_of(tmp_path, 1, 2)
    newest = log_of(table) / f"{2:020}.json"
    kept = newest.with_suffix(".crc").read_bytes()
    foreign = json.dumps({"commitInfo": {"operation": "WRITE", "txnId": "another"}})
    newest.write_text(foreign)
    TableLog.forget(table.path)
    append(table, 3)
    assert newest.with_suffix(".crc").read_bytes() == kept
    assert names(table, ".crc") == [0, 1, 2]
    assert table.snapshot().version == 3


FIRST: list[dict[str, Any]] = [{"metaData": {"id": "a"}}, {"protocol": {"minReaderVersion": 1}}]


@pytest.mark.parametrize(
    ("before", "actions"),
    [
        (None, []),
        ({}, [{"metaData": {"id": "a"}}]),
        ({}, [*FIRST, {"remove": {"path": "a"}}]),
        ({}, [*FIRST, {"remove": {"path": "a", "size": 1}}]),
        ({}, [*FIRST, {"domainMetadata": {"domain": "d"}}]),
    ],
)
def test_what_does_not_follow_is_left_out(
    before: dict[str, Any] | None, actions: list[dict[str, Any]]
) -> None:
    assert next_checksum(before, actions) is None


def test_too_many_transactions_are_left_out() -> None:
    actions = [*FIRST, *({"txn": {"appId": str(n), "version": 1}} for n in range(1001))]
    found = next_checksum({}, actions)
    assert found is not None
    assert "setTransactions" not in found
    assert next_checksum(found, [{"txn": {"appId": "x", "version": 1}}]) == found


def test_the_newest_commit_with_an_offset_is_kept(tmp_path: Path) -> None:
    table = table_of(tmp_path, checkpointInterval="4")
    txn = TxnId("shop")
    table.append_rows([{"id": 1}], DDL, TableCommit(txn, LSN(7)))
    for number in range(7):  # commits of maintenance
        table.append_rows([{"id": number}], DDL)
    assert names(table, ".checkpoint.parquet") == [4, 8]
    remove_expired(table.folder, 8, LogRetention(), time.time() + 31 * DAY, table.snapshot().offsets)
    assert names(table, ".json") == list(range(9)), "version 1 says where the next run goes on"
    table.append_rows([{"id": 9}], DDL, TableCommit(txn, LSN(8)))
    remove_expired(table.folder, 9, LogRetention(), time.time() + 31 * DAY, table.snapshot().offsets)
    assert names(table, ".json") == [8, 9]
    assert read_anew(table)[1] == {str(txn): 8}


def test_checksums_before_a_checkpoint_are_superseded(tmp_path: Path) -> None:
    table = table_of(tmp_path, *range(6), checkpointInterval="4")
    assert superseded_checksums(table.folder, time.time() - DAY) == []
    found = superseded_checksums(table.folder, time.time() + 1)
    assert sorted(int(path.name[:20]) for path in found) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("age", "newer", "is_expired"),
    [(3599, 9000, False), (3601, 99, False), (3601, 100, True), (DAY + 1, 0, True)],
)
def test_versions_expire_by_age_or_by_number(age: float, newer: int, is_expired: bool) -> None:
    assert LogRetention(DAY, 100).is_expired(age, newer) == is_expired


def test_the_properties_of_a_short_log() -> None:
    assert LogRetention.of(short_log(7200, 50)) == LogRetention(7200, 50)
    assert LogRetention.of(short_log(0, 50)) == LogRetention(30 * DAY, 50)
    assert LogRetention.of({LOG_COMMITS: "many"}) == LogRetention(30 * DAY, 0)
    assert short_log(0, 0) == {}
    theirs = short_log(7200, 50) | {"delta.logRetentionDuration": "interval 9 days"}
    assert LogRetention.of(theirs) == LogRetention(9 * DAY, 0)


def test_a_short_log_keeps_a_number_of_commits_from_birth(tmp_path: Path) -> None:
    """Without a run of maintenance, and though all versions are younger than a day."""
    table = Lake(str(tmp_path)).table("t")
    table.ensure(DDL, short_log(commits=6) | {"delta.checkpointInterval": "2"})
    append(table, *range(18))
    age(table, 18, 2 / 24)
    append(table, 18, 19)
    assert names(table, ".json")[0] == 14
    assert names(table, ".checkpoint.parquet") == [14, 20]
    assert names(table, ".crc") == [19, 20], "checksums that a checkpoint supersedes go after an hour"
    assert read_anew(table)[-1] == list(range(20))
    assert table.snapshot(15).version == 15


def test_a_short_log_keeps_what_is_young(tmp_path: Path) -> None:
    table = Lake(str(tmp_path)).table("t")
    table.ensure(DDL, short_log(commits=6) | {"delta.checkpointInterval": "2"})
    append(table, *range(20))
    assert names(table, ".json") == list(range(21))


def test_old_checkpoints_become_sparse_and_every_version_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_SPARSE", 8)
    table = table_of(tmp_path, *range(21), checkpointInterval="2")
    assert superseded_checkpoints(table.folder, time.time() - 3600) == []
    age(table, 18, 1)
    for path in superseded_checkpoints(table.folder, time.time() - 3600):
        path.unlink()
    assert names(table, ".checkpoint.parquet") == [2, 8, 16, 20]
    for version in range(22):
        TableLog.forget(table.path)
        assert len(table.snapshot(version).files) == version
    age(table, 10, 31)
    remove_expired(table.folder, 21, LogRetention(), time.time())
    assert names(table, ".json")[0] == 8
    TableLog.forget(table.path)
    assert len(table.snapshot(9).files) == 9


def test_fast_commits_have_few_checkpoints_each_table_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_DEFAULT_INTERVAL", 2)
    monkeypatch.setattr(checkpoints, "_LONG_INTERVAL", 20)
    tables = [table_of(tmp_path / str(number), *range(22)) for number in range(7)]
    made = [names(table, ".checkpoint.parquet") for table in tables]
    assert all(first == 2 for first, *_ in made)
    second = [version for _, version in made]
    assert all(4 <= version <= 22 and version % 2 == 0 for version in second)
    assert len(set(second)) > 1
    for table in tables:
        version, *_, rows = read_anew(table)
        assert (version, rows) == (22, [*range(22)])


def test_slow_commits_have_a_checkpoint_in_ten(tmp_path: Path) -> None:
    table = table_of(tmp_path, *range(10))
    old = time.time() - 31
    for number in (2, 3):
        os.utime(log_of(table) / f"{10 * (number - 1):020}.checkpoint.parquet", (old, old))
        append(table, *range(10 * number - 10, 10 * number))
        assert names(table, ".checkpoint.parquet")[-1] == 10 * number


def test_a_large_checkpoint_is_written_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_BYTES_A_COMMIT", 100)
    monkeypatch.setattr(checkpoints, "_LONG_INTERVAL", 20)
    table = table_of(tmp_path / "default", *range(41))
    first, second, *rest = names(table, ".checkpoint.parquet")
    assert (first, rest) == (10, [second + 20] if second == 20 else [])
    assert second in (20, 30)
    table = table_of(tmp_path / "set", *range(41), checkpointInterval="10")
    assert names(table, ".checkpoint.parquet") == [10, 20, 30, 40]


def readable(log: Path) -> set[int]:
    """Return the versions of a log whose commits are there and that can be read."""
    found = list_log(str(log))
    whole = [each.version for each in found.checkpoints if all(os.path.getsize(p) for p in each.paths)]
    commits = set(found.commits)
    return {
        version
        for version in commits
        if any(base <= version and commits.issuperset(range(base + 1, version + 1)) for base in (*whole, -1))
    }


@pytest.mark.costly
@pytest.mark.parametrize("thins", [False, True])
def test_every_version_that_is_kept_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thins: bool
) -> None:
    monkeypatch.setattr(checkpoints, "_SPARSE", 8)
    draw = random.Random(seed_of_run())
    made = table_of(tmp_path, checkpointInterval="1")
    append(made, 1)
    content = (log_of(made) / f"{1:020}.checkpoint.parquet").read_bytes()
    now = time.time()
    for number in range(40):
        log = tmp_path / str(number) / "_delta_log"
        log.mkdir(parents=True)
        last, interval = draw.randint(1, 60), draw.randint(1, 7)
        versions = sorted(draw.sample(range(last + 1), max(1, last // interval)))
        first = draw.choice((0, versions[0]))
        lacking = draw.choice(([], draw.sample(range(last), last // 20)))
        retention = LogRetention(draw.choice((1, 30)) * DAY, draw.choice((0, 10, 40)))
        ages = sorted((draw.uniform(0, 3 * retention.seconds) for _ in range(last + 1)), reverse=True)
        files = {f"{version:020}.json": b"{}" for version in range(first, last + 1) if version not in lacking}
        for version in versions:
            files[f"{version:020}.checkpoint.parquet"] = draw.choice((content,) * 9 + (b"",))
        for name, text in files.items():
            (log / name).write_bytes(text)
            os.utime(log / name, (now - ages[int(name[:20])],) * 2)
        before = readable(log)
        remove_files(expired_files(log.parent, last, retention, now, thins=thins))
        kept = {int(path.name[:20]) for path in log.glob("*.json")}
        assert before & kept == readable(log)
        lives = {each for each in before if not retention.is_expired(ages[each], last - each)}
        assert lives <= kept
