"""Write a message as one line for people: time, LSN, xid, kind, table, values.

No I/O. Values are written as in SQL: numbers and booleans bare, other text in quotes, as E'…' if it has
characters that cannot be printed; a value in binary format is x'…'. NULL and unchanged TOAST are bare.
Characters that could move a terminal's cursor or hide text are always escaped. Long values are shortened and
followed by their length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from pipeline.postgres.sql_text import quote_identifier, quote_literal
from pipeline.protocol import messages
from pipeline.protocol.pg_types import PgType
from pipeline.tail.selection import TailMessage, lsn_of
from pipeline.units import format_count

TypeName = Callable[[int, int], str]
"""Return the name of a type by its OID and modifier."""

VALUE_LENGTH = 60

_BARE_TYPES = frozenset(
    {
        PgType.BOOL,
        PgType.INT8,
        PgType.INT2,
        PgType.INT4,
        PgType.OID,
        PgType.FLOAT4,
        PgType.FLOAT8,
        PgType.NUMERIC,
    }
)
_SIMPLE_NAME = re.compile(r"[a-z_][a-z0-9_$]*")
_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}
_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\b": r"\b", "\f": r"\f", "\\": r"\\"}
_DIM, _RED, _GREEN, _YELLOW, _CYAN, _PLAIN = (f"\x1b[{code}m" for code in (2, 31, 32, 33, 36, 0))
_COLOURS = {
    "Insert": _GREEN,
    "Update": _YELLOW,
    "Delete": _RED,
    "Truncate": _RED,
    "Stream Abort": _RED,
    "Rollback Prepared": _RED,
    "Message": _CYAN,
}


class TextFormat:
    """Write messages as lines."""

    def __init__(
        self,
        type_name: TypeName,
        *,
        value_length: int = VALUE_LENGTH,
        has_values: bool = True,
        has_colour: bool = False,
    ) -> None:
        """Shorten values to `value_length` characters (0: never); leave them out unless `has_values`."""
        self._type_name = type_name
        self._length = value_length
        self._has_values = has_values
        self._has_colour = has_colour

    def write(self, tail_message: TailMessage) -> str:
        """Return the line of a message, without a newline."""
        message, frame = tail_message.message, tail_message.frame
        kind = kind_of(message)
        time, lsn, xid = _time_of(message), lsn_of(message) or None, getattr(message, "xid", None)
        if frame is not None:
            time = frame.time if time is None else time
            lsn = frame.lsn if lsn is None or isinstance(message, messages.LogicalMessage) else lsn
            xid = frame.xid if xid is None else xid
        when = "-" if time is None else time_text(time, "milliseconds")
        head = f"{when:24} {'-' if lsn is None else lsn!s:>11} {'-' if xid is None else xid:>10}"
        body = self._body(message, tail_message.relations)
        indent = "  " if tail_message.is_inside else ""
        if self._has_colour:
            head = f"{_DIM}{head}{_PLAIN}"
            kind = f"{_COLOURS[kind]}{kind}{_PLAIN}" if kind in _COLOURS else kind
        return f"{head}  {indent}{kind}{' ' if body else ''}{body}"

    def write_malformed(self, data: bytes) -> str:
        """Return the line of a malformed or illegal message."""
        values = f" {self._binary(data)}" if self._has_values else ""
        return (
            f"{'-':24} {'-':>11} {'-':>10}  Undecodable message of {format_count(len(data), 'byte')}{values}"
        )

    def _body(self, message: messages.Message, relations: tuple[messages.Relation, ...]) -> str:
        table = ", ".join(_table(relation) for relation in relations)
        match message:
            case messages.Begin() | messages.StreamStop():
                return ""
            case messages.Commit(end_lsn=end_lsn) | messages.StreamCommit(end_lsn=end_lsn):
                return f"end {end_lsn}"
            case (
                messages.BeginPrepare()
                | messages.Prepare()
                | messages.StreamPrepare()
                | messages.CommitPrepared()
            ):
                return f"{quote(message.gid)} end {message.end_lsn}"
            case messages.RollbackPrepared():
                prepared = time_text(message.prepare_time, "milliseconds")
                return f"{quote(message.gid)} prepared {prepared}, its end {message.prepare_end_lsn}"
            case messages.StreamStart(is_first_segment=is_first):
                return "first segment" if is_first else "next segment"
            case messages.StreamAbort(xid, subxid):
                return "all of it" if xid == subxid else f"subtransaction {subxid}"
            case messages.Origin(lsn, name):
                return f"{quote(name)} {lsn}"
            case messages.Type(oid, namespace, name):
                return f"{_name(namespace or 'pg_catalog')}.{_name(name)} oid {oid}"
            case messages.Relation() as relation:
                columns = ", ".join(self._column(column) for column in relation.columns)
                identity = _IDENTITIES.get(relation.replica_identity, relation.replica_identity)
                return f"{table} ({columns}) identity {identity}"
            case messages.Insert():
                return f"{table}{self._row('', message.new, relations)}"
            case messages.Update():
                old = self._old(message.old_kind, message.old, relations)
                return f"{table}{old}{self._row(' new' if old else '', message.new, relations)}"
            case messages.Delete():
                return f"{table}{self._old(message.old_kind, message.old, relations)}"
            case messages.Truncate(options=options):
                cascade = " cascade" if options & messages.CASCADE else ""
                return f"{table}{cascade}{' restart identity' if options & messages.RESTART_IDENTITY else ''}"
            case messages.LogicalMessage():
                kind = "" if message.transactional else " not transactional"
                shown = format_count(len(message.content), "byte")
                if self._has_values:
                    shown = value_text(message.content, 0, self._length)
                return f"{quote(message.prefix)}{kind}: {shown}"

    def _column(self, column: messages.Column) -> str:
        type_name = escape(self._type_name(column.type_oid, column.type_modifier))
        return f"{_name(column.name)} {type_name}{' key' if column.is_key else ''}"

    def _old(
        self, kind: str | None, cells: messages.TupleData | None, relations: tuple[messages.Relation, ...]
    ) -> str:
        if cells is None:
            return ""
        if kind != "K":
            return self._row(" old", cells, relations)
        # Other columns are NULL in a key. The key of a partition may have other columns than its root's.
        is_key = [column.is_key for column in relations[0].columns]
        return self._row(
            " key", cells, relations, [k or c is not None for k, c in zip(is_key, cells, strict=False)]
        )

    def _row(
        self,
        title: str,
        cells: messages.TupleData,
        relations: tuple[messages.Relation, ...],
        chosen: list[bool] | None = None,
    ) -> str:
        if not self._has_values:
            count = sum(chosen) if chosen else len(cells)
            return f"{title}: {format_count(count, 'column')}"
        pairs = [
            f" {_name(column.name)}={self._cell(cell, column.type_oid)}"
            for number, (column, cell) in enumerate(zip(relations[0].columns, cells, strict=False))
            if chosen is None or chosen[number]
        ]
        return f"{title}:{''.join(pairs)}"

    def _cell(self, cell: messages.Cell, type_oid: int) -> str:
        if cell is messages.UNCHANGED_TOAST:
            return "(not sent)"
        if isinstance(cell, messages.Binary):
            return self._binary(cell)
        return value_text(cell, type_oid, self._length)

    def _binary(self, data: bytes) -> str:
        count = self._length // 2
        if not count or len(data) <= count:
            return f"x'{data.hex()}'"
        return f"x'{data[:count].hex()}'… ({format_count(len(data), 'byte')})"


def value_text(value: bytes | None, type_oid: int, length: int = VALUE_LENGTH) -> str:
    """Return a value in text format as in SQL, shortened to `length` characters (0: never)."""
    if value is None:
        return "NULL"
    if type_oid in _BARE_TYPES and value.isascii() and re.fullmatch(rb"[\w.+-]+", value):
        return value.decode("ascii")
    text = value.decode("utf-8", "surrogateescape")
    if not length or len(text) <= length:
        return quote(text)
    return f"{quote(text[:length])}… ({format_count(len(value), 'byte')})"


def kind_of(message: messages.Message) -> str:
    """Return the name of the message in PostgreSQL's documentation."""
    name = type(message).__name__
    return "Message" if name == "LogicalMessage" else re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def time_text(microseconds: int, precision: str = "microseconds") -> str:
    """Return a time of the protocol in UTC; one that Python cannot represent as a number."""
    try:
        time: datetime = messages.POSTGRES_EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return time.replace(tzinfo=None).isoformat(" ", precision) + "Z"


def quote(text: str) -> str:
    """Return the text as a string of SQL, as E'…' if it has characters that cannot be printed."""
    return quote_literal(text) if text.isprintable() else f"E{quote_literal(escape(text, also=chr(92)))}"


def escape(text: str, *, also: str = "") -> str:
    """Return the text with unprintable characters, and those in `also`, escaped."""
    return "".join(c if c.isprintable() and c not in also else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _name(name: str) -> str:
    if _SIMPLE_NAME.fullmatch(name):
        return name
    return escape(quote_identifier(name))


def _table(relation: messages.Relation) -> str:
    return f"{_name(relation.namespace or 'pg_catalog')}.{_name(relation.name)}"


def _time_of(message: messages.Message) -> int | None:
    for field in ("commit_time", "rollback_time", "prepare_time", "abort_time"):
        time: int | None = getattr(message, field, None)
        if time is not None:
            return time
    return None
