"""Invalid messages from a server or a proxy: each ends the stream with one error."""

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from pipeline.errors import ProtocolError, SourceError
from pipeline.postgres.replication.walsender import XLOGDATA_HEADER_SIZE
from tests.support.postgres.streams import decode_all, make_items, prepare, read_for, read_through, start
from tests.support.proxy import Proxy, frame
from tests.support.servers import Database

COPY_DATA = b"d"
ERROR = b"SERROR\0VERROR\0CXX000\0Mno such thing\0\0"
Body = Callable[[bytes], bytes]


def changes(body: bytes) -> bool:
    """Say whether a CopyData carries an Insert."""
    return body[:1] == b"w" and body[XLOGDATA_HEADER_SIZE : XLOGDATA_HEADER_SIZE + 1] == b"I"


@pytest.mark.promise("hostile bytes")
@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("unknown envelope", lambda body: frame(b"d", b"x" + body[1:]), "not a replication message"),
        ("short keepalive", lambda body: frame(b"d", b"k" + body[1:9]), "not a replication message"),
        ("long keepalive", lambda body: frame(b"d", b"k" + bytes(40)), "not a replication message"),
        ("error", lambda _: frame(b"E", ERROR), "no such thing"),
        ("end of the stream", lambda _: frame(b"c", b""), "ended"),
        ("unknown frame", lambda body: frame(b"\xff", body), "cannot be read"),
        ("frame of 2 GiB", lambda body: b"d\x7f\xff\xff\xff" + body, "Lost the session"),
        ("frame shorter than itself", lambda body: b"d\x00\x00\x00\x01" + body, "Lost the session"),
        ("nothing", lambda _: b"", "Lost the session"),
    ],
)
def test_a_stream_that_is_none_ends_in_one_sentence(
    database: Database, name: str, damage: Body, sentence: str
) -> None:
    del name
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id) VALUES (1)")
    started = threading.Event()  # `start` has other connections through the proxy, which a cut would end
    with Proxy(database.server.port) as proxy:

        def tamper(kind: bytes, body: bytes) -> bytes:
            if kind == COPY_DATA and changes(body):
                assert started.wait(60)
                if not (damaged := damage(body)):
                    proxy.cut()
                return damaged
            return frame(kind, body)

        proxy.tamper = tamper
        through = database.config(conninfo=proxy.conninfo(database.conninfo))
        with closing(start(through)) as stream:
            started.set()
            with pytest.raises(SourceError, match=sentence) as caught:
                read_for(stream, 20)
        assert "\n" not in str(caught.value)


@pytest.mark.promise("hostile bytes")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda body: body[:-1], id="cut short"),
        pytest.param(lambda body: body + b"\0", id="too long"),
        pytest.param(lambda body: body[:XLOGDATA_HEADER_SIZE], id="empty"),
        pytest.param(lambda body: body[: XLOGDATA_HEADER_SIZE - 3], id="short header"),
        pytest.param(lambda body: body[:XLOGDATA_HEADER_SIZE] + b"?" + body[26:], id="unknown message"),
        pytest.param(lambda body: body[:31] + b"\x7f\xff" + body[33:], id="more columns than bytes"),
        pytest.param(lambda body: body[:34] + b"\x7f\xff\xff\xff" + body[38:], id="longer value than bytes"),
        pytest.param(lambda body: body[:34] + b"\xff\xff\xff\xfe" + body[38:], id="value of negative length"),
    ],
)
def test_a_message_that_is_none_is_refused_and_not_acknowledged(database: Database, damage: Body) -> None:
    make_items(database)
    config = database.config()
    prepare(config)
    database.run("INSERT INTO item (id, name) VALUES (1, 'a name')")
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = current_database()"
    before = database.run(confirmed)
    with Proxy(database.server.port) as proxy:
        is_damaged = False

        def tamper(kind: bytes, body: bytes) -> bytes:
            nonlocal is_damaged
            if kind == COPY_DATA and changes(body):
                body, is_damaged = damage(body), True
            return frame(kind, body)

        proxy.tamper = tamper
        through = database.config(conninfo=proxy.conninfo(database.conninfo))
        with closing(start(through)) as stream, pytest.raises((ProtocolError, SourceError)) as caught:
            decode_all(read_through(stream, database.flush_lsn()))
        assert is_damaged
        assert "\n" not in str(caught.value)
        assert "a name" not in str(caught.value)
    assert database.run(confirmed) == before
