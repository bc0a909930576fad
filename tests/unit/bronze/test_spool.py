"""The spool hands over whole committed transactions, whatever their size, and holds little of them."""

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from random import Random

import pytest

from pipeline.bronze import rows as rows_module
from pipeline.bronze import spool as spool_module
from pipeline.bronze.staged_files import StagedFile
from tests.support.bronze.events import (
    Session,
    expected_places,
    places,
    relation,
    rows_of,
    version,
)
from tests.support.paths import ROOT


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, relation(1, "one"), relation(2, "two"))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ROW_LIMIT", 10)
    monkeypatch.setattr(spool_module, "BYTE_LIMIT", 1000)
    monkeypatch.setattr(spool_module, "OTHER_LIMIT", 4)


def test_nothing_received_is_nothing_to_hand_over(session: Session) -> None:
    assert session.spool.seal() is None
    session.begin()
    session.changes(3)
    assert session.spool.seal() is None


def test_empty_transactions_advance_the_position_without_a_file(session: Session) -> None:
    end = session.transaction(0)
    staged = session.seal()
    assert (staged.files, staged.end_lsn, staged.transaction_count) == ((), end, 1)


def test_only_committed_transactions_are_handed_over(session: Session) -> None:
    end = session.transaction(3)
    session.begin()
    session.changes(2)
    staged = session.seal()
    assert staged.end_lsn == end
    assert places(rows_of(staged)) == list(expected_places((1, 3)))
    session.changes(1)
    session.commit()
    assert places(rows_of(session.spool.seal())) == list(expected_places((2, 3)))
    assert session.spool.seal() is None


def test_row_has_its_transaction_relation_and_time(session: Session) -> None:
    session.begin()
    session.change(b"1", None, of=1)
    session.commit()
    [row] = rows_of(session.spool.seal())
    second = version(session.relations[1])
    expected = {
        "xid": 1,
        "commit_time": datetime(2000, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc),
        "op": "I",
        "relation_id": 2,
        "relation_version": second.id,
        "schema_name": "public",
        "table_name": "two",
        "new": ["1", None],
        "old": None,
        "old_kind": None,
        "unsent": None,
        "raw_new": None,
        "gid": None,
    }
    assert expected.items() <= row.items()


@pytest.mark.usefixtures("small_limits")
def test_transaction_larger_than_the_limit_has_its_own_file_with_its_end(session: Session) -> None:
    session.transaction(2)
    session.transaction(35)
    session.transaction(3)
    staged = session.spool.seal()
    assert places(rows_of(staged)) == list(expected_places((1, 2), (2, 35), (3, 3)))
    assert staged is not None
    counts = [(file.data.row_count, bounds(file)) for file in staged.files]
    assert sorted(counts, key=lambda each: each[1]) == [(2, (100, 100)), (35, (200, 200)), (3, (300, 300))]


def bounds(file: StagedFile) -> tuple[int, int]:
    """Return the least and the greatest commit LSN of a file: no two files of a batch are mixed."""
    statistics = json.loads(file.data.stats)
    return statistics["minValues"]["commit_lsn"], statistics["maxValues"]["commit_lsn"]


@pytest.mark.usefixtures("small_limits")
def test_large_transaction_is_not_handed_over_before_its_commit(session: Session, tmp_path: Path) -> None:
    session.transaction(1)
    session.begin()
    session.changes(25)
    assert places(rows_of(session.spool.seal())) == list(expected_places((1, 1)))
    session.changes(25)
    assert session.spool.seal() is None
    session.commit()
    assert places(rows_of(session.spool.seal())) == list(expected_places((2, 50)))


@pytest.mark.usefixtures("small_limits")
def test_many_small_transactions_share_one_file(session: Session) -> None:
    for _ in range(40):
        session.transaction(3)
    staged = session.seal()
    assert [file.data.row_count for file in staged.files] == [120]
    assert (staged.transaction_count, staged.change_count) == (40, 120)
    assert places(rows_of(staged)) == list(expected_places(*((n, 3) for n in range(1, 41))))


@pytest.mark.usefixtures("small_limits")
def test_wide_rows_count_by_their_bytes(session: Session) -> None:
    session.begin()
    for _ in range(6):
        session.change(b"k", b"x" * 400)
    session.commit()
    session.transaction(1)
    staged = session.seal()
    assert sorted(file.data.row_count for file in staged.files) == [1, 6]
    assert places(rows_of(staged)) == list(expected_places((1, 6), (2, 1)))


@pytest.mark.costly
@pytest.mark.usefixtures("small_limits")
@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_comes_out_whole_and_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    session = Session(tmp_path, relation(1, "one"), relation(2, "two", width=0))
    expected: list[tuple[int, int, int]] = []
    sealed: list[tuple[int, int, int]] = []
    for _ in range(30):
        session.begin()
        messages = 0
        for _ in range(random.choice((0, 1, 2, 3, 9, 10, 11, 40))):
            match random.randrange(12):
                case 0:
                    session.truncate(*random.choice(((0,), (1, 0))))
                case 1:
                    session.message(b"m" * random.choice((1, 700)), messages)
                    messages += 1
                case _:
                    session.change()
            if random.random() < 0.03 and (staged := session.spool.seal()):
                sealed += places(rows_of(staged))
        position = 100 * session.n, session.commit()
        expected += [(*position, ordinal) for ordinal in range(session.ordinal)]
        expected += [(*position, sequence) for sequence in range(messages)]
        if random.random() < 0.2:
            session.message(b"between", 0, transactional=False)
            expected.append((100 * session.n + 60, 100 * session.n + 60, 0))
    if session.spool.has_commits:
        sealed += places(rows_of(session.spool.seal()))
    assert sorted(sealed) == sorted(expected)
    session.spool.discard()


def test_discard_leaves_no_file(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ROW_LIMIT", 10)
    session.transaction(15)
    session.transaction(3)
    session.begin()
    session.changes(15)
    assert list(tmp_path.iterdir())
    session.spool.discard()
    assert not list(tmp_path.iterdir())


FEED = """
import resource, sys
from pathlib import Path
from pipeline.cli.arrow import use_lean_arrow
use_lean_arrow()
from tests.support.bronze.events import Session, relation, row_count_of
session = Session(Path(sys.argv[1]), relation(1))
count, size = int(sys.argv[2]), int(sys.argv[3])
for start in range(0, count, size):
    session.begin()
    for row in range(start, start + size):
        session.change(b"%d" % row, b"a value of a row " * 80)
        if row == count * 2 // 5:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session.commit()
staged = session.spool.seal()
print(row_count_of(staged.files), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early)
"""


@pytest.mark.costly
@pytest.mark.promise("bounded memory")
@pytest.mark.parametrize("size", [100_000, 100])
def test_memory_does_not_grow_with_what_is_fed(tmp_path: Path, size: int) -> None:
    count = 100_000
    command = [sys.executable, "-c", FEED, str(tmp_path), str(count), str(size)]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    row_count, growth_in_kib = map(int, result.stdout.split())
    assert row_count == count
    assert growth_in_kib < 64 << 10


@pytest.mark.costly
@pytest.mark.promise("bounded growth")
def test_what_is_known_of_versions_does_not_grow_with_their_number(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MAX_RECORDED_IDS", 60)
    monkeypatch.setattr(rows_module, "MAX_OLD_VERSIONS", 40)
    one, two = session.relations
    for number in range(200):
        described = version(relation(1, f"one{number}"))
        session.spool.describe(described)
        session.begin()
        session.changes(1)
        session.change(of=1)
        session.commit()
        staged = session.seal()
        found = [(row["relation_version"], row["table_name"]) for row in rows_of(staged)]
        assert found == [(described.id, f"one{number}"), (version(two).id, "two")]
        assert described.id in {each.id for each in staged.versions}
        for file in staged.files:
            file.path.unlink()
    assert one.oid in session.spool._versions.in_force
    assert len(session.spool._versions.all) < 60
    assert len(session.spool._recorded_version_ids) <= 61


def test_versions_that_open_transactions_name_are_kept(session: Session) -> None:
    first = version(relation(1, "first"))
    session.spool.describe(first)
    session.transaction(1)
    session.begin()
    session.changes(1)
    for number in range(1000):  # the next ones, which this transaction's row does not name
        session.spool.describe(version(relation(1, f"one{number}")))
    session.spool.seal()
    session.changes(1)
    session.commit()
    rows = rows_of(session.spool.seal())
    assert [row["relation_version"] for row in rows] == [first.id, version(relation(1, "one999")).id]
