"""Transactions that stream before their commit, or are prepared: what is left of them, once it is known."""

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.bronze import streamed_transactions as streams_module
from pipeline.bronze.staged_transactions import PreparedFile
from pipeline.errors import ProtocolError
from pipeline.protocol.events import (
    BeganPrepare,
    CommittedPrepared,
    Prepared,
    RolledBackPrepared,
    StreamAborted,
    StreamedChange,
    StreamedEmitted,
    StreamedTruncation,
    StreamPrepared,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Insert, LogicalMessage
from tests.support.bronze.events import Session, places, relation, rows_of, version
from tests.support.bronze.streamed import ONE, TWO, commit, insert, start
from tests.support.protocol.encode import encode

Seen = tuple[str, str | None]  # op, and what one row differs from others by


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, ONE, TWO)


@pytest.fixture(params=["in memory", "on disk"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "on disk":
        monkeypatch.setattr(streams_module, "STREAM_ROWS", 6)


def seen(rows: list[dict[str, Any]]) -> list[Seen]:
    """Return rows in the order of their ordinals, messages last, each as its op and its value."""
    return [(row["op"], row["new"][1] if row["new"] else row["prefix"]) for row in rows]


def prepared_rows(prepared: PreparedFile) -> list[dict[str, Any]]:
    return sorted(pq.read_table(prepared.file.path).to_pylist(), key=lambda r: (r["op"] == "M", r["ordinal"]))


@pytest.mark.costly
@pytest.mark.usefixtures("limits")
@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_left_of_interleaved_streams_is_in_bronze_and_numbered(session: Session, seed: int) -> None:
    rng = Random(seed)
    kept: dict[int, list[tuple[int, Seen]]] = {}
    expected: list[tuple[int, list[Seen]]] = []
    lsn, serial = 1000, 0
    for _ in range(300):
        xid = rng.choice((10, 20, 30))
        if xid not in kept:
            start(session, xid, ONE)
            kept[xid] = []
        else:
            start(session, xid)
        for _ in range(rng.randint(1, 4)):
            serial += 1
            subxid = xid + rng.randint(0, 3)
            match rng.randint(0, 9):
                case 0:
                    session.spool.streams.add_truncation(StreamedTruncation(xid, subxid, (ONE, TWO), 0, None))
                    kept[xid] += [(subxid, ("T", None))] * 2
                case 1:
                    message = LogicalMessage(True, LSN(lsn), f"m{serial}", b"c", subxid)
                    session.spool.streams.add_message(StreamedEmitted(xid, subxid, message))
                    kept[xid].append((subxid, ("M", f"m{serial}")))
                case _:
                    insert(session, xid, subxid, str(serial))
                    kept[xid].append((subxid, ("I", str(serial))))
        lsn += 100
        match rng.randint(0, 11):
            case 0:
                commit(session, xid, lsn)
                of_xid = [what for _, what in kept.pop(xid)]
                expected.append((lsn, sorted(of_xid, key=lambda what: what[0] == "M")))
            case 1:
                session.spool.streams.abort(StreamAborted(xid, xid, None, None))
                del kept[xid]
            case 2 | 3:
                # A subtransaction ends once: what comes after it has another number.
                aborted = xid + rng.randint(1, 3)
                session.spool.streams.abort(StreamAborted(xid, aborted + 100, None, None))
                kept[xid] = [(s + 1000 * (s == aborted), w) for s, w in kept[xid]]
                if any(s == aborted + 1000 for s, _ in kept[xid]):
                    session.spool.streams.abort(StreamAborted(xid, xid, None, None))
                    del kept[xid]
    rows = rows_of(session.spool.seal())
    by_lsn = {at: [row for row in rows if row["commit_lsn"] == at] for at, _ in expected}
    assert sum(map(len, by_lsn.values())) == len(rows)
    for at, rows_at in expected:
        assert seen(by_lsn[at]) == rows_at
        assert [(r["end_lsn"], r["xid"] in (10, 20, 30)) for r in by_lsn[at]] == [(at + 50, True)] * len(
            rows_at
        )
        numbers = [row["ordinal"] for row in by_lsn[at] if row["op"] != "M"]
        assert numbers == list(range(len(numbers)))


@pytest.mark.usefixtures("limits")
def test_an_aborted_subtransaction_is_left_out_exactly(session: Session) -> None:
    start(session, 10, ONE)
    for serial, subxid in enumerate((10, 11, 12, 11, 10, 13, 12, 10, 11, 14)):
        insert(session, 10, subxid, str(serial))
    for aborted in (11, 13, 99):
        session.spool.streams.abort(StreamAborted(10, aborted, LSN(5), 5))
    commit(session, 10, 500)
    staged = session.seal()
    assert (staged.change_count, staged.transaction_count, staged.end_lsn) == (6, 1, 550)
    rows = rows_of(staged)
    assert [row["new"][1] for row in rows] == ["0", "2", "4", "6", "7", "9"]
    assert places(rows) == [(500, 550, n) for n in range(6)]
    assert {row["xid"] for row in rows} == {10}


def test_a_first_segment_voids_what_came_before(session: Session) -> None:
    for value in ("old", "new"):
        start(session, 10, ONE)
        insert(session, 10, 10, value)
    commit(session, 10, 500)
    assert [row["new"][1] for row in rows_of(session.spool.seal())] == ["new"]


def test_a_stream_has_its_own_relations_until_it_is_committed(session: Session) -> None:
    wide = relation(1, "one", width=3)
    start(session, 10, wide)
    data = encode(Insert(1, (b"k", b"v", b"w"), 10))
    session.spool.streams.add_change(StreamedChange(10, 10, wide, None, data))
    session.transaction(1)
    commit(session, 10, 500, (wide,))
    session.begin()
    session.relations = (wide,)
    session.change(b"1", b"2", b"3")
    session.commit()
    found = {row["commit_lsn"]: row["relation_version"] for row in rows_of(session.spool.seal())}
    assert found == {100: version(ONE).id, 500: version(wide).id, 200: version(wide).id}


def test_a_malformed_row_of_a_stream_is_named(session: Session) -> None:
    start(session, 10, ONE)
    data = encode(Insert(1, (b"k",), 10))
    session.spool.streams.add_change(StreamedChange(10, 10, ONE, None, data))
    with pytest.raises(
        ProtocolError, match=r"public\.one in the transaction 10, which is streamed: 1 column"
    ):
        commit(session, 10, 500)


@pytest.mark.parametrize("count", [0, 3, 100])
def test_a_prepared_transaction_is_handed_over_apart(session: Session, count: int) -> None:
    session.transaction(2)
    began = BeganPrepare("it's", 77, LSN(900), LSN(950), 3)
    session.spool.begin(began)
    session.ordinal = 0
    session.changes(count)
    session.spool.prepare(Prepared(*began, count))
    session.transaction(1)
    staged = session.seal()
    assert len(rows_of(staged)) == 3
    [prepared] = staged.prepared
    rows = prepared_rows(prepared)
    assert [row["op"] for row in rows] == ["P", *"I" * count]
    assert {(r["gid"], r["xid"], r["commit_lsn"], r["end_lsn"]) for r in rows} == {("it's", 77, 900, 950)}
    assert [row["ordinal"] for row in rows] == list(range(-1, count))


def test_a_prepared_transaction_does_not_end_the_file_of_a_batch(session: Session) -> None:
    session.transaction(1)
    for number in range(2):
        began = ("g", 10 + number, LSN(900 + number), LSN(950 + number), 3)
        session.spool.begin(BeganPrepare(*began))
        session.changes(1)
        session.spool.prepare(Prepared(*began, 1))
        session.transaction(1)
    staged = session.seal()
    assert [file.data.row_count for file in staged.files] == [3]
    assert len(staged.prepared) == 2


@pytest.mark.usefixtures("limits")
def test_a_stream_that_is_prepared_is_handed_over_apart(session: Session) -> None:
    start(session, 10, ONE)
    for serial in range(9):
        insert(session, 10, 10 + serial % 3, str(serial))
    session.spool.streams.abort(StreamAborted(10, 11, None, None))
    prepared = StreamPrepared("g", 10, LSN(900), LSN(950), 3)
    session.spool.prepare_stream(prepared, session.spool.streams.described(10))
    staged = session.seal()
    assert (staged.files, staged.end_lsn) == ((), 950)
    rows = prepared_rows(staged.prepared[0])
    assert [row["new"][1] for row in rows if row["op"] == "I"] == ["0", "2", "3", "5", "6", "8"]
    assert [row["ordinal"] for row in rows] == list(range(-1, 6))


def test_what_became_of_prepared_transactions_is_handed_over_in_order(session: Session) -> None:
    outcomes = (
        CommittedPrepared("a", 1, LSN(900), LSN(950), 3),
        RolledBackPrepared("b", 2, LSN(910), LSN(990), 3, 4),
    )
    for outcome in outcomes:
        session.spool.end_prepared(outcome)
    staged = session.seal()
    assert (staged.outcomes, staged.end_lsn, staged.transaction_count) == (outcomes, 990, 1)
