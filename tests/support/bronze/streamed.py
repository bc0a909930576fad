"""Events of streamed transactions."""

from pipeline.protocol.events import StreamCommitted, StreamedChange, StreamStarted
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Insert, Relation
from tests.support.bronze.events import Session, relation, version
from tests.support.protocol.encode import encode

ONE, TWO = relation(1, "one"), relation(2, "two")


def start(session: Session, xid: int, of: Relation | None = None) -> None:
    """Start the first segment of a stream, in which a relation is described, or a later one."""
    session.spool.streams.start(StreamStarted(xid, of is not None))
    if of is not None:
        describe(session, xid, of)


def describe(session: Session, xid: int, of: Relation) -> None:
    session.spool.describe(version(of), xid)


def insert(session: Session, xid: int, subxid: int, value: str, of: Relation = ONE) -> None:
    data = encode(Insert(of.oid, (b"k", value.encode()), subxid))
    session.spool.streams.add_change(StreamedChange(xid, subxid, of, None, data))


def commit(session: Session, xid: int, lsn: int, relations: tuple[Relation, ...] = ()) -> None:
    described = session.spool.streams.described(xid)
    session.spool.commit_stream(StreamCommitted(xid, LSN(lsn), LSN(lsn + 50), 5, relations), described)
