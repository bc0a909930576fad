"""One line a message, for people: what it shows, and that values cannot break it."""

import pytest

from pipeline.protocol import messages as wire
from pipeline.protocol.lsn import LSN
from pipeline.tail.selection import TailReader
from pipeline.tail.text_format import TextFormat, quote, time_text
from tests.support.protocol.golden import CAPTURES, Capture
from tests.support.tail_messages import BEGIN, COMMIT, ITEM, NOTE, TIME, WHEN, bodies, inside, see, type_name

FROM, TO = LSN(0x10), LSN(0x20)


def lines_of(*messages: wire.Message) -> list[str]:
    return [TextFormat(type_name).write(seen) for seen in see(messages)]


def body(*messages: wire.Message, **options: bool | int) -> str:
    """Return the line of the last message inside a transaction."""
    return bodies(see(inside(ITEM, NOTE, *messages)), **options)[-2].strip()


def shown(cell: wire.Cell, type_oid: int = 25, **options: bool | int) -> str:
    relation = wire.Relation(9, "public", "t", "d", (wire.Column(False, "v", type_oid, -1),))
    return body(relation, wire.Insert(9, (cell,)), **options).removeprefix("Insert public.t: v=")


def test_every_line_has_time_lsn_and_xid_and_those_inside_are_indented() -> None:
    assert lines_of(BEGIN, ITEM, wire.Insert(7, (b"1", b"Zo\xc3\xab", None)), COMMIT) == [
        f"{WHEN}   0/16B3748        745  Begin",
        f"{WHEN}   0/16B3748        745    Relation public.item (id integer key, name text,"
        " price numeric(655366)) identity default",
        f"{WHEN}   0/16B3748        745    Insert public.item: id=1 name='Zoë' price=NULL",
        f"{WHEN}   0/16B3748        745  Commit end 0/16B3778",
    ]


def test_a_stream_has_no_time_and_lsn_before_its_end_and_shows_subxids() -> None:
    streamed = wire.Relation(7, "public", "item", "d", ITEM.columns, xid=745)
    assert lines_of(
        wire.StreamStart(745, True),
        streamed,
        wire.Insert(7, (b"1", b"a", b"2"), xid=746),
        wire.StreamStop(),
        wire.StreamAbort(745, 746, FROM, TIME),
        wire.StreamStart(745, False),
        wire.LogicalMessage(True, FROM, "p", b"c", xid=745),
        wire.StreamStop(),
        wire.StreamCommit(745, 0, FROM, TO, TIME),
        wire.StreamAbort(746, 746),
    )[2:] == [
        "-                                  -        746    Insert public.item: id=1 name='a' price=2",
        "-                                  -        745  Stream Stop",
        f"{WHEN}        0/10        745  Stream Abort subtransaction 746",
        "-                                  -        745  Stream Start next segment",
        "-                                  -        745    Message 'p': 'c'",
        "-                                  -        745  Stream Stop",
        f"{WHEN}        0/10        745  Stream Commit end 0/20",
        "-                                  -        746  Stream Abort all of it",
    ]


def test_prepared_transactions_show_their_gid() -> None:
    assert bodies(
        see(
            [
                wire.BeginPrepare(FROM, TO, TIME, 745, "gid '1'"),
                wire.Prepare(0, FROM, TO, TIME, 745, "gid '1'"),
                wire.CommitPrepared(0, TO, LSN(0x30), TIME, 745, "gid '1'"),
                wire.RollbackPrepared(0, FROM, TO, TIME, TIME, 746, ""),
                wire.StreamStart(747, True),
                wire.StreamStop(),
                wire.StreamPrepare(0, FROM, TO, TIME, 747, "g"),
            ]
        )
    ) == [
        "Begin Prepare 'gid ''1''' end 0/20",
        "Prepare 'gid ''1''' end 0/20",
        "Commit Prepared 'gid ''1''' end 0/30",
        f"Rollback Prepared '' prepared {WHEN}, its end 0/10",
        "Stream Start first segment",
        "Stream Stop",
        "Stream Prepare 'g' end 0/20",
    ]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (wire.Insert(7, (b"1", b"", b"12.50")), "Insert public.item: id=1 name='' price=12.50"),
        (
            wire.Update(7, None, None, (b"1", wire.UNCHANGED_TOAST, None)),
            "Update public.item: id=1 name=(not sent) price=NULL",
        ),
        (
            wire.Update(7, "K", (b"1", None, None), (b"2", wire.UNCHANGED_TOAST, None)),
            "Update public.item key: id=1 new: id=2 name=(not sent) price=NULL",
        ),
        (
            wire.Update(7, "O", (b"1", None, b"3"), (b"1", b"x", b"3")),
            "Update public.item old: id=1 name=NULL price=3 new: id=1 name='x' price=3",
        ),
        (wire.Delete(7, "K", (b"1", None, None)), "Delete public.item key: id=1"),
        (wire.Delete(7, "K", (b"1", b"leaf", None)), "Delete public.item key: id=1 name='leaf'"),
        (wire.Delete(8, "O", (None,)), 'Delete public."Odd name" old: "a b"=NULL'),
        (wire.Truncate((7, 8), 0), 'Truncate public.item, public."Odd name"'),
        (wire.Truncate((7,), 3), "Truncate public.item cascade restart identity"),
        (wire.Type(9, "", "int4"), "Type pg_catalog.int4 oid 9"),
        (wire.Origin(FROM, "node a"), "Origin 'node a' 0/10"),
        (wire.LogicalMessage(True, FROM, "audit", b'{"a": 1}'), "Message 'audit': '{\"a\": 1}'"),
        (wire.Relation(9, "", "x", "i", ()), "Relation pg_catalog.x () identity index"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_inside_a_transaction(message: wire.Message, line: str) -> None:
    assert body(message) == line


def test_a_message_that_is_not_transactional_is_marked_and_has_no_xid() -> None:
    assert lines_of(wire.LogicalMessage(False, FROM, "beat", b"1")) == [
        "-                               0/10          -  Message 'beat' not transactional: '1'"
    ]


@pytest.mark.parametrize(
    ("cell", "type_oid", "text"),
    [
        (None, 25, "NULL"),
        (b"NULL", 25, "'NULL'"),
        (wire.UNCHANGED_TOAST, 25, "(not sent)"),
        (b"(not sent)", 25, "'(not sent)'"),
        (b"", 25, "''"),
        (b"", 23, "''"),
        (b"it's", 25, "'it''s'"),
        (b"a\\b", 25, "'a\\b'"),
        (b"a\\b\n'", 25, "E'a\\\\b\\n'''"),
        (b"\x1b[2J", 25, "E'\\u001b[2J'"),
        (b"\xe2\x80\xae", 25, "E'\\u202e'"),
        (b"\xff\xe9", 25, "E'\\xff\\xe9'"),
        (b"-1.5e+10", 701, "-1.5e+10"),
        (b"NaN", 1700, "NaN"),
        (b"t", 16, "t"),
        (b"1 2", 23, "'1 2'"),
        (wire.Binary(b"\x00\x01"), 23, "x'0001'"),
    ],
)
def test_a_value_is_written_as_sql_writes_it(cell: wire.Cell, type_oid: int, text: str) -> None:
    assert shown(cell, type_oid) == text


def test_a_long_value_is_truncated_and_shows_its_length() -> None:
    assert shown("é".encode() * 100) == f"'{'é' * 60}'… (200 bytes)"
    assert shown(b"x" * 60) == f"'{'x' * 60}'"
    assert shown(wire.Binary(b"\1" * 100)) == f"x'{'01' * 30}'… (100 bytes)"
    assert shown(b"x" * 500, value_length=0) == f"'{'x' * 500}'"
    assert shown(b"xyz", value_length=2) == "'xy'… (3 bytes)"


def test_without_values_only_their_number_is_shown() -> None:
    row = (b"geheim1", b"geheim2", None)
    full = (b"geheim3", wire.UNCHANGED_TOAST, None)
    messages = inside(
        ITEM,
        wire.Insert(7, row),
        wire.Update(7, "K", (b"geheim1", None, None), full),
        wire.Update(7, "O", row, full),
        wire.Delete(7, "O", row),
        wire.LogicalMessage(True, FROM, "audit", b"geheim4"),
    )
    lines = [line.strip() for line in bodies(see(messages), has_values=False)]
    assert not any("geheim" in line for line in lines)
    assert lines[2:-1] == [
        "Insert public.item: 3 columns",
        "Update public.item key: 1 column new: 3 columns",
        "Update public.item old: 3 columns new: 3 columns",
        "Delete public.item old: 3 columns",
        "Message 'audit': 7 bytes",
    ]
    unknown = TextFormat(type_name, has_values=False).write_malformed(b"Zgeheim")
    assert unknown.endswith("Undecodable message of 7 bytes")
    assert TextFormat(type_name).write_malformed(b"Z1").endswith("of 2 bytes x'5a31'")


def test_colour_is_added_and_nothing_else() -> None:
    seen = see(inside(ITEM, wire.Insert(7, (b"1", None, None)), wire.Truncate((7,), 0)))
    plain = [TextFormat(type_name).write(one) for one in seen]
    coloured = [TextFormat(type_name, has_colour=True).write(one) for one in seen]
    assert all("\x1b[2m" in line for line in coloured)
    assert "\x1b[32mInsert\x1b[0m" in coloured[2]
    for code in (0, 2, 31, 32):
        coloured = [line.replace(f"\x1b[{code}m", "") for line in coloured]
    assert coloured == plain


def test_a_time_beyond_the_calendar_is_its_number() -> None:
    assert time_text(0) == "2000-01-01 00:00:00.000000Z"
    assert time_text(2**63 - 1) == str(2**63 - 1)
    assert lines_of(wire.Begin(FROM, -(2**63), 1))[0].startswith(str(-(2**63)))


def test_quoted_text_stays_on_its_line() -> None:
    for code in [*range(0x500), 0x2028, 0x2029, 0xFEFF, 0xDC80, 0xE000, 0x1D173]:
        assert quote(chr(code)).isprintable(), hex(code)


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_all_that_servers_sent_is_one_line_a_message(capture: Capture) -> None:
    reading = TailReader()
    for message in capture.messages:
        seen = reading.read(message.data, 1)
        assert seen is not None
        assert TextFormat(type_name).write(seen).isprintable()
