"""Messages that arrive together leave the rows that they leave one by one, and are refused in the same words.

A batch of one message has no run of whole transactions, so it goes through `Assembler.receive`.
"""

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.bronze import spool as spool_module
from pipeline.bronze.spool import Spool
from pipeline.errors import ProtocolError
from pipeline.ingest.decoder import CatalogLookups, Decoder
from pipeline.postgres.connection import Connection
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Truncate,
    Update,
)
from pipeline.protocol.plain_transactions import PlainTransactions, find_runs, read_run, type_bytes
from tests.support.bronze.events import relation, rows_of
from tests.support.protocol.encode import encode
from tests.support.protocol.golden import load_captures

CAPTURES = [
    capture for capture in load_captures() if not any(row.data[:1] == b"S" for row in capture.messages)
]
RELATIONS = (relation(7, "one"), relation(2**31 + 9, "two", width=1))
ANSWER = SimpleNamespace(fetchone=lambda: ("C",))  # of SHOW lc_monetary
CONNECTION = cast(
    Connection, SimpleNamespace(info=SimpleNamespace(server_version=180000), execute=lambda query: ANSWER)
)


@pytest.fixture(autouse=True, scope="module")
def no_catalog() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CatalogLookups, "read_relation", lambda *_: None)
        patch.setattr(CatalogLookups, "read_relation_after", lambda *_, **__: (None, True))
        patch.setattr(CatalogLookups, "read_type", lambda *_: None)
        yield patch


def decoded(batches: Sequence[Sequence[bytes]], offset: int = 0) -> tuple[Any, ...]:
    """Decode the batches of a session; return what is handed over, and the sentence if one is refused."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), LSN(offset))
        decoder = Decoder(spool, CONNECTION, "")
        refused = None
        try:
            for batch in batches:
                decoder.decode(batch, 1)
        except ProtocolError as error:
            refused = str(error)
            if "session is broken" not in refused:
                return (refused,)  # a row was malformed: its run ends, and seals nothing more
        try:
            staged = spool.seal()
        except ProtocolError as error:  # a row is read when its file is written
            return refused, str(error)
        rows = rows_of(staged) if staged else []
        rows.sort(key=lambda row: (row["commit_lsn"], row["op"], row["ordinal"]))
        counts = staged and (
            staged.end_lsn,
            staged.transaction_count,
            staged.change_count,
            staged.commit_time,
        )
        spool.discard()
        return refused, counts, rows, decoder.is_between_transactions


CELLS = st.one_of(st.none(), st.binary(max_size=3), st.just("é".encode()))


@st.composite
def changes(draw: st.DrawFn) -> Message:
    described = draw(st.sampled_from(RELATIONS))
    cells = tuple(draw(CELLS) for _ in described.columns)
    match draw(st.sampled_from("IIUUD")):
        case "I":
            return Insert(described.oid, cells)
        case "U":
            old = draw(st.sampled_from((None, cells)))
            return Update(described.oid, None if old is None else "O", old, cells)
        case _:
            return Delete(described.oid, "K", cells)


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """Draw a session: most of its transactions are plain, some have other messages, one may be damaged."""
    messages: list[Message] = []
    is_described = False
    for number in range(1, draw(st.integers(1, 12))):
        lsn = LSN(100 * number)
        messages.append(Begin(lsn, number, number))
        if not is_described or draw(st.integers(0, 9)) == 0:
            messages += RELATIONS
            is_described = True
        if draw(st.integers(0, 5)) == 0:
            messages.append(Origin(LSN(5), "elsewhere"))
        messages += draw(st.lists(changes(), max_size=4))
        match draw(st.integers(0, 9)):
            case 0:
                messages.append(Truncate((RELATIONS[0].oid,), 0))
            case 1:
                messages.append(LogicalMessage(True, lsn, "p", b"content"))
        messages.append(Commit(0, lsn, LSN(lsn + draw(st.sampled_from((0, 50)))), number))
    data = [encode(message) for message in messages]
    if data and draw(st.integers(0, 2)) == 0:
        place = draw(st.integers(0, len(data) - 1))
        message = bytearray(data[place])
        match draw(st.sampled_from(("cut", "longer", "changed", "left out", "empty", "again"))):
            case "cut":
                data[place] = bytes(message[: draw(st.integers(1, len(message)))])
            case "longer":
                data[place] = bytes(message) + b"\0"
            case "changed":
                message[draw(st.integers(0, len(message) - 1))] ^= draw(st.sampled_from((1, 3, 128)))
                data[place] = bytes(message)
            case "left out":
                del data[place]
            case "empty":
                data[place] = b""
            case "again":
                data.insert(place, data[place])
    return data


def batches_of(messages: Sequence[bytes], cuts: Sequence[int]) -> list[Sequence[bytes]]:
    places = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
    return [messages[start:end] for start, end in pairwise(places)]


@pytest.mark.costly
@settings(max_examples=25)
@given(sessions(), st.lists(st.integers(0, 80), max_size=4), st.sampled_from((0, 100, 350, 351, 5000)))
def test_together_or_one_by_one_the_rows_are_the_same(
    messages: list[bytes], cuts: list[int], offset: int
) -> None:
    together = decoded(batches_of(messages, cuts), offset)
    assert together == decoded([[message] for message in messages], offset)


@pytest.mark.costly
@settings(max_examples=25)
@given(sessions(), st.lists(st.integers(0, 80), max_size=2))
def test_rows_that_exceed_the_memory_are_the_same(messages: list[bytes], cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "ROW_LIMIT", 5)
        expected = decoded([[message] for message in messages])
        found = decoded(batches_of(messages, cuts))
    # A malformed row is found when it is written, which may be before what follows it is refused.
    assert found == expected or (is_refused(found) and is_refused(expected))


def is_refused(outcome: tuple[Any, ...]) -> bool:
    return outcome[0] is not None or len(outcome) == 2


@pytest.mark.costly
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_what_servers_sent_is_read_alike(capture: Any) -> None:
    messages = [row.data for row in capture.messages]
    expected = decoded([[message] for message in messages])
    assert expected[0] is None
    assert decoded([messages]) == expected


def plain(*transactions: tuple[int, Sequence[Message]]) -> list[bytes]:
    messages: list[Message] = []
    for lsn, of in transactions:
        messages += [Begin(LSN(lsn), 10 * lsn, lsn + 1), *of, Commit(0, LSN(lsn), LSN(lsn + 2), 10 * lsn)]
    return [encode(message) for message in messages]


ROW = Insert(7, (b"k", b"v"))
DESCRIBED = {(7).to_bytes(4, "big")}


def test_a_run_is_read_by_columns() -> None:
    messages = plain((100, [ROW, ROW]), (200, []), (300, [ROW]))
    row = encode(ROW)
    assert read_run(messages, type_bytes(messages), DESCRIBED, 0) == PlainTransactions(
        xids=(101, 201, 301),
        commit_lsns=(100, 200, 300),
        end_lsns=(102, 202, 302),
        commit_times=(1000, 2000, 3000),
        change_counts=[2, 0, 1],
        changes=[row] * 3,
        oids=[(7).to_bytes(4, "big")] * 3,
    )


def test_runs_are_found_between_other_messages() -> None:
    assert [*find_runs(b"UCBCBIIUDCRBOICBICSBIC")] == [(2, 10), (15, 18), (19, 22)]
    assert [*find_runs(b"")] == [*find_runs(b"BIII")] == []
    assert [*find_runs(b"BIC" * 100_000)] == [(0, 300_000)]


def test_a_message_without_bytes_is_left_to_the_assembler() -> None:
    assert type_bytes([b"B", b"", b"C"]) == b""


@pytest.mark.parametrize(
    ("transactions", "first_lsn"),
    [
        (((100, [ROW]), (200, [Insert(8, (b"k",))])), 0),  # of a relation that was not described
        (((100, [ROW]), (200, [ROW])), 101),  # bronze has the first one
    ],
)
def test_what_is_not_plain_is_not_read(transactions: Any, first_lsn: int) -> None:
    messages = plain(*transactions)
    assert read_run(messages, type_bytes(messages), DESCRIBED, first_lsn) is None


@pytest.mark.parametrize(
    "commit",
    [
        encode(Commit(0, LSN(100), LSN(99), 1)),  # ends before it is committed
        encode(Commit(0, LSN(101), LSN(102), 1)),  # differs from its Begin
        encode(Commit(0, LSN(100), LSN(102), 1)) + b"\0",
        encode(Commit(0, LSN(100), LSN(102), 1))[:-1],
        b"C\1" + encode(Commit(0, LSN(100), LSN(102), 1))[2:],  # flags that nobody defined
    ],
)
def test_a_malformed_commit_is_not_read(commit: bytes) -> None:
    messages = [encode(Begin(LSN(100), 1, 1)), encode(ROW), commit]
    assert read_run(messages, type_bytes(messages), DESCRIBED, 0) is None
