"""Every message of pgoutput, in the order and with the field names of PostgreSQL's own page.

"Logical Replication Message Formats" can be read beside this file. Positions are `LSN`; times are integers,
microseconds since 2000-01-01 UTC (`POSTGRES_EPOCH`). Strings are UTF-8 where they can be, and keep other
bytes as lone surrogates: `encode("utf-8", "surrogateescape")` gives back what was sent. Values stay bytes:
what they mean depends on the relation. Where `xid` is None by default, the message has one only inside a
streamed transaction (protocol 2 and later), where it names the subtransaction that the message belongs to.
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
    """What stands where a value was not sent, because it is stored out of line (TOAST) and did not change."""

    UNSENT = "u"

    def __repr__(self) -> str:
        """Return the name the value goes by."""
        return self.name


UNCHANGED_TOAST: Final = UnchangedToast.UNSENT


class Binary(bytes):
    """A value in its type's binary format; never equal to the same bytes as text."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Tell whether `other` is the same value in binary format."""
        return isinstance(other, Binary) and bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Tell whether `other` is anything but the same value in binary format."""
        return not self == other

    __hash__ = bytes.__hash__

    def __repr__(self) -> str:
        """Return `Binary(b'…')`."""
        return f"Binary({bytes.__repr__(self)})"


Cell: TypeAlias = bytes | Literal[UnchangedToast.UNSENT] | None
"""A value as text (`bytes`) or in binary format (`Binary`), NULL (`None`), or not sent (`UNSENT`)."""

Tuple: TypeAlias = tuple[Cell, ...]
"""TupleData: one cell for each column of the relation, in its order."""

OldKind: TypeAlias = Literal["K", "O"]
"""`K`: only the columns of the replica identity were sent, the others read NULL; `O`: the whole old row."""


@dataclass(frozen=True, slots=True)
class Begin:
    """`B`: a transaction begins; its changes follow, all of them committed at `final_lsn`."""

    final_lsn: LSN
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`M`: what `pg_logical_emit_message` wrote; if not transactional, it stands outside transactions."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """`C`: the transaction ends; `end_lsn` is what to acknowledge once all of it is kept."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """`O`: the changes that follow came from the replication origin `name`."""

    commit_lsn: LSN
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Relation; `is_key` marks the replica identity (every column where that is FULL)."""

    is_key: bool
    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """`R`: the shape of the rows of table `oid` from here on; `replica_identity` is `d`, `n`, `f` or `i`."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    xid: int | None = None

    @property
    def qualified_name(self) -> str:
        """Return `schema.table`, unquoted; the wire leaves `pg_catalog` empty."""
        return f"{self.namespace or 'pg_catalog'}.{self.name}"


@dataclass(frozen=True, slots=True)
class Type:
    """`Y`: a type that is not built in; of a domain, the oid is its own but the name is its base type's."""

    oid: int
    namespace: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """`I`: a row appears; one that a row filter lets in late may hold cells that were not sent."""

    oid: int
    new: Tuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """`U`: a row changes.

    Replica identity FULL sends the old row (`O`). DEFAULT and USING INDEX send its key (`K`) when a key
    column changed *or* is stored out of line, so a `K` does not mean that the key changed; otherwise
    nothing old is sent, and `new` holds the key. A cell of `new` that was not sent is in `old` under `O`,
    and under `K` for a key column.
    """

    oid: int
    old_kind: OldKind | None
    old: Tuple | None
    new: Tuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """`D`: a row disappears; `old` is its key (`K`) or, under replica identity FULL, all of it (`O`)."""

    oid: int
    old_kind: OldKind
    old: Tuple
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """`T`: tables `oids` are emptied together; `options` is a sum of CASCADE and RESTART_IDENTITY."""

    oids: tuple[int, ...]
    options: int
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """`S`: a segment of the transaction `xid`, which is not committed yet, begins."""

    xid: int
    is_first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """`E`: the segment ends; more of the same transaction may follow in another."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """`c`: the transaction that was streamed is committed."""

    xid: int
    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`A`: subtransaction `subxid` of `xid` is rolled back, or all of it where the two are the same.

    The position and the time come with `streaming = parallel` only; the length of the message tells.
    """

    xid: int
    subxid: int
    abort_lsn: LSN | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """`b`: a transaction that was prepared, and not streamed, begins."""

    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """`P`: the prepared transaction ends; whether it is committed, another message will say."""

    flags: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """`K`: the prepared transaction `gid` is committed, at `commit_lsn`."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """`r`: the prepared transaction `gid`, whose PREPARE ended at `prepare_end_lsn`, is rolled back."""

    flags: int
    prepare_end_lsn: LSN
    rollback_end_lsn: LSN
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """`p`: the transaction that was streamed is prepared."""

    flags: int
    prepare_lsn: LSN
    end_lsn: LSN
    prepare_time: int
    xid: int
    gid: str


TransactionMessage: TypeAlias = (
    Begin | LogicalMessage | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate
)
"""What there is since protocol 1."""

StreamMessage: TypeAlias = StreamStart | StreamStop | StreamCommit | StreamAbort
"""What came with protocol 2."""

PrepareMessage: TypeAlias = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared | StreamPrepare
"""What came with protocol 3."""

Message: TypeAlias = TransactionMessage | StreamMessage | PrepareMessage
