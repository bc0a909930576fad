"""Decode one pgoutput message: its bytes in, the message out.

Malformed bytes raise ProtocolError, never any other exception. The layouts are those of the PostgreSQL page
"Logical Replication Message Formats" (protocol-logicalrep-message-formats.html): there is one function for
each message, in the page's order, and `_DECODERS` below them maps the type byte to the function. The anchor
named by a function, such as #BEGIN, is the end of the page's own: #PROTOCOL-LOGICALREP-MESSAGE-FORMATS-BEGIN.

A message is read to its last byte: one that ends early, or that continues after its last field, is malformed.
The bytes do not show whether they were sent inside a streamed transaction, where most messages carry an xid;
the caller sets `in_stream`. The layout depends on nothing else, neither version nor options.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from pipeline.errors import ProtocolError
from pipeline.protocol import messages
from pipeline.protocol.lsn import LSN

_UINT8 = struct.Struct(">B")
_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_UINT64 = struct.Struct(">Q")
_INT32 = struct.Struct(">i")
_BEGIN = struct.Struct(">QqI")  # final LSN, commit time, xid
_COMMIT = struct.Struct(">QQq")  # commit LSN, end LSN, commit time
_ABORT = struct.Struct(">Qq")  # abort LSN, abort time
_PREPARE = struct.Struct(">QQqI")  # prepare or commit LSN, end LSN, time, xid
_ROLLBACK_PREPARED = struct.Struct(">QQqqI")  # prepare end LSN, rollback end LSN, both times, xid


def decode(data: bytes | memoryview, *, in_stream: bool = False) -> messages.Message:
    """Return the message that `data` holds, from its type byte to its last byte, or raise ProtocolError.

    `in_stream` is true between Stream Start and Stream Stop, when messages about a transaction have an xid.
    """
    data = bytes(data)
    if not data:
        raise ProtocolError("A message of 0 bytes has no type byte.")
    decoder = _DECODERS.get(chr(data[0]))
    if decoder is None:
        raise ProtocolError(f"Message type byte 0x{data[0]:02X} is not defined by the protocol.")
    fields = FieldReader(data, decoder.name)
    xid = fields.read_int32("xid") if in_stream and decoder.has_stream_xid else None
    message = decoder.decode(fields, xid)
    fields.finish()
    return message


def decode_begin(fields: FieldReader, _: int | None) -> messages.Begin:
    """Decode Begin (`B`, #BEGIN): final LSN, commit time, xid."""
    final_lsn, commit_time, xid = fields.read_struct(_BEGIN, "final_lsn, commit_time and xid")
    return messages.Begin(LSN(final_lsn), commit_time, xid)


def decode_logical_message(fields: FieldReader, xid: int | None) -> messages.LogicalMessage:
    """Decode Message (`M`, #MESSAGE): flags, LSN, prefix, content; flag 1 is "transactional"."""
    transactional = fields.read_flags("flags", 1) == 1
    lsn = fields.read_lsn("lsn")
    prefix = fields.read_string("prefix")
    return messages.LogicalMessage(transactional, lsn, prefix, fields.read_bytes("content"), xid)


def decode_commit(fields: FieldReader, _: int | None) -> messages.Commit:
    """Decode Commit (`C`, #COMMIT): flags (unused, 0), commit LSN, end LSN, commit time."""
    flags = fields.read_flags("flags", 0)
    commit_lsn, end_lsn, commit_time = fields.read_struct(_COMMIT, "commit_lsn, end_lsn and commit_time")
    return messages.Commit(flags, LSN(commit_lsn), LSN(end_lsn), commit_time)


def decode_origin(fields: FieldReader, _: int | None) -> messages.Origin:
    """Decode Origin (`O`, #ORIGIN): commit LSN at the origin, name; it has no xid, in a stream either."""
    return messages.Origin(fields.read_lsn("commit_lsn"), fields.read_string("name"))


def decode_relation(fields: FieldReader, xid: int | None) -> messages.Relation:
    """Decode Relation (`R`, #RELATION): OID, namespace, name, replica identity, columns."""
    oid = fields.read_int32("oid")
    namespace = fields.read_string("namespace")
    name = fields.read_string("name")
    replica_identity = fields.read_tag("replica_identity", "dnfi")
    count = fields.read_int16("number of columns")
    columns = tuple([_decode_column(fields, f"column {number}") for number in range(1, count + 1)])
    return messages.Relation(oid, namespace, name, replica_identity, columns, xid)


def _decode_column(fields: FieldReader, column: str) -> messages.Column:
    is_key = fields.read_flags(f"flags of {column}", 1) == 1
    name = fields.read_string(f"name of {column}")
    type_oid = fields.read_int32(f"type_oid of {column}")
    (type_modifier,) = fields.read_struct(_INT32, f"type_modifier of {column}")
    return messages.Column(is_key, name, type_oid, type_modifier)


def decode_type(fields: FieldReader, xid: int | None) -> messages.Type:
    """Decode Type (`Y`, #TYPE): OID, namespace, name."""
    oid = fields.read_int32("oid")
    return messages.Type(oid, fields.read_string("namespace"), fields.read_string("name"), xid)


def decode_insert(fields: FieldReader, xid: int | None) -> messages.Insert:
    """Decode Insert (`I`, #INSERT): relation OID, then `N` and the new tuple."""
    oid = fields.read_int32("oid")
    fields.read_tag("tag", "N")
    return messages.Insert(oid, fields.read_tuple("new tuple"), xid)


def decode_update(fields: FieldReader, xid: int | None) -> messages.Update:
    """Decode Update (`U`, #UPDATE): relation OID, perhaps `K` or `O` and the old tuple, `N`, new tuple."""
    oid = fields.read_int32("oid")
    tag = fields.read_tag("tag", "KON")
    if tag == "N":
        return messages.Update(oid, None, None, fields.read_tuple("new tuple"), xid)
    old = fields.read_tuple("old tuple")
    fields.read_tag("tag of the new tuple", "N")
    return messages.Update(oid, cast(messages.OldKind, tag), old, fields.read_tuple("new tuple"), xid)


def decode_delete(fields: FieldReader, xid: int | None) -> messages.Delete:
    """Decode Delete (`D`, #DELETE): relation OID, then `K` or `O` and the old tuple."""
    oid = fields.read_int32("oid")
    old_kind = cast(messages.OldKind, fields.read_tag("tag", "KO"))
    return messages.Delete(oid, old_kind, fields.read_tuple("old tuple"), xid)


def decode_truncate(fields: FieldReader, xid: int | None) -> messages.Truncate:
    """Decode Truncate (`T`, #TRUNCATE): number of relations, option bits, relation OIDs."""
    count = fields.read_int32("number of relations")
    options = fields.read_flags("options", messages.CASCADE | messages.RESTART_IDENTITY)
    oids = tuple([fields.read_int32(f"oid {number} of {count}") for number in range(1, count + 1)])
    return messages.Truncate(oids, options, xid)


def decode_stream_start(fields: FieldReader, _: int | None) -> messages.StreamStart:
    """Decode Stream Start (`S`, #STREAM-START): xid, first segment (1) or a later one (0)."""
    return messages.StreamStart(fields.read_int32("xid"), fields.read_flags("first segment", 1) == 1)


def decode_stream_stop(_: FieldReader, __: int | None) -> messages.StreamStop:
    """Decode Stream Stop (`E`, #STREAM-STOP), which has no fields."""
    return messages.StreamStop()


def decode_stream_commit(fields: FieldReader, _: int | None) -> messages.StreamCommit:
    """Decode Stream Commit (`c`, #STREAM-COMMIT): xid, flags (0), commit LSN, end LSN, commit time."""
    xid = fields.read_int32("xid")
    flags = fields.read_flags("flags", 0)
    commit_lsn, end_lsn, commit_time = fields.read_struct(_COMMIT, "commit_lsn, end_lsn and commit_time")
    return messages.StreamCommit(xid, flags, LSN(commit_lsn), LSN(end_lsn), commit_time)


def decode_stream_abort(fields: FieldReader, _: int | None) -> messages.StreamAbort:
    """Decode Stream Abort (`A`, #STREAM-ABORT): xid, subxid; abort LSN and time if parallel."""
    xid = fields.read_int32("xid")
    subxid = fields.read_int32("subxid")
    if fields.is_at_end:
        return messages.StreamAbort(xid, subxid)
    abort_lsn, abort_time = fields.read_struct(_ABORT, "abort_lsn and abort_time")
    return messages.StreamAbort(xid, subxid, LSN(abort_lsn), abort_time)


def decode_begin_prepare(fields: FieldReader, _: int | None) -> messages.BeginPrepare:
    """Decode Begin Prepare (`b`, #BEGIN-PREPARE): prepare LSN, end LSN, prepare time, xid, GID; no flags."""
    return messages.BeginPrepare(*_decode_prepared(fields, "prepare_lsn, end_lsn, prepare_time and xid"))


def decode_prepare(fields: FieldReader, _: int | None) -> messages.Prepare:
    """Decode Prepare (`P`, #PREPARE): flags (unused, 0), prepare LSN, end LSN, prepare time, xid, GID."""
    flags = fields.read_flags("flags", 0)
    return messages.Prepare(flags, *_decode_prepared(fields, "prepare_lsn, end_lsn, prepare_time and xid"))


def decode_commit_prepared(fields: FieldReader, _: int | None) -> messages.CommitPrepared:
    """Decode Commit Prepared (`K`, #COMMIT-PREPARED): flags (0), commit LSN, end LSN, time, xid, GID."""
    flags = fields.read_flags("flags", 0)
    return messages.CommitPrepared(
        flags, *_decode_prepared(fields, "commit_lsn, end_lsn, commit_time and xid")
    )


def decode_rollback_prepared(fields: FieldReader, _: int | None) -> messages.RollbackPrepared:
    """Decode Rollback Prepared (`r`, #ROLLBACK-PREPARED): flags (0), both end LSNs, both times, xid, GID."""
    flags = fields.read_flags("flags", 0)
    prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time, xid = fields.read_struct(
        _ROLLBACK_PREPARED, "prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time and xid"
    )
    gid = fields.read_string("gid")
    return messages.RollbackPrepared(
        flags, LSN(prepare_end_lsn), LSN(rollback_end_lsn), prepare_time, rollback_time, xid, gid
    )


def decode_stream_prepare(fields: FieldReader, _: int | None) -> messages.StreamPrepare:
    """Decode Stream Prepare (`p`, #STREAM-PREPARE): as Prepare."""
    flags = fields.read_flags("flags", 0)
    return messages.StreamPrepare(
        flags, *_decode_prepared(fields, "prepare_lsn, end_lsn, prepare_time and xid")
    )


def _decode_prepared(fields: FieldReader, names: str) -> tuple[LSN, LSN, int, int, str]:
    lsn, end_lsn, time, xid = fields.read_struct(_PREPARE, names)
    return LSN(lsn), LSN(end_lsn), time, xid, fields.read_string("gid")


class FieldReader:
    """Read the fields of one message in their order; an error names the field, its offset and the fault."""

    __slots__ = ("_data", "_message", "offset")

    def __init__(self, data: bytes, message: str) -> None:
        """Start after the type byte of `data`; `message` is the name of the message in errors."""
        self._data = data
        self._message = message
        self.offset = 1

    @property
    def is_at_end(self) -> bool:
        """Whether all of the message has been read."""
        return self.offset == len(self._data)

    def read_struct(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        """Read the fields of `layout` at once."""
        offset = self.offset
        end = offset + layout.size
        if end > len(self._data):
            raise self._too_short(field, layout.size)
        self.offset = end
        return layout.unpack_from(self._data, offset)

    def read_int8(self, field: str) -> int:
        """Read an unsigned 8-bit integer."""
        return cast(int, self.read_struct(_UINT8, field)[0])

    def read_int16(self, field: str) -> int:
        """Read an unsigned 16-bit integer."""
        return cast(int, self.read_struct(_UINT16, field)[0])

    def read_int32(self, field: str) -> int:
        """Read an unsigned 32-bit integer: an OID, an xid, a length."""
        return cast(int, self.read_struct(_UINT32, field)[0])

    def read_lsn(self, field: str) -> LSN:
        """Read an LSN, 64 bits."""
        return LSN(self.read_struct(_UINT64, field)[0])

    def read_tag(self, field: str, legal: str) -> str:
        """Read one byte, which must be one of the ASCII letters in `legal`."""
        offset = self.offset
        tag = chr(self.read_int8(field))
        if tag not in legal:
            raise self._error(field, offset, f"expected {' or '.join(legal)}, found 0x{ord(tag):02X}")
        return tag

    def read_flags(self, field: str, defined: int) -> int:
        """Read a byte of flags, in which only the bits in `defined` may be set."""
        offset = self.offset
        flags = self.read_int8(field)
        if flags & ~defined:
            raise self._error(field, offset, f"undefined flags in 0x{flags:02X}")
        return flags

    def read_string(self, field: str) -> str:
        """Read up to a NUL; bytes that are not UTF-8 become lone surrogates."""
        offset = self.offset
        end = self._data.find(b"\0", offset)
        if end < 0:
            raise self._error(field, offset, "no terminating NUL")
        self.offset = end + 1
        return self._data[offset:end].decode("utf-8", "surrogateescape")

    def read_bytes(self, field: str) -> bytes:
        """Read a 32-bit length and that many bytes."""
        length = self.read_int32(f"length of {field}")
        offset = self.offset
        end = offset + length
        if end > len(self._data):
            raise self._too_short(field, length)
        self.offset = end
        return self._data[offset:end]

    def read_tuple(self, field: str) -> messages.TupleData:
        """Read TupleData (#TUPLEDATA): the number of columns, then the kind and the value of each."""
        count = self.read_int16(f"number of columns of the {field}")
        return tuple([self._read_cell(f"column {column} of the {field}") for column in range(1, count + 1)])

    def _read_cell(self, field: str) -> messages.Cell:
        match self.read_tag(f"kind of {field}", "nutb"):
            case "n":
                return None
            case "u":
                return messages.UNCHANGED_TOAST
            case "t":
                return self.read_bytes(field)
            case _:
                return messages.Binary(self.read_bytes(field))

    def finish(self) -> None:
        """Raise ProtocolError if bytes follow the last field."""
        if not self.is_at_end:
            rest = len(self._data) - self.offset
            raise self._error("end", self.offset, f"{rest} extra bytes")

    def _error(self, field: str, offset: int, fault: str) -> ProtocolError:
        """Return the error for a `fault` of `field`, which begins at byte `offset`."""
        return ProtocolError(f"Malformed {self._message} message: {field} at byte {offset}: {fault}.")

    def _too_short(self, field: str, size: int) -> ProtocolError:
        return self._error(
            field, self.offset, f"expected {size} bytes, found {len(self._data) - self.offset}"
        )


class _Decoder(NamedTuple):
    name: str  # the page's name, for errors
    decode: Callable[[FieldReader, int | None], messages.Message]
    has_stream_xid: bool


_DECODERS: dict[str, _Decoder] = {
    "B": _Decoder("Begin", decode_begin, has_stream_xid=False),
    "M": _Decoder("Logical decoding", decode_logical_message, has_stream_xid=True),
    "C": _Decoder("Commit", decode_commit, has_stream_xid=False),
    "O": _Decoder("Origin", decode_origin, has_stream_xid=False),
    "R": _Decoder("Relation", decode_relation, has_stream_xid=True),
    "Y": _Decoder("Type", decode_type, has_stream_xid=True),
    "I": _Decoder("Insert", decode_insert, has_stream_xid=True),
    "U": _Decoder("Update", decode_update, has_stream_xid=True),
    "D": _Decoder("Delete", decode_delete, has_stream_xid=True),
    "T": _Decoder("Truncate", decode_truncate, has_stream_xid=True),
    "S": _Decoder("Stream Start", decode_stream_start, has_stream_xid=False),
    "E": _Decoder("Stream Stop", decode_stream_stop, has_stream_xid=False),
    "c": _Decoder("Stream Commit", decode_stream_commit, has_stream_xid=False),
    "A": _Decoder("Stream Abort", decode_stream_abort, has_stream_xid=False),
    "b": _Decoder("Begin Prepare", decode_begin_prepare, has_stream_xid=False),
    "P": _Decoder("Prepare", decode_prepare, has_stream_xid=False),
    "K": _Decoder("Commit Prepared", decode_commit_prepared, has_stream_xid=False),
    "r": _Decoder("Rollback Prepared", decode_rollback_prepared, has_stream_xid=False),
    "p": _Decoder("Stream Prepare", decode_stream_prepare, has_stream_xid=False),
}
