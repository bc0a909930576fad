"""What a staged row says: of truncations, messages, origins, relation versions and names; what is refused."""

from pathlib import Path

import pytest

from pipeline.bronze.relations import relations_table
from pipeline.errors import ProtocolError
from pipeline.protocol.events import Began, Change, Committed
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Insert, Origin, Relation
from pipeline.units import format_count
from tests.support.bronze.events import Session, relation, rows_of, version
from tests.support.protocol.encode import encode


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, relation(1, "one"), relation(2, "two"))


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


def test_message_has_the_lsn_of_its_transaction_or_without_one_its_own(session: Session) -> None:
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


def test_message_outside_a_transaction_does_not_wait_for_the_next_one(session: Session) -> None:
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
    assert len(session.spool._versions.all) == 2


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
        f"{format_count(count, 'column')} in the new tuple, but its relation has 2."
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
