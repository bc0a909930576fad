"""The inverse of `decode`, for tests only: a message in, its bytes out."""

import struct

from pipeline.protocol import messages as wire


def encode(message: wire.Message) -> bytes:
    """Return the bytes of the message; one with an xid is encoded as inside a stream."""
    match message:
        case wire.Begin(final_lsn, commit_time, xid):
            return b"B" + struct.pack(">QqI", final_lsn, commit_time, xid)
        case wire.LogicalMessage(transactional, lsn, prefix, content, xid):
            head = struct.pack(">BQ", transactional, lsn)
            return b"M" + _xid(xid) + head + _string(prefix) + _bytes(content)
        case wire.Commit(flags, commit_lsn, end_lsn, commit_time):
            return b"C" + struct.pack(">BQQq", flags, commit_lsn, end_lsn, commit_time)
        case wire.Origin(commit_lsn, name):
            return b"O" + struct.pack(">Q", commit_lsn) + _string(name)
        case wire.Relation(oid, namespace, name, replica_identity, columns, xid):
            names = _string(namespace) + _string(name) + replica_identity.encode()
            described = struct.pack(">H", len(columns)) + b"".join(map(_column, columns))
            return b"R" + _xid(xid) + _oid(oid) + names + described
        case wire.Type(oid, namespace, name, xid):
            return b"Y" + _xid(xid) + _oid(oid) + _string(namespace) + _string(name)
        case wire.Insert(oid, new, xid):
            return b"I" + _xid(xid) + _oid(oid) + b"N" + _tuple(new)
        case wire.Update(oid, old_kind, old, new, xid):
            before = b"" if old_kind is None or old is None else old_kind.encode() + _tuple(old)
            return b"U" + _xid(xid) + _oid(oid) + before + b"N" + _tuple(new)
        case wire.Delete(oid, old_kind, old, xid):
            return b"D" + _xid(xid) + _oid(oid) + old_kind.encode() + _tuple(old)
        case wire.Truncate(oids, options, xid):
            return b"T" + _xid(xid) + struct.pack(">IB", len(oids), options) + b"".join(map(_oid, oids))
        case wire.StreamStart(xid, is_first_segment):
            return b"S" + struct.pack(">IB", xid, is_first_segment)
        case wire.StreamStop():
            return b"E"
        case wire.StreamCommit(xid, flags, commit_lsn, end_lsn, commit_time):
            return b"c" + struct.pack(">IBQQq", xid, flags, commit_lsn, end_lsn, commit_time)
        case wire.StreamAbort(xid, subxid, abort_lsn, abort_time):
            end = b"" if abort_lsn is None else struct.pack(">Qq", abort_lsn, abort_time)
            return b"A" + struct.pack(">II", xid, subxid) + end
        case wire.BeginPrepare(prepare_lsn, end_lsn, prepare_time, xid, gid):
            return b"b" + struct.pack(">QQqI", prepare_lsn, end_lsn, prepare_time, xid) + _string(gid)
        case wire.Prepare(flags, lsn, end_lsn, time, xid, gid):
            return b"P" + struct.pack(">BQQqI", flags, lsn, end_lsn, time, xid) + _string(gid)
        case wire.CommitPrepared(flags, lsn, end_lsn, time, xid, gid):
            return b"K" + struct.pack(">BQQqI", flags, lsn, end_lsn, time, xid) + _string(gid)
        case wire.RollbackPrepared(flags, prepare_end_lsn, end_lsn, prepare_time, rollback_time, xid, gid):
            lsns = struct.pack(">BQQ", flags, prepare_end_lsn, end_lsn)
            return b"r" + lsns + struct.pack(">qqI", prepare_time, rollback_time, xid) + _string(gid)
        case wire.StreamPrepare(flags, lsn, end_lsn, time, xid, gid):
            return b"p" + struct.pack(">BQQqI", flags, lsn, end_lsn, time, xid) + _string(gid)


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def _oid(oid: int) -> bytes:
    return struct.pack(">I", oid)


def _string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"


def _bytes(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _column(column: wire.Column) -> bytes:
    return (
        bytes([column.is_key])
        + _string(column.name)
        + struct.pack(">Ii", column.type_oid, column.type_modifier)
    )


def _tuple(cells: wire.TupleData) -> bytes:
    encoded = struct.pack(">H", len(cells))
    for cell in cells:
        if cell is None:
            encoded += b"n"
        elif cell is wire.UNCHANGED_TOAST:
            encoded += b"u"
        else:
            encoded += (b"b" if isinstance(cell, wire.Binary) else b"t") + _bytes(cell)
    return encoded
