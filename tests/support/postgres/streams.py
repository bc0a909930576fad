"""Both delivery routes under one name each, and what tests do with a stream."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from pipeline.config.config import Config
from pipeline.postgres.connection import connect
from pipeline.postgres.publication import ensure_publication
from pipeline.postgres.replication.options import pgoutput_options
from pipeline.postgres.replication.slot import ensure_slot, read_slot
from pipeline.postgres.replication.sql_stream import SqlStream, start_sql_stream
from pipeline.postgres.replication.walsender import Walsender, start_walsender
from pipeline.protocol.decode import decode
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Commit, Message, StreamCommit
from tests.support.servers import Database

Stream = Walsender | SqlStream
Start = Callable[..., Stream]

ROUTES: dict[str, Start] = {"walsender": start_walsender, "sql": start_sql_stream}

both_routes = pytest.mark.parametrize("route", ["walsender", "sql"])


def make_items(database: Database) -> None:
    """Create the table that most streams are of."""
    database.run("CREATE TABLE item (id int PRIMARY KEY, name text, price float8, made timestamptz)")


def prepare(config: Config) -> None:
    """Create the publication, then the slot."""
    with connect(config.source.conninfo) as connection:
        ensure_publication(connection, config)
        ensure_slot(connection, config, may_create=True)


def prepare_items(database: Database, *statements: str, **source: Any) -> Config:
    """Create the table that most streams are of, the publication and the slot, then run statements."""
    make_items(database)
    config = database.config(**source)
    prepare(config)
    database.run(*statements)
    return config


def start(config: Config, route: str = "walsender", **options: Any) -> Stream:
    """Start the stream of a configuration by a route."""
    source = config.source
    with connect(source.conninfo) as connection:
        version = connection.info.server_version
    plugin = pgoutput_options(version, source.protocol, source.publication, source.route)
    return ROUTES[route](source.conninfo, source.slot, source.publication, options=plugin, **options)


def read_through(stream: Stream, target: LSN, seconds: float = 120.0) -> list[bytes]:
    """Read until all that was committed by `target` has come; acknowledge where that is needed."""
    messages: list[bytes] = []
    deadline = time.monotonic() + seconds
    while stream.received_lsn < target or stream.needs_acknowledgement:
        assert time.monotonic() < deadline, f"{stream.received_lsn} of {target} after {seconds} s"
        stream.ping()
        messages += stream.read(0.2)
        if stream.needs_acknowledgement:
            stream.acknowledge(stream.received_lsn)
    return messages


def read_for(stream: Stream, seconds: float) -> list[bytes]:
    """Read for so long, or until the stream fails."""
    messages: list[bytes] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        messages += stream.read(0.2)
    return messages


def read_all(database: Database, config: Config, route: str, **options: Any) -> list[bytes]:
    """Read what was committed until now, and end the stream without acknowledging more than needed."""
    with closing(start(config, route, **options)) as stream:
        return read_through(stream, database.flush_lsn())


def kinds(messages: Sequence[bytes]) -> str:
    """Return the message bytes as text, such as BRIC."""
    return "".join(chr(message[0]) for message in messages)


def decode_all(messages: Sequence[bytes]) -> list[Message]:
    """Decode every message, from the beginning of a session on."""
    decoded: list[Message] = []
    in_stream = False
    for message in messages:
        decoded.append(decode(message, in_stream=in_stream))
        in_stream = {b"S": True, b"E": False}.get(message[:1], in_stream)
    return decoded


def end_lsns(messages: Sequence[bytes]) -> list[LSN]:
    """Return the end LSNs of the transactions."""
    return [message.end_lsn for message in decode_all(messages) if isinstance(message, Commit | StreamCommit)]


def confirmed_lsn(database: Database) -> LSN:
    with connect(database.conninfo) as connection:
        slot = read_slot(connection, database.name)
    assert slot is not None
    return slot.confirmed_flush_lsn
