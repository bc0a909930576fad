"""One JSON object a message: every field of the protocol, every value without loss."""

import json
from base64 import b64decode
from dataclasses import fields
from typing import Any

import pytest

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    UNCHANGED_TOAST,
    Binary,
    Column,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    StreamAbort,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from pipeline.tail.json_format import JsonFormat
from pipeline.tail.selection import TailReader
from tests.support.protocol.golden import CAPTURES, Capture
from tests.support.tail_messages import BEGIN, COMMIT, ITEM, NOTE, inside, see, type_name

WHEN = "2025-05-08T06:13:20.123456Z"
TRANSACTION = {"xid": 745, "lsn": "0/16B3748", "time": WHEN}


def objects_of(*messages: Message, has_values: bool = True) -> list[dict[str, Any]]:
    writer = JsonFormat(type_name, has_values=has_values)
    return [json.loads(writer.write(seen)) for seen in see(messages)]


def test_a_transaction() -> None:
    begin, relation, insert, commit = objects_of(*inside(ITEM, Insert(7, (b"1", b"Zo\xc3\xab", None))))
    assert begin == {
        "message": "Begin",
        "transaction": TRANSACTION,
        "final_lsn": "0/16B3748",
        "commit_time": WHEN,
        "xid": 745,
    }
    assert relation["columns"][2] == {
        "name": "price",
        "type": "numeric(655366)",
        "type_oid": 1700,
        "type_modifier": 655366,
        "is_key": False,
    }
    assert (relation["namespace"], relation["name"], relation["replica_identity"]) == ("public", "item", "d")
    assert insert == {
        "message": "Insert",
        "transaction": TRANSACTION,
        "schema": "public",
        "table": "item",
        "oid": 7,
        "new": {"id": "1", "name": "Zoë", "price": None},
        "xid": None,
    }
    assert (commit["message"], commit["end_lsn"]) == ("Commit", "0/16B3778")


def test_every_kind_of_cell_differs_from_every_other_and_is_whole() -> None:
    columns = tuple(Column(False, name, 25, -1) for name in "abcdef")
    relation = Relation(9, "", "t", "d", columns)
    row = (None, UNCHANGED_TOAST, b"x" * 5000, b"\xff\xfe", Binary(b"\0\1"), b'{"sent": false}')
    found = objects_of(*inside(relation, Insert(9, row)))[2]
    assert (found["schema"], found["table"]) == ("pg_catalog", "t")
    assert found["new"] == {
        "a": None,
        "b": {"sent": False},
        "c": "x" * 5000,
        "d": {"base64": "//4=", "format": "text"},
        "e": {"base64": "AAE=", "format": "binary"},
        "f": '{"sent": false}',
    }
    assert b64decode("//4=") == b"\xff\xfe"


def test_an_update_has_the_kind_of_its_old_row() -> None:
    *_, plain, key, _ = objects_of(
        *inside(
            ITEM,
            Update(7, None, None, (b"1", UNCHANGED_TOAST, None)),
            Update(7, "K", (b"1", None, None), (b"2", b"", None)),
        )
    )
    assert (plain["old_kind"], plain["old"]) == (None, None)
    assert (key["old_kind"], key["old"]) == ("K", {"id": "1", "name": None, "price": None})


def test_a_truncate_names_its_tables() -> None:
    found = objects_of(*inside(ITEM, NOTE, Truncate((7, 8), 2)))[3]
    assert found["tables"] == [
        {"schema": "public", "table": "item", "oid": 7},
        {"schema": "public", "table": "Odd name", "oid": 8},
    ]
    assert (found["oids"], found["options"]) == ([7, 8], 2)
    assert (found["cascade"], found["restart_identity"]) == (False, True)


def test_a_stream_has_its_transaction_and_subtransaction() -> None:
    streamed = Relation(7, "public", "item", "d", ITEM.columns, xid=745)
    insert = Insert(7, (b"1", None, None), xid=746)
    stream: list[Message] = [StreamStart(745, True), streamed, insert, StreamStop(), StreamAbort(745, 746)]
    _, _, found, _, abort = objects_of(*stream)
    assert found["transaction"] == {"xid": 745, "lsn": None, "time": None}
    assert found["xid"] == 746
    assert abort == {
        "message": "Stream Abort",
        "xid": 745,
        "subxid": 746,
        "abort_lsn": None,
        "abort_time": None,
    }


def test_the_content_of_a_message_is_text_where_it_can_be() -> None:
    lsn = LSN(0x10)
    text, other = objects_of(
        LogicalMessage(False, lsn, "p", b"{}"), LogicalMessage(False, lsn, "p", b"\0\xff")
    )
    assert (text["content"], text["length"], text["transactional"]) == ("{}", 2, False)
    assert other["content"] == {"base64": "AP8=", "format": "text"}


def test_without_values_everything_else_is_written() -> None:
    messages = inside(
        ITEM,
        Insert(7, (b"geheim", None, None)),
        Update(7, "O", (b"geheim", None, None), (b"geheim", None, None)),
        LogicalMessage(True, LSN(0x10), "p", b"geheim"),
    )
    found = objects_of(*messages, has_values=False)
    assert "geheim" not in json.dumps(found)
    assert found[2]["table"] == "item"
    assert "new" not in found[2]
    assert (found[4]["prefix"], found[4]["length"]) == ("p", 6)
    assert json.loads(JsonFormat(type_name, has_values=False).write_malformed(b"Zgeheim")) == {
        "message": "Undecodable",
        "length": 7,
    }
    assert json.loads(JsonFormat(type_name).write_malformed(b"Z"))["base64"] == "Wg=="


def test_a_name_that_is_not_utf_8_can_be_had_back() -> None:
    relation = Relation(9, "public", b"caf\xe9".decode("utf-8", "surrogateescape"), "d", ())
    text = JsonFormat(type_name).write(see([BEGIN, relation, COMMIT])[1])
    assert text.isascii()
    assert json.loads(text)["name"].encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_all_that_servers_sent_is_an_object_with_every_field(capture: Capture) -> None:
    reading = TailReader()
    for message in capture.messages:
        seen = reading.read(message.data, 1)
        assert seen is not None
        line = JsonFormat(type_name).write(seen)
        assert line.isprintable()
        assert {field.name for field in fields(seen.message)} <= set(json.loads(line))
