"""The spool hands over whole committed transactions, whatever their size, and holds little of them."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from random import Random

import pytest

from pipeline.bronze import spool as spool_module
from pipeline.bronze.versions import relations_table
from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Insert, Origin, Relation
from pipeline.protocol.transactions import Began, Change, Committed
from tests.bronze.events import Session, expected_places, places, relation, rows_of, version
from tests.protocol.encode import encode

ROOT = Path(__file__).resolve().parents[2]


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
    staged = session.spool.seal()
    assert staged is not None
    assert (staged.parts, staged.end_lsn, staged.transaction_count) == ((), end, 1)


def test_only_committed_transactions_are_handed_over(session: Session) -> None:
    end = session.transaction(3)
    session.begin()
    session.changes(2)
    staged = session.spool.seal()
    assert staged is not None
    assert staged.end_lsn == end
    assert places(rows_of(staged)) == list(expected_places((1, 3)))
    session.changes(1)
    session.commit()
    assert places(rows_of(session.spool.seal())) == list(expected_places((2, 3)))
    assert session.spool.seal() is None


def test_row_says_its_transaction_relation_and_time(session: Session) -> None:
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
def test_transaction_larger_than_the_limit_has_a_file_of_its_own_with_its_end(session: Session) -> None:
    session.transaction(2)
    session.transaction(35)
    session.transaction(3)
    staged = session.spool.seal()
    assert places(rows_of(staged)) == list(expected_places((1, 2), (2, 35), (3, 3)))
    assert staged is not None
    assert sorted(part.row_count for part in staged.parts) == [5, 35]


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
    staged = session.spool.seal()
    assert staged is not None
    assert [part.row_count for part in staged.parts] == [120]
    assert (staged.transaction_count, staged.change_count) == (40, 120)
    assert places(rows_of(staged)) == list(expected_places(*((n, 3) for n in range(1, 41))))


@pytest.mark.usefixtures("small_limits")
def test_wide_rows_count_by_their_bytes(session: Session) -> None:
    session.begin()
    for _ in range(6):
        session.change(b"k", b"x" * 400)
    session.commit()
    session.transaction(1)
    staged = session.spool.seal()
    assert staged is not None
    assert sorted(part.row_count for part in staged.parts) == [1, 6]
    assert places(rows_of(staged)) == list(expected_places((1, 6), (2, 1)))


@pytest.mark.usefixtures("small_limits")
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


def test_truncation_is_one_row_per_relation(session: Session) -> None:
    session.begin()
    session.change()
    session.truncate(1, 0, options=3, origin=Origin(LSN(2**63 + 5), "north"))
    session.change()
    session.commit()
    rows = rows_of(session.spool.seal())
    assert [(r["op"], r["ordinal"], r["table_name"], r["truncate_options"]) for r in rows] == [
        ("I", 0, "one", None),
        ("T", 1, "two", 3),
        ("T", 2, "one", 3),
        ("I", 3, "one", None),
    ]
    assert {(r["origin"], r["origin_lsn"]) for r in rows} == {(None, None), ("north", str(LSN(2**63 + 5)))}
    assert {(r["xid"], r["commit_lsn"], r["end_lsn"]) for r in rows} == {(1, 100, 150)}


def test_message_of_a_transaction_stands_in_it_and_one_of_none_has_its_own_position(session: Session) -> None:
    session.begin()
    session.message(b"\0\xff", 0)
    session.message(b"", 1)
    session.commit()
    session.message(b"between", 0, transactional=False)
    staged = session.spool.seal()
    names = ("commit_lsn", "end_lsn", "ordinal", "xid", "transactional", "content", "message_lsn")
    assert [tuple(row[name] for name in names) for row in rows_of(staged)] == [
        (100, 150, 0, 1, True, b"\0\xff", 160),
        (100, 150, 1, 1, True, b"", 161),
        (160, 160, 0, None, False, b"between", 160),
    ]
    assert staged is not None
    assert staged.end_lsn == 160


def test_message_outside_a_transaction_does_not_wait_for_the_one_that_follows(session: Session) -> None:
    session.message(b"first", 0, transactional=False)
    session.begin()
    session.message(b"open", 0)
    session.change()
    assert [row["content"] for row in rows_of(session.spool.seal())] == [b"first"]
    session.commit()
    assert [row["content"] for row in rows_of(session.spool.seal())] == [None, b"open"]


def test_each_change_has_the_origin_in_force(session: Session) -> None:
    north, south = Origin(LSN(7), "north"), Origin(LSN(8), "süd")
    session.begin()
    for origin in (None, north, north, south):
        session.change(origin=origin)
    session.commit()
    session.transaction(1)
    rows = rows_of(session.spool.seal())
    assert [(row["origin"], row["origin_lsn"]) for row in rows] == [
        (None, None), ("north", "0/7"), ("north", "0/7"), ("süd", "0/8"), (None, None),
    ]  # fmt: skip


def test_change_names_the_version_that_was_in_force(session: Session) -> None:
    wider = relation(1, "one", width=3)
    session.begin()
    session.change()
    session.spool.describe(version(wider))
    session.spool.add_change(Change(1, wider, None, encode(Insert(1, (b"1", b"2", b"3")))))
    session.spool.describe(version(session.relations[0]))
    session.ordinal = 2
    session.change()
    session.commit()
    rows = rows_of(session.spool.seal())
    narrow = version(session.relations[0]).id
    assert [row["relation_version"] for row in rows] == [narrow, version(wider).id, narrow]


def test_repeated_descriptions_take_no_room(session: Session) -> None:
    for _ in range(1000):
        session.spool.describe(version(relation(1, "one")))
    assert len(session.spool._versions) == 2


def test_names_that_are_not_utf8_are_escaped_where_they_are_stored(tmp_path: Path) -> None:
    odd = "caf\udce9"
    columns = (Column(True, odd, 25, -1), Column(False, "naïve", 25, -1))
    named = Relation(5, odd, "日本\udcff", "d", columns)
    session = Session(tmp_path, named)
    session.begin()
    session.change(origin=Origin(LSN(1), odd))
    session.truncate(0)
    session.message(b"", 0, prefix=odd)
    session.commit()
    row, truncation, message = rows_of(session.spool.seal())
    for stored in (row, truncation):
        assert (stored["schema_name"], stored["table_name"]) == (r"caf\xE9", r"日本\xFF")
    assert row["origin"] == message["prefix"] == r"caf\xE9"
    [described] = relations_table([version(named)]).to_pylist()
    assert (described["schema_name"], described["table_name"]) == (r"caf\xE9", r"日本\xFF")
    assert [column["name"] for column in described["columns"]] == [r"caf\xE9", "naïve"]


def test_schema_that_the_wire_leaves_empty_is_that_of_the_system(tmp_path: Path) -> None:
    session = Session(tmp_path, relation(1, "pg_stuff", namespace=""))
    session.transaction(1)
    [row] = rows_of(session.spool.seal())
    assert row["schema_name"] == "pg_catalog"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_tuple_of_another_width_than_its_relation_is_refused_by_name(session: Session, count: int) -> None:
    session.transaction(2)
    session.begin()
    to = session.relations[1]
    session.spool.add_change(Change(0, to, None, encode(Insert(to.oid, (b"1",) * count))))
    session.commit()
    sentence = (
        f"Insert for public.two in the transaction committed at {LSN(200)}: "
        f"{count} columns in the new tuple, its relation has 2"
    )
    with pytest.raises(ProtocolError) as caught:
        session.spool.seal()
    assert str(caught.value) == sentence


def test_position_that_no_server_has_is_a_protocol_error(session: Session) -> None:
    for lsn, time in ((2**63, 0), (5, 2**63 - 1)):
        session.spool.begin(Began(1, LSN(lsn), time))
        session.change()
        session.spool.commit(Committed(1, LSN(lsn), LSN(lsn), time, 1))
        with pytest.raises(ProtocolError):
            session.spool.seal()


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
from tests.bronze.events import Session, relation
session = Session(Path(sys.argv[1]), relation(1))
count, size = int(sys.argv[2]), int(sys.argv[3])
for start in range(0, count, size):
    session.begin()
    for row in range(start, start + size):
        session.change(b"%d" % row, b"a value of a row " * 12)
        if row == count * 2 // 5:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session.commit()
staged = session.spool.seal()
print(staged.row_count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early)
"""


@pytest.mark.parametrize("size", [500_000, 500])
def test_memory_does_not_grow_with_what_is_fed(tmp_path: Path, size: int) -> None:
    count = 500_000
    command = [sys.executable, "-c", FEED, str(tmp_path), str(count), str(size)]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    row_count, growth_in_kib = map(int, result.stdout.split())
    assert row_count == count
    assert growth_in_kib < 64 << 10
