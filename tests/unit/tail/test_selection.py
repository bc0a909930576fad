"""What is shown: nothing twice through many polls, the tables that match, what is committed."""

import pytest

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
)
from pipeline.tail.selection import Selection, TailReader
from pipeline.tail.text_format import kind_of
from tests.support.tail_messages import BEGIN, COMMIT, ITEM, NOTE, TIME, inside, see

ROW = (b"1", None, None)


def transaction(number: int, *messages: Message) -> list[Message]:
    """Return a transaction of that xid, which ends at 16 times its number."""
    lsn, end_lsn = LSN(number * 16 - 8), LSN(number * 16)
    return [Begin(lsn, TIME, number), *messages, Commit(0, lsn, end_lsn, TIME)]


def prepared(number: int, *messages: Message) -> list[Message]:
    lsn, end_lsn, gid = LSN(number * 16 - 8), LSN(number * 16), f"g{number}"
    begin = BeginPrepare(lsn, end_lsn, TIME, number, gid)
    return [begin, *messages, Prepare(0, lsn, end_lsn, TIME, number, gid)]


def commit_prepared(number: int, xid: int) -> CommitPrepared:
    return CommitPrepared(0, LSN(number * 16 - 8), LSN(number * 16), TIME, xid, f"g{xid}")


def streamed(xid: int, *, is_first: bool = True, relation: Relation = ITEM) -> list[Message]:
    described = Relation(relation.oid, "public", relation.name, "d", relation.columns, xid=xid)
    row = ROW[: len(relation.columns)]
    return [StreamStart(xid, is_first), described, Insert(relation.oid, row, xid=xid), StreamStop()]


def stream_commit(number: int, xid: int) -> StreamCommit:
    return StreamCommit(xid, 0, LSN(number * 16 - 8), LSN(number * 16), TIME)


def beat(lsn: int) -> LogicalMessage:
    return LogicalMessage(False, LSN(lsn), "beat", b"")


def test_one_session_shows_everything() -> None:
    messages = [*transaction(1, ITEM, Insert(7, ROW)), beat(17), *streamed(5), stream_commit(2, 5)]
    assert [seen.message for seen in see(messages)] == messages


def test_a_later_poll_shows_only_what_is_new() -> None:
    reading = TailReader()
    first = [*transaction(1, ITEM, Insert(7, ROW)), beat(17), *prepared(2, Insert(7, ROW))]
    new = [*transaction(3, Insert(7, ROW)), beat(50), commit_prepared(4, 2)]
    assert len(see(first, reading, 1)) == len(first)
    assert [seen.message for seen in see([*first, *new], reading, 2)] == new
    assert see([*first, *new], reading, 3) == []


def test_relations_of_a_hidden_transaction_name_the_tables_of_later_ones() -> None:
    reading = TailReader()
    first = transaction(1, ITEM, Insert(7, ROW))
    see(first, reading, 1)
    _, insert, _ = see([*first, *transaction(2, Insert(7, ROW))], reading, 2)
    assert insert.relations == (ITEM,)


def test_a_stream_is_shown_again_while_it_is_open_and_not_after_its_end() -> None:
    reading = TailReader()
    assert len(see(streamed(5), reading, 1)) == 4
    assert len(see([*streamed(5), stream_commit(2, 5)], reading, 2)) == 5
    later = [*streamed(5), stream_commit(2, 5), *transaction(3, Insert(7, ROW))]
    assert [kind_of(one.message) for one in see(later, reading, 3)] == ["Begin", "Insert", "Commit"]


def test_a_stream_that_was_rolled_back_is_not_shown_again() -> None:
    reading = TailReader()
    messages = [*streamed(5), StreamAbort(5, 6), StreamAbort(5, 5)]
    assert len(see(messages, reading, 1)) == 6
    assert see(messages, reading, 2) == []


def test_a_transaction_prepared_before_two_phase_is_shown_with_its_commit() -> None:
    reading = TailReader()
    first = transaction(3, ITEM)
    see(first, reading, 1)
    late = [*prepared(2, Insert(7, ROW)), commit_prepared(4, 2)]
    assert [seen.message for seen in see([*first, *late], reading, 2)] == late


def test_a_change_of_an_unknown_table_breaks_the_reading() -> None:
    with pytest.raises(ProtocolError, match="which no Relation message described"):
        see(inside(Insert(7, ROW)))


def choose(messages: list[Message], *globs: str, committed_only: bool = False) -> list[str]:
    selection = Selection(globs, committed_only=committed_only)
    return [kind_of(chosen.message) for seen in see(messages) for chosen in selection.select(seen)]


def test_a_table_brings_its_transactions_and_nothing_else() -> None:
    messages = [
        *transaction(1, NOTE, Insert(8, (b"1",))),
        *transaction(2, Origin(LSN(1), "o"), Type(9, "", "t"), ITEM, Insert(8, (b"1",)), Delete(7, "K", ROW)),
        beat(40),
        *transaction(3, LogicalMessage(True, LSN(40), "p", b"")),
        *transaction(4, Insert(8, (b"1",)), Truncate((8, 7), 0)),
    ]
    second = ["Begin", "Origin", "Relation", "Delete", "Commit"]
    assert choose(messages, "public.it?m") == [*second, "Begin", "Truncate", "Commit"]
    assert choose(messages, "other.*", "public.*").count("Insert") == 3
    assert choose(messages, "other.*") == []


def test_a_table_brings_the_ends_of_its_streams() -> None:
    messages = [
        *streamed(5),
        *streamed(6, relation=NOTE),
        StreamStart(5, False),
        StreamStop(),
        StreamAbort(5, 7),
        StreamAbort(6, 7),
        stream_commit(2, 5),
        stream_commit(3, 6),
    ]
    whole = ["Stream Start", "Relation", "Insert", "Stream Stop", "Stream Abort", "Stream Commit"]
    assert choose(messages, "public.item") == whole


def test_a_table_brings_what_becomes_of_its_prepared_transactions() -> None:
    messages: list[Message] = [
        *prepared(1, ITEM, Insert(7, ROW)),
        *prepared(2, NOTE),
        *streamed(5, relation=NOTE),
        StreamPrepare(0, LSN(40), LSN(48), TIME, 5, "g5"),
        commit_prepared(4, 2),
        commit_prepared(5, 5),
        commit_prepared(6, 1),
    ]
    shown = ["Begin Prepare", "Relation", "Insert", "Prepare", "Commit Prepared"]
    assert choose(messages, "public.item") == shown
    # What it changed was told to somebody else.
    assert choose([commit_prepared(7, 99)], "public.item") == ["Commit Prepared"]


def test_committed_transactions_only_wait_for_their_commit() -> None:
    rolled_back = RollbackPrepared(0, LSN(32), LSN(100), TIME, TIME, 2, "g2")
    messages = [
        *prepared(1, ITEM, Insert(7, ROW)),
        *prepared(2, Insert(7, ROW)),
        BEGIN,
        Insert(7, ROW),
        COMMIT,
        rolled_back,
    ]
    whole = ["Begin", "Insert", "Commit"]
    assert choose(messages, committed_only=True) == whole
    assert choose([*messages, commit_prepared(9, 1)], committed_only=True) == [
        *whole,
        "Begin Prepare",
        "Relation",
        "Insert",
        "Prepare",
        "Commit Prepared",
    ]
