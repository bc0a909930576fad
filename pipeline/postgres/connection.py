"""Connections to the source, and what a failed one says.

Every session pins the settings that shape a value's text (dates, floats, bytea, money): the server's own
walsender sets none of them, and a role or database may carry others. They are set by a query after the
connection stands, which also works behind a session pooler.

Errors come out as SourceError: one sentence, without passwords. libpq never prints one, except from a
conninfo that it could not parse; such a text is not repeated.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo as conninfo_syntax
from psycopg import sql
from psycopg.pq import ExecStatus

from pipeline.errors import SourceError
from pipeline.postgres.connection_errors import connection_sentence, is_torn
from pipeline.protocol.lsn import LSN

# Sessions that are ended while another thread waits on them.
_OPEN: weakref.WeakKeyDictionary[psycopg.Connection[Any], str] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def remember(connection: psycopg.Connection[Any], application_name: str) -> None:
    """Note a session of this process, as long as it lives."""
    with _LOCK:
        _OPEN[connection] = application_name


def break_off(application_name: str) -> int:
    """Shut down all open sessions of this process that have a name; return how many there were."""
    with _LOCK:
        found = [c for c, name in _OPEN.items() if name == application_name and not c.closed]
    for connection in found:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    return len(found)


Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER_VERSION = 100000

#: Settings of every session, by their lower-case names; one that the server does not know is left out.
SESSION_OPTIONS: Mapping[str, str] = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "",
    "quote_all_identifiers": "off",
    # Whatever the role is limited to must not cut a long decoding short.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    # PostgreSQL 18 reports a publication that it cannot find as a warning only.
    "client_min_messages": "warning",
}

_CONNECTION_DEFAULTS = {
    "connect_timeout": "30",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which server this is, and how far its log reaches."""

    system_identifier: str
    timeline: int
    database: str
    server_version: int
    wal_flush_lsn: LSN
    encoding: str


def connect(conninfo: str, *, application_name: str = "pgdelta", key: str = "source.conninfo") -> Connection:
    """Open a session with pinned settings, in autocommit mode and client encoding UTF8.

    `key` is where the configuration has the conninfo: what goes wrong is said of it.
    """
    try:
        return _open(conninfo, {"application_name": application_name})
    except SourceError as error:
        raise SourceError(str(error).replace("source.conninfo", key)) from None


def connect_replication(conninfo: str, *, application_name: str = "pgdelta") -> Connection:
    """Open a walsender session of the conninfo's database; it takes replication commands and simple queries.

    The client encoding is that of `use_raw_encoding`.
    """
    connection = _open(conninfo, {"application_name": application_name, "replication": "database"})
    use_raw_encoding(connection)
    return connection


def use_raw_encoding(connection: Connection) -> None:
    """Let an SQL_ASCII database send its bytes as they are; any other goes on converting to UTF8.

    With client encoding UTF8 such a database fails on the first byte that is not UTF-8, for ever.
    """
    if connection.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        try:
            connection.pgconn.exec_(b"SET client_encoding TO 'SQL_ASCII'")
        except psycopg.Error as error:
            connection.close()
            raise SourceError(f"The session settings were refused: {describe(error)}.") from None


def identify(connection: Connection) -> Identity:
    """Return the server's identity; the flush LSN is that of the moment (on a standby: replayed so far)."""
    try:
        row = connection.execute(
            "SELECT (pg_catalog.pg_control_system()).system_identifier::text,"
            " CASE WHEN pg_catalog.pg_is_in_recovery() THEN"
            " (pg_catalog.pg_control_checkpoint()).timeline_id ELSE ('x' || pg_catalog.substr("
            "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,"
            " pg_catalog.current_database()::text,"
            " pg_catalog.current_setting('server_encoding')"
        ).fetchone()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the identity of the server: {describe(error)}.") from None
    assert row is not None
    system_identifier, timeline, database, encoding = row
    return Identity(
        system_identifier=system_identifier,
        timeline=int(timeline),
        database=database,
        server_version=connection.info.server_version,
        wal_flush_lsn=read_flush_lsn(connection),
        encoding=encoding,
    )


def read_flush_lsn(connection: Connection) -> LSN:
    """Return how far the server's log can be decoded now."""
    try:
        row = connection.execute(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END::text"
        ).fetchone()
    except psycopg.Error as error:
        if connection.broken:
            raise SourceError(f"Lost the connection to the source: {describe(error)}; run again.") from None
        raise SourceError(f"Cannot read the server's WAL position: {describe(error)}.") from None
    assert row is not None
    return LSN.parse(row[0])


def read_switches(conninfo: str, timeline: int) -> dict[int, LSN]:
    """Return where the timelines before this one ended, from the server's own history file."""
    with connect_replication(conninfo) as connection:
        result = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != ExecStatus.TUPLES_OK:
            text = describe(result.get_error_message())
            raise SourceError(f"Cannot read the history of timeline {timeline}: {text}.")
        content = (result.get_value(0, 1) or b"").decode("utf-8", "replace")
    lines = (line.split() for line in content.splitlines() if line.strip() and not line.startswith("#"))
    return {int(line[0]): LSN.parse(line[1]) for line in lines}


def read_prepared(connection: Connection) -> set[tuple[str, int]]:
    """Return gid and xid of the transactions of this database that are prepared and not decided."""
    try:
        rows = connection.execute(
            "SELECT gid::text, transaction::text::bigint FROM pg_catalog.pg_prepared_xacts"
            " WHERE database = pg_catalog.current_database()"
        ).fetchall()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read what is prepared at the source: {describe(error)}.") from None
    return {(gid, xid) for gid, xid in rows}


def for_server(connection: Connection, since: Mapping[int, str]) -> str:
    """Return the text for the server's version; `since` has texts by the first major, the newest first."""
    major = connection.info.server_version // 10000
    return next(text for first, text in since.items() if major >= first)


def is_synchronous_standby(connection: Connection, application_name: str) -> bool:
    """Tell whether synchronous_standby_names may make commits wait for a walsender of that name."""
    try:
        row = connection.execute(
            "SELECT pg_catalog.lower(pg_catalog.current_setting('synchronous_standby_names'))"
        ).fetchone()
    except psycopg.Error as error:
        raise SourceError(f"Cannot read the settings of the server: {describe(error)}.") from None
    assert row is not None
    return "*" in row[0] or application_name.lower() in row[0]


def describe(error: psycopg.Error | str, conninfo: str = "") -> str:
    """Return the server's or libpq's text on one line, without a full stop and without secrets."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        text = error.diag.message_primary
    else:
        text = str(error)
    for secret in _secrets(conninfo):
        text = text.replace(secret, "***")
    text = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return re.sub(r"^(?:ERROR|FATAL|PANIC): +", "", text)


def _open(conninfo: str, keywords: Mapping[str, str]) -> Connection:
    try:
        given = conninfo_syntax.conninfo_to_dict(conninfo)
        for number in ("port", "connect_timeout"):
            if not re.fullmatch(r"[\d,\s]*", str(given.get(number) or "")):
                raise psycopg.ProgrammingError(number)
        if is_torn(conninfo, given):
            raise psycopg.ProgrammingError("host")
    except psycopg.ProgrammingError:
        raise SourceError(
            "source.conninfo cannot be parsed: write libpq keywords (host=… dbname=…) or a URI"
            " (postgresql://user@host/database), with special characters quoted (in a URI: percent-encoded)."
        ) from None
    named = {k: v for k, v in given.items() if v is not None}
    settings = {**_CONNECTION_DEFAULTS, **named, **keywords, "client_encoding": "UTF8"}
    try:
        connection = psycopg.connect(
            conninfo_syntax.make_conninfo("", **settings),
            autocommit=True,
            prepare_threshold=None,
        )
        remember(connection, keywords["application_name"])
    except psycopg.Error as error:
        raise SourceError(connection_sentence(describe(error, conninfo), given)) from None
    try:
        if connection.info.server_version < OLDEST_SERVER_VERSION:
            raise SourceError(
                f"The source runs PostgreSQL {connection.info.server_version / 10000:.1f}, which has no"
                " pgoutput: use a server of version 10 or newer."
            )
        _pin_settings(connection)
    except psycopg.Error as error:
        connection.close()
        raise SourceError(f"The session settings were refused: {describe(error, conninfo)}.") from None
    except SourceError:
        connection.close()
        raise
    return connection


def _pin_settings(connection: Connection) -> None:
    # One statement without parameters: a walsender takes neither several nor the extended protocol.
    values = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(sql.Literal(name), sql.Literal(value))
        for name, value in SESSION_OPTIONS.items()
    )
    connection.execute(
        sql.SQL(
            "SELECT pg_catalog.set_config(s.name, v.value, false) FROM pg_catalog.pg_settings s"
            " JOIN (VALUES {}) AS v (name, value) ON pg_catalog.lower(s.name) = v.name"
        ).format(values)
    )


def _secrets(conninfo: str) -> list[str]:
    if not conninfo:
        return []
    try:
        given = conninfo_syntax.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        return [conninfo]
    return [str(given[name]) for name in _SECRETS if given.get(name)]
