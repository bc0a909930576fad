"""The messages of pgoutput, in the order and with the field names of PostgreSQL's documentation.

Follows the page "Logical Replication Message Formats". LSNs are `LSN`; times are integers, microseconds since
2000-01-01 UTC (`POSTGRES_EPOCH`). Strings are decoded as UTF-8 and keep other bytes as lone surrogates:
`encode("utf-8", "surrogateescape")` returns the original bytes. Values stay bytes, because their meaning
depends on the relation. If `xid` defaults to None, the message has one only inside a streamed transaction
(protocol version 2 and later): the xid of the subtransaction that the message belongs to.
"""

import enum
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final, Literal, TypeAlias

from pipeline.protocol.lsn import LSN

POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=timezone.utc)
POSTGRES_EPOCH_MICROSECONDS: Final = 946_684_800_000_000
"""POSTGRES_EPOCH in microseconds since 1970-01-01 UTC."""

CASCADE: Final = 1
RESTART_IDENTITY: Final = 2


class UnchangedToast(enum.Enum):
    """The type of UNCHANGED_TOAST: a value stored out of line (TOAST) that was not sent, being unchanged."""

    UNCHANGED_TOAST = "u"

    def __repr__(self) -> str:
        """Return `UNCHANGED_TOAST`."""
        return self.name


UNCHANGED_TOAST: Final = UnchangedToast.UNCHANGED_TOAST


class Binary(bytes):
    """A value in its type's binary format; never equal to the same bytes as text."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is the same value in binary format."""
        return isinstance(other, Binary) and bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Return whether `other` is not the same value in binary format."""
        return not self == other

    __hash__ = bytes.__hash__

    def __repr__(self) -> str:
        """Return `Binary(b'…')`."""
        return f"Binary({bytes.__repr__(self)})"


Cell: TypeAlias = bytes | Literal[UnchangedToast.UNCHANGED_TOAST] | None
"""One column of a tuple: text (`bytes`), binary format (`Binary`), NULL (`None`) or `UNCHANGED_TOAST`."""

TupleData: TypeAlias = tuple[Cell, ...]
"""One cell for each column of the relation, in the relation's order."""

OldKind: TypeAlias = Literal["K", "O"]
"""`K`: a key, in which only columns of the replica identity have values; `O`: the complete old tuple."""


@dataclass(frozen=True, slots=True)
class Begin:
    """`B`: start of a transaction that was committed at `final_lsn`; its changes follow."""

    final_lsn: LSN
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`M` (Message): from `pg_logical_emit_message`; if non-transactional, sent between transactions."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """`C`: end of the transaction; acknowledge `end_lsn` once all of its changes are durable."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """`O`: the replication origin `name` of the changes that follow."""

    commit_lsn: LSN
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Relation; `is_key` marks the replica identity (under FULL, every column)."""

    is_key: bool
    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """`R`: the columns of relation `oid` from here on; `replica_identity` is `d`, `n`, `f` or `i`."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Type:
    """`Y`: a type that is not built in; for a domain, `oid` is the domain's, `name` that of its base type."""

    oid: int
    namespace: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """`I`: a new row; when an UPDATE moved it into a row filter, `new` may contain UNCHANGED_TOAST."""

    oid: int
    new: TupleData
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`U`: a changed row.

    Replica identity FULL sends the old tuple (`O`). DEFAULT and USING INDEX send a key (`K`) if a key column
    changed *or* is stored out of line, so `K` does not imply that the key changed; otherwise no old tuple is
    sent, and the key is that in `new`. For a cell of `new` that is UNCHANGED_TOAST, `old` has the value under
    `O`, and under `K` if it is a key column.
    """

    oid: int
    old_kind: OldKind | None
    old: TupleData | None
    new: TupleData
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """`D`: a deleted row; `old` is its key (`K`) or, under REPLICA IDENTITY FULL, all values (`O`)."""

    oid: int
    old_kind: OldKind
    old: TupleData
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """`T`: relations `oids` were truncated together; `options` has the bits CASCADE and RESTART_IDENTITY."""

    oids: tuple[int, ...]
    options: int
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: start of a segment of the streamed transaction `xid`, which has not been committed yet."""

    xid: int
    is_first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: end of the segment; more segments of the transaction may follow."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: the streamed transaction was committed."""

    xid: int
    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: subtransaction `subxid` of `xid` was rolled back, or, if they are equal, the entire transaction.

    LSN and time are sent with `streaming = parallel` only; the length of the message shows whether they were.
    """

    xid: int
    subxid: int
    abort_lsn: LSN | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: start of a prepared transaction that was not streamed."""

    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: end of the prepared transaction; Commit Prepared or Rollback Prepared follows, perhaps later."""

    flags: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """`K`: the prepared transaction `gid` was committed, at `commit_lsn`."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """`r`: the prepared transaction `gid`, whose PREPARE ended at `prepare_end_lsn`, was rolled back."""

    flags: int
    prepare_end_lsn: LSN
    rollback_end_lsn: LSN
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """`p`: the streamed transaction was prepared."""

    flags: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


TransactionMessage: TypeAlias = (
    Begin | LogicalMessage | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate
)
"""The messages of protocol version 1."""

StreamMessage: TypeAlias = StreamStart | StreamStop | StreamCommit | StreamAbort
"""The messages added by protocol version 2."""

PrepareMessage: TypeAlias = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared | StreamPrepare
"""The messages added by protocol version 3."""

Message: TypeAlias = TransactionMessage | StreamMessage | PrepareMessage
