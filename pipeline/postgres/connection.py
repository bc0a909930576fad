"""Open connections to the source, identify the server, and convert failures to errors that say what to do.

Every session pins the settings that determine a value's text (dates, floats, bytea, money): a walsender sets
none of them, and a role or database may have others. Only where an amount of money has other than two digits
after its point does lc_monetary stay as it is: locale C would show another amount. They are set by a query on
the open connection, which also works behind a session pooler.

Every failure is a SourceError. A failed connection has no SQLSTATE on the client's side, so the reason is
found in the messages of libpq and of several major versions of the server. No error contains a password:
libpq prints one only for a conninfo that it cannot parse, and that message is not repeated.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg
from psycopg import conninfo as conninfo_syntax
from psycopg import sql
from psycopg.pq import ExecStatus, TransactionStatus

from pipeline.config.conninfo import CommandConninfo
from pipeline.errors import SourceError
from pipeline.postgres.password_command import read_password
from pipeline.postgres.pooler import refuse_shared_sessions
from pipeline.postgres.sql_text import quote_identifier
from pipeline.protocol.lsn import LSN

_WRONG_PASSWORD = ("password authentication failed", "empty password returned")
# Parts of a message, and what to do; the first match counts.
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("does not match host name", "could not get server's host name"),
        "Set host in source.conninfo to a name in the server's certificate (hostaddr may have the address),"
        " or have a certificate issued for this host.",
    ),
    (
        ("root certificate file",),
        "Set sslrootcert in source.conninfo, or PGSSLROOTCERT, to the file of the CA's certificate.",
    ),
    (
        # The second message is for a CA with the right name and another key.
        ("certificate verify failed", "signature failure"),
        "Set sslrootcert in source.conninfo, or PGSSLROOTCERT, to the CA that signed the server's"
        " certificate. If it is that already, another machine answers under the server's name.",
    ),
    (
        ("does not support SSL",),
        "Set ssl = on at the server. With sslmode=disable in source.conninfo, nothing would be encrypted.",
    ),
    (
        ("no pg_hba.conf entry", "pg_hba.conf rejects"),
        "Add an entry for this role and this host to the server's pg_hba.conf. If the entry is hostssl, set"
        " sslmode=verify-full in source.conninfo.",
    ),
    (
        ("no password supplied",),
        "Set PGPASSWORD, PGPASSFILE (a file that only you can read), or a ${VARIABLE} in source.conninfo.",
    ),
    (
        _WRONG_PASSWORD,
        "Correct the password in PGPASSWORD, PGPASSFILE or the variable in source.conninfo, or set a new one"
        " with ALTER ROLE.",
    ),
    (("is not permitted to log in",), "Run ALTER ROLE … LOGIN as a superuser."),
    (("permission denied for database",), "Run GRANT CONNECT ON DATABASE … TO … as its owner."),
    (("too many connections for",), "Raise its CONNECTION LIMIT: ingest needs four sessions for itself."),
    (("too many clients", "slots are reserved"), "Raise max_connections, or end other sessions."),
)


Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER_VERSION = 100000
#: The newest major that the tests run with.
NEWEST_TESTED_MAJOR = 18
#: SQL for the WAL level that a slot finds. From 19 on, a primary with wal_level = replica raises
#: effective_wal_level to logical while it has a logical slot; a standby has that of its primary.
WAL_LEVEL = (
    "CASE WHEN pg_catalog.current_setting('effective_wal_level', true) IS NULL"
    " THEN pg_catalog.current_setting('wal_level')"
    " WHEN pg_catalog.current_setting('wal_level') = 'replica' AND NOT pg_catalog.pg_is_in_recovery()"
    " THEN 'logical' ELSE pg_catalog.current_setting('effective_wal_level', true) END"
)
#: How long a query about one table waits for its lock.
LOCK_SECONDS = 2.0

#: Settings of every session, by their lower-case names; one that the server does not have is skipped.
SESSION_OPTIONS: Mapping[str, str] = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",  # else expressions of the catalog are printed in other ways
    "default_transaction_read_only": "off",
    # Limits of the role must not end a long decoding.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    # PostgreSQL 18 reports a missing publication as a warning only.
    "client_min_messages": "warning",
}

_CONNECTION_DEFAULTS = {
    "connect_timeout": "30",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_DENIED_SCHEMA = re.compile("for schema (.+)")
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which server and database this is, and the end of its WAL."""

    system_identifier: str
    timeline: int
    database: str
    database_oid: int
    server_version: int
    wal_flush_lsn: LSN
    encoding: str

    @property
    def facts(self) -> dict[str, object]:
        """What commits of the stream record of the source."""
        names = ("system_identifier", "timeline", "database", "database_oid", "server_version")
        return {name: getattr(self, name) for name in names}

    def is_of(self, recorded: Mapping[str, Any]) -> bool:
        """Return whether commits that recorded these facts came from this database, whatever its name."""
        if recorded.get("system_identifier", self.system_identifier) != self.system_identifier:
            return False
        is_same_oid = recorded.get("database_oid") == self.database_oid
        return is_same_oid or recorded.get("database", self.database) == self.database


def connect(conninfo: str, *, application_name: str = "pgdelta", key: str = "source.conninfo") -> Connection:
    """Open a session with pinned settings, in autocommit mode and client encoding UTF8.

    `key` is the configuration's key of the conninfo, for errors.
    """
    try:
        return _open(conninfo, {"application_name": application_name})
    except SourceError as error:
        raise SourceError(str(error).replace("source.conninfo", key)) from None


def connect_replication(conninfo: str, *, application_name: str = "pgdelta") -> Connection:
    """Open a walsender session of the conninfo's database, for replication commands and simple queries.

    Its client encoding is that of `use_raw_encoding`.
    """
    connection = _open(conninfo, {"application_name": application_name, "replication": "database"})
    use_raw_encoding(connection)
    return connection


@contextmanager
def borrow(shared: Connection | None, conninfo: str) -> Iterator[Connection]:
    """Yield the `shared` session if the server answers in it, else another one, which ends with the block.

    The server takes longer to start a session than to answer the questions of most parts of a run.
    """
    if shared is not None and _is_usable(shared):
        yield shared
        return
    with connect(conninfo) as connection:
        yield connection


def _is_usable(connection: Connection) -> bool:
    if connection.info.transaction_status != TransactionStatus.IDLE:  # also if it is closed
        return False
    try:
        connection.execute("")
    except psycopg.Error:
        return False
    return True


def use_raw_encoding(connection: Connection) -> None:
    """Set the client encoding of an SQL_ASCII database to SQL_ASCII, so that it sends its bytes unchanged.

    With client encoding UTF8, it would fail on the first byte that is not UTF-8. All others convert to UTF8.
    """
    if connection.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        try:
            connection.pgconn.exec_(b"SET client_encoding TO 'SQL_ASCII'")
        except psycopg.Error as error:
            connection.close()
            raise SourceError(f"Cannot set the session's settings: {describe(error)}.") from None


def identify(connection: Connection) -> ServerIdentity:
    """Return the server's identity and its current flush LSN (on a standby, the replay LSN)."""
    with reading("the identity of the server"):
        row = connection.execute(
            "SELECT (pg_catalog.pg_control_system()).system_identifier::text,"
            " CASE WHEN pg_catalog.pg_is_in_recovery() THEN"
            " (pg_catalog.pg_control_checkpoint()).timeline_id ELSE ('x' || pg_catalog.substr("
            "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::integer END,"
            # without a lock of pg_database, which the session of a copy would keep
            " pg_catalog.current_database()::text, (SELECT datid::bigint FROM"
            " pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())),"
            " pg_catalog.current_setting('server_encoding')"
        ).fetchone()
    assert row is not None
    system_identifier, timeline, database, database_oid, encoding = row
    place = system_identifier, int(timeline), database, database_oid
    return ServerIdentity(*place, connection.info.server_version, read_flush_lsn(connection), encoding)


def is_in_recovery(connection: Connection) -> bool:
    """Return whether the server is a standby, or restores a backup."""
    row = _first_row(connection, "SELECT pg_catalog.pg_is_in_recovery()", "whether the server is a standby")
    return row is not None and bool(row[0])


def read_segment_size(connection: Connection) -> int:
    """Return the size of a WAL segment in bytes."""
    query = (
        "SELECT CASE WHEN unit = '8kB' THEN 8192 ELSE 1 END * setting::bigint FROM pg_catalog.pg_settings"
        " WHERE name = 'wal_segment_size'"
    )
    row = _first_row(connection, query, "the size of WAL segments")
    assert row is not None
    return int(row[0])


def read_idle_timeout(connection: Connection) -> timedelta | None:
    """Return after which time without a reader the server invalidates a slot; None for never."""
    query = (
        "SELECT (setting || ' ' || unit)::interval FROM pg_catalog.pg_settings"
        " WHERE name = 'idle_replication_slot_timeout' AND setting <> '0'"
    )
    row = _first_row(connection, query, "the settings of the server")
    return None if row is None else row[0]


def _first_row(connection: Connection, query: str, what: str) -> tuple[Any, ...] | None:
    with reading(what):
        return connection.execute(query.encode()).fetchone()


def read_flush_lsn(connection: Connection) -> LSN:
    """Return the LSN up to which the server can decode its WAL now."""
    try:
        row = connection.execute(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END::text"
        ).fetchone()
    except psycopg.Error as error:
        if connection.broken:
            raise SourceError(f"Lost the connection to the source: {describe(error)}. Run again.") from None
        raise SourceError(f"Cannot read the server's WAL location: {describe(error)}.") from None
    assert row is not None
    return LSN.parse(row[0])


def read_timeline_ends(conninfo: str, timeline: int) -> dict[int, LSN]:
    """Return the LSNs at which the timelines before this one ended, from the server's history file."""
    if timeline == 1:  # the first one, which has no such file
        return {}
    with connect_replication(conninfo) as connection:
        result = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != ExecStatus.TUPLES_OK:
            text = describe(result.get_error_message())
            raise SourceError(f"Cannot read the history of timeline {timeline}: {text}.")
        content = (result.get_value(0, 1) or b"").decode("utf-8", "replace")
    lines = (line.split() for line in content.splitlines() if line.strip() and not line.startswith("#"))
    return {int(line[0]): LSN.parse(line[1]) for line in lines}


def newer_server_sentence(server_version: int) -> str | None:
    """Return a sentence about a server that is newer than those of the tests, None about another one."""
    if server_version // 10000 <= NEWEST_TESTED_MAJOR:
        return None
    return (
        f"The source runs PostgreSQL {server_version // 10000}, which is newer than {NEWEST_TESTED_MAJOR},"
        " the newest that this pgdelta was tested with."
    )


def for_server(connection: Connection, since: Mapping[int, str]) -> str:
    """Return the SQL for the server's major; `since` has SQL by first major, newest first."""
    major = connection.info.server_version // 10000
    return next(text for first, text in since.items() if major >= first)


def is_synchronous_standby(connection: Connection, application_name: str) -> bool:
    """Return whether synchronous_standby_names may make commits wait for a walsender of that name."""
    query = "SELECT pg_catalog.lower(pg_catalog.current_setting('synchronous_standby_names'))"
    row = _first_row(connection, query, "the settings of the server")
    assert row is not None
    return "*" in row[0] or application_name.lower() in row[0]


def describe(error: psycopg.Error | str, conninfo: str = "") -> str:
    """Return the message of the server or libpq on one line, without a full stop and without secrets."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        text = error.diag.message_primary
    else:
        text = str(error)
    for secret in _secrets(conninfo):
        text = text.replace(secret, "***")
    text = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return re.sub(r"^(?:ERROR|FATAL|PANIC): +", "", text)


@contextmanager
def reading(what: str, advice: str = "") -> Iterator[None]:
    """Raise SourceError, which names what cannot be read, for an error of the server in a block."""
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, psycopg.errors.CharacterNotInRepertoire):  # an SQL_ASCII database
            advice = "A name in the database is not UTF-8. Rename what pgdelta check names."
        raise SourceError(f"Cannot read {what}: {describe(error)}.{advice and f' {advice}'}") from None


def limit_connect_time(conninfo: str, seconds: float) -> str:
    """Return the conninfo with a connect_timeout; one that cannot be parsed is returned as it is."""
    try:
        # libpq accepts an integer of seconds, at least two.
        limited = conninfo_syntax.make_conninfo(conninfo, connect_timeout=max(2, round(seconds)))
    except psycopg.Error:
        return conninfo
    return conninfo.with_text(limited) if isinstance(conninfo, CommandConninfo) else limited


def with_user(conninfo: str, user: str) -> str:
    """Return the conninfo, which can be parsed, with another user."""
    return conninfo_syntax.make_conninfo(conninfo, user=user)


def limit_lock_time(connection: Connection) -> None:
    """Let statements wait for a lock for at most `LOCK_SECONDS`, until the transaction in progress ends."""
    limit = f"{LOCK_SECONDS * 1000:.0f}"
    connection.execute("SELECT pg_catalog.set_config('lock_timeout', %s, true)", (limit,))


def limit_statement_time(connection: Connection, seconds: float) -> None:
    """Set the session's statement_timeout; raise psycopg.Error if that fails."""
    limit = f"{seconds * 1000:.0f}"
    connection.execute("SELECT pg_catalog.set_config('statement_timeout', %s, false)", (limit,))


_open_connections: weakref.WeakKeyDictionary[psycopg.Connection[Any], str] = weakref.WeakKeyDictionary()
_open_connections_lock = threading.Lock()


def shut_down_sessions(application_name: str) -> int:
    """Shut down this process's sessions of a name, even if threads wait on them; return their number."""
    with _open_connections_lock:
        found = [c for c, name in _open_connections.items() if name == application_name and not c.closed]
    for connection in found:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)
    return len(found)


def _register(connection: psycopg.Connection[Any], application_name: str) -> None:
    with _open_connections_lock:
        _open_connections[connection] = application_name


def _open(conninfo: str, keywords: Mapping[str, str]) -> Connection:
    try:
        given = conninfo_syntax.conninfo_to_dict(conninfo)
        for number in ("port", "connect_timeout"):
            if not re.fullmatch(r"[\d,\s]*", str(given.get(number) or "")):
                raise psycopg.ProgrammingError(number)
        if splits_password(conninfo, given):
            raise psycopg.ProgrammingError("host")
        named = {k: v for k, v in given.items() if v is not None}
        password_key = None
        if isinstance(conninfo, CommandConninfo):
            password_key = conninfo.key
            named["password"] = read_password(conninfo.password_command, key=password_key)
        settings = {**_CONNECTION_DEFAULTS, **named, **keywords, "client_encoding": "UTF8"}
        complete = conninfo_syntax.make_conninfo("", **settings)
    except psycopg.ProgrammingError:
        raise SourceError(
            "source.conninfo cannot be parsed. Write libpq keywords (host=… dbname=…) or a URI"
            " (postgresql://user@host/database), with special characters quoted (in a URI, percent-encoded)."
        ) from None
    try:
        connection = psycopg.connect(complete, autocommit=True, prepare_threshold=None)
        _register(connection, keywords["application_name"])
    except psycopg.Error as error:
        raise SourceError(describe_refusal(describe(error, complete), given, password_key)) from None
    try:
        if connection.info.server_version < OLDEST_SERVER_VERSION:
            raise SourceError(
                f"The source runs PostgreSQL {connection.info.server_version / 10000:.1f}, which has no"
                " pgoutput. Use PostgreSQL 10 or newer."
            )
        if "replication" not in keywords:  # which no pooler shares
            refuse_shared_sessions(connection, complete)
        _pin_settings(connection)
    except psycopg.Error as error:
        connection.close()
        raise SourceError(f"Cannot set the session's settings: {describe(error, complete)}.") from None
    except SourceError:
        connection.close()
        raise
    return connection


def _pin_settings(connection: Connection) -> None:
    # First without an operator, because the database's search_path may find another one than the server's.
    connection.execute("SELECT pg_catalog.set_config('search_path', '', false)")
    # Single statements without parameters: a walsender accepts neither several nor the extended protocol.
    values = sql.SQL(", ").join(
        sql.SQL("({}, {})").format(sql.Literal(name), sql.Literal(value))
        for name, value in SESSION_OPTIONS.items()
    )
    connection.execute(
        sql.SQL(
            "SELECT pg_catalog.set_config(s.name, CASE WHEN v.name = 'lc_monetary' AND"
            " pg_catalog.encode(pg_catalog.cash_send('1'::pg_catalog.money), 'hex') <> '0000000000000064'"
            " THEN s.setting ELSE v.value END, false) FROM pg_catalog.pg_settings s"
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


_QUESTION = re.compile(r" Is the server running [^?]*\?")


def describe_refusal(message: str, keywords: Mapping[str, Any], password_key: str | None = None) -> str:
    """Return the error for a connection that was refused with `message`; `keywords` are the conninfo's.

    `password_key` is the configuration's key of the program that printed the password, if there is one.
    """
    if "replication role to start walsender" in message or "permission denied to start WAL sender" in message:
        user = keywords.get("user")
        role = quote_identifier(str(user)) if user else "…"
        return (
            f"The role {user or 'in use'} may not replicate. Run ALTER ROLE {role} REPLICATION as a superuser"
            f" (on RDS: GRANT rds_replication TO {role}). The route sql needs the same privilege."
        )
    if "max_wal_senders" in message:
        return "All walsenders of the source are in use. Raise max_wal_senders, or end another one."
    default = "Check source.conninfo, and that the server is running."
    advice = next((advice for parts, advice in _ADVICE if any(part in message for part in parts)), default)
    if password_key is not None and any(part in message for part in _WRONG_PASSWORD):
        advice = f"Correct the program of {password_key}, or the password of the role."
    message = _QUESTION.sub("", message)  # libpq's own advice, which the last sentence has
    return f"Cannot connect to the source: {message}. {advice}"


def splits_password(conninfo: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether libpq parsed part of a password as host or database, and would print it in a message.

    This happens if a password is not percent-encoded: `postgresql://me:se@cret@host/db` has the host
    `cret@host`.
    """
    if "://" not in conninfo:
        return False
    host, database = str(keywords.get("host") or ""), str(keywords.get("dbname") or "")
    return "@" in host[1:] or ("@" in database and keywords.get("user") is None)


def privilege_advice(message: str, user: str) -> str:
    """Return what to run if the server denied a role the rows of a table with `message`."""
    role = quote_identifier(user)
    if "row-level security" in message:
        return f"Run ALTER ROLE {role} BYPASSRLS as a superuser."
    if schema := _DENIED_SCHEMA.search(message):
        return f"Run GRANT USAGE ON SCHEMA {quote_identifier(schema[1])} TO {role} as its owner."
    return f"Run GRANT SELECT ON … TO {role} as its owner."
