"""Bytes of one pgoutput message in, the message out; malformed bytes raise ProtocolError and nothing else.

Follows "Logical Replication Message Formats", in its order, one `read_` function for each message; `_LAYOUTS`
at the end says which type byte is read by which. A message is read to its last byte: one that ends early has
a field that is cut short, one that goes on is refused. Whether the bytes stand inside a streamed transaction,
where most messages carry an xid, is not on the wire: the caller knows it. Nothing else is asked of the
caller: a message reads the same whatever version and options the session has.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    CASCADE,
    RESTART_IDENTITY,
    UNCHANGED_TOAST,
    Begin,
    BeginPrepare,
    Binary,
    Cell,
    Column,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldKind,
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
    Tuple,
    Type,
    Update,
)

# A place in the bytes of one message, and the reading of one field after another from there.
_INT8 = struct.Struct(">B")
_INT16 = struct.Struct(">H")
_INT32 = struct.Struct(">I")
_INT64 = struct.Struct(">Q")


class Reader:
    """A place in the bytes of one message; every read names its field, for the error if it is cut short."""

    __slots__ = ("_data", "_message", "offset")

    def __init__(self, data: bytes, message: str) -> None:
        """Stand behind the type byte of `data`, which errors call a `message`."""
        self._data = data
        self._message = message
        self.offset = 1

    @property
    def is_at_end(self) -> bool:
        """Tell whether all of the message has been read."""
        return self.offset == len(self._data)

    def error(self, field: str, offset: int, fault: str) -> ProtocolError:
        """Return the sentence for a `fault` of `field`, which begins at `offset`."""
        return ProtocolError(f"{self._message} message: {field} at byte {offset}: {fault}")

    def read_struct(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """Read all of `layout` at once."""
        offset = self.offset
        end = offset + layout.size
        if end > len(self._data):
            raise self.error(field, offset, f"{layout.size} bytes wanted, {len(self._data) - offset} left")
        self.offset = end
        return layout.unpack_from(self._data, offset)

    def read_int8(self, field: str) -> int:
        """Read one byte."""
        return cast(int, self.read_struct(_INT8, field)[0])

    def read_int16(self, field: str) -> int:
        """Read an unsigned 16-bit integer."""
        return cast(int, self.read_struct(_INT16, field)[0])

    def read_int32(self, field: str) -> int:
        """Read an unsigned 32-bit integer: an oid, an xid, a length."""
        return cast(int, self.read_struct(_INT32, field)[0])

    def read_lsn(self, field: str) -> LSN:
        """Read a position."""
        return LSN(self.read_struct(_INT64, field)[0])

    def read_tag(self, field: str, legal: str) -> str:
        """Read one byte that must be one of the ASCII letters in `legal`."""
        offset = self.offset
        tag = chr(self.read_int8(field))
        if tag not in legal:
            raise self.error(field, offset, f"0x{ord(tag):02X} is none of {', '.join(legal)}")
        return tag

    def read_flags(self, field: str, known: int) -> int:
        """Read a byte of flags, of which only the bits in `known` may be set."""
        offset = self.offset
        flags = self.read_int8(field)
        if flags & ~known:
            raise self.error(field, offset, f"flags 0x{flags:02X} have a meaning that is not known")
        return flags

    def read_string(self, field: str) -> str:
        """Read up to a NUL; bytes that are not UTF-8 become lone surrogates."""
        offset = self.offset
        end = self._data.find(b"\0", offset)
        if end < 0:
            raise self.error(field, offset, "no NUL before the message ends")
        self.offset = end + 1
        return self._data[offset:end].decode("utf-8", "surrogateescape")

    def read_bytes(self, field: str) -> bytes:
        """Read a 32-bit length and that many bytes."""
        length = self.read_int32(f"length of {field}")
        offset = self.offset
        end = offset + length
        if end > len(self._data):
            raise self.error(field, offset, f"{length} bytes wanted, {len(self._data) - offset} left")
        self.offset = end
        return self._data[offset:end]

    def read_tuple(self, field: str) -> Tuple:
        """Read TupleData: a number of columns and, for each, its kind and value."""
        count = self.read_int16(f"number of columns of the {field}")
        return tuple([self._read_cell(f"column {column} of the {field}") for column in range(1, count + 1)])

    def _read_cell(self, field: str) -> Cell:
        match self.read_tag(f"kind of {field}", "nutb"):
            case "n":
                return None
            case "u":
                return UNCHANGED_TOAST
            case "t":
                return self.read_bytes(field)
            case _:
                return Binary(self.read_bytes(field))

    def finish(self) -> None:
        """Raise ProtocolError if the message goes on behind its last field."""
        if not self.is_at_end:
            raise self.error("end", self.offset, f"{len(self._data) - self.offset} bytes too many")


_SIGNED_INT32 = struct.Struct(">i")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">QQq")
_ABORT = struct.Struct(">Qq")
_BEGIN_PREPARE = struct.Struct(">QQqI")
_ROLLBACK_PREPARED = struct.Struct(">QQqqI")


def decode(data: bytes | memoryview, *, in_stream: bool = False) -> Message:
    """Return the message that `data` holds, from its type byte to its last; else raise ProtocolError."""
    data = bytes(data)
    if not data:
        raise ProtocolError("an empty message has no type byte")
    layout = _LAYOUTS.get(chr(data[0]))
    if layout is None:
        raise ProtocolError(f"message type byte 0x{data[0]:02X} is not one that the protocol has")
    reader = Reader(data, layout.name)
    xid = reader.read_int32("xid") if in_stream and layout.has_stream_xid else None
    message = layout.read(reader, xid)
    reader.finish()
    return message


def read_begin(reader: Reader, _: int | None) -> Begin:
    """Read the body of `B`."""
    final_lsn, commit_time, xid = reader.read_struct(_BEGIN, "final_lsn, commit_time and xid")
    return Begin(LSN(final_lsn), commit_time, xid)


def read_logical_message(reader: Reader, xid: int | None) -> LogicalMessage:
    """Read the body of `M`."""
    transactional = reader.read_flags("flags", 1) == 1
    lsn = reader.read_lsn("lsn")
    prefix = reader.read_string("prefix")
    return LogicalMessage(transactional, lsn, prefix, reader.read_bytes("content"), xid)


def read_commit(reader: Reader, _: int | None) -> Commit:
    """Read the body of `C`; here and below, flags are unused and must be 0."""
    flags = reader.read_flags("flags", 0)
    commit_lsn, end_lsn, commit_time = reader.read_struct(_COMMIT, "commit_lsn, end_lsn and commit_time")
    return Commit(flags, LSN(commit_lsn), LSN(end_lsn), commit_time)


def read_origin(reader: Reader, _: int | None) -> Origin:
    """Read the body of `O`, which has no xid even inside a stream."""
    return Origin(reader.read_lsn("commit_lsn"), reader.read_string("name"))


def read_relation(reader: Reader, xid: int | None) -> Relation:
    """Read the body of `R`."""
    oid = reader.read_int32("oid")
    namespace = reader.read_string("namespace")
    name = reader.read_string("name")
    replica_identity = reader.read_tag("replica_identity", "dnfi")
    count = reader.read_int16("number of columns")
    columns = tuple([_read_column(reader, f"column {column}") for column in range(1, count + 1)])
    return Relation(oid, namespace, name, replica_identity, columns, xid)


def _read_column(reader: Reader, field: str) -> Column:
    is_key = reader.read_flags(f"flags of {field}", 1) == 1
    name = reader.read_string(f"name of {field}")
    type_oid = reader.read_int32(f"type_oid of {field}")
    return Column(is_key, name, type_oid, reader.read_struct(_SIGNED_INT32, f"type_modifier of {field}")[0])


def read_type(reader: Reader, xid: int | None) -> Type:
    """Read the body of `Y`."""
    oid = reader.read_int32("oid")
    return Type(oid, reader.read_string("namespace"), reader.read_string("name"), xid)


def read_insert(reader: Reader, xid: int | None) -> Insert:
    """Read the body of `I`."""
    oid = reader.read_int32("oid")
    reader.read_tag("tag", "N")
    return Insert(oid, reader.read_tuple("new tuple"), xid)


def read_update(reader: Reader, xid: int | None) -> Update:
    """Read the body of `U`: perhaps a key or an old row, then the new row."""
    oid = reader.read_int32("oid")
    tag = reader.read_tag("tag", "KON")
    if tag == "N":
        return Update(oid, None, None, reader.read_tuple("new tuple"), xid)
    old = reader.read_tuple("old tuple")
    reader.read_tag("tag of the new tuple", "N")
    return Update(oid, cast(OldKind, tag), old, reader.read_tuple("new tuple"), xid)


def read_delete(reader: Reader, xid: int | None) -> Delete:
    """Read the body of `D`."""
    oid = reader.read_int32("oid")
    old_kind = cast(OldKind, reader.read_tag("tag", "KO"))
    return Delete(oid, old_kind, reader.read_tuple("old tuple"), xid)


def read_truncate(reader: Reader, xid: int | None) -> Truncate:
    """Read the body of `T`."""
    count = reader.read_int32("number of relations")
    options = reader.read_flags("options", CASCADE | RESTART_IDENTITY)
    oids = tuple([reader.read_int32(f"oid {number} of {count}") for number in range(1, count + 1)])
    return Truncate(oids, options, xid)


def read_stream_start(reader: Reader, _: int | None) -> StreamStart:
    """Read the body of `S`."""
    return StreamStart(reader.read_int32("xid"), reader.read_flags("first segment", 1) == 1)


def read_stream_stop(_: Reader, __: int | None) -> StreamStop:
    """Read the body of `E`, which has none."""
    return StreamStop()


def read_stream_commit(reader: Reader, _: int | None) -> StreamCommit:
    """Read the body of `c`."""
    xid = reader.read_int32("xid")
    flags = reader.read_flags("flags", 0)
    commit_lsn, end_lsn, commit_time = reader.read_struct(_COMMIT, "commit_lsn, end_lsn and commit_time")
    return StreamCommit(xid, flags, LSN(commit_lsn), LSN(end_lsn), commit_time)


def read_stream_abort(reader: Reader, _: int | None) -> StreamAbort:
    """Read the body of `A`, which goes on behind its xids where streaming is parallel."""
    xid = reader.read_int32("xid")
    subxid = reader.read_int32("subxid")
    if reader.is_at_end:
        return StreamAbort(xid, subxid)
    abort_lsn, abort_time = reader.read_struct(_ABORT, "abort_lsn and abort_time")
    return StreamAbort(xid, subxid, LSN(abort_lsn), abort_time)


def read_begin_prepare(reader: Reader, _: int | None) -> BeginPrepare:
    """Read the body of `b`, which has no flags."""
    return BeginPrepare(*_read_prepared(reader, "prepare_lsn, end_lsn, prepare_time and xid"))


def read_prepare(reader: Reader, _: int | None) -> Prepare:
    """Read the body of `P`."""
    flags = reader.read_flags("flags", 0)
    return Prepare(flags, *_read_prepared(reader, "prepare_lsn, end_lsn, prepare_time and xid"))


def read_commit_prepared(reader: Reader, _: int | None) -> CommitPrepared:
    """Read the body of `K`."""
    flags = reader.read_flags("flags", 0)
    return CommitPrepared(flags, *_read_prepared(reader, "commit_lsn, end_lsn, commit_time and xid"))


def read_rollback_prepared(reader: Reader, _: int | None) -> RollbackPrepared:
    """Read the body of `r`."""
    flags = reader.read_flags("flags", 0)
    prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time, xid = reader.read_struct(
        _ROLLBACK_PREPARED, "prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time and xid"
    )
    prepare_end, rollback_end = LSN(prepare_end_lsn), LSN(rollback_end_lsn)
    gid = reader.read_string("gid")
    return RollbackPrepared(flags, prepare_end, rollback_end, prepare_time, rollback_time, xid, gid)


def read_stream_prepare(reader: Reader, _: int | None) -> StreamPrepare:
    """Read the body of `p`."""
    flags = reader.read_flags("flags", 0)
    return StreamPrepare(flags, *_read_prepared(reader, "prepare_lsn, end_lsn, prepare_time and xid"))


def _read_prepared(reader: Reader, fields: str) -> tuple[LSN, LSN, int, int, str]:
    lsn, end_lsn, time, xid = reader.read_struct(_BEGIN_PREPARE, fields)
    return LSN(lsn), LSN(end_lsn), time, xid, reader.read_string("gid")


class _Layout(NamedTuple):
    name: str
    read: Callable[[Reader, int | None], Message]
    has_stream_xid: bool


_LAYOUTS: dict[str, _Layout] = {
    "B": _Layout("Begin", read_begin, has_stream_xid=False),
    "M": _Layout("Logical decoding", read_logical_message, has_stream_xid=True),
    "C": _Layout("Commit", read_commit, has_stream_xid=False),
    "O": _Layout("Origin", read_origin, has_stream_xid=False),
    "R": _Layout("Relation", read_relation, has_stream_xid=True),
    "Y": _Layout("Type", read_type, has_stream_xid=True),
    "I": _Layout("Insert", read_insert, has_stream_xid=True),
    "U": _Layout("Update", read_update, has_stream_xid=True),
    "D": _Layout("Delete", read_delete, has_stream_xid=True),
    "T": _Layout("Truncate", read_truncate, has_stream_xid=True),
    "S": _Layout("Stream Start", read_stream_start, has_stream_xid=False),
    "E": _Layout("Stream Stop", read_stream_stop, has_stream_xid=False),
    "c": _Layout("Stream Commit", read_stream_commit, has_stream_xid=False),
    "A": _Layout("Stream Abort", read_stream_abort, has_stream_xid=False),
    "b": _Layout("Begin Prepare", read_begin_prepare, has_stream_xid=False),
    "P": _Layout("Prepare", read_prepare, has_stream_xid=False),
    "K": _Layout("Commit Prepared", read_commit_prepared, has_stream_xid=False),
    "r": _Layout("Rollback Prepared", read_rollback_prepared, has_stream_xid=False),
    "p": _Layout("Stream Prepare", read_stream_prepare, has_stream_xid=False),
}
