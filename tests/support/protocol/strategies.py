"""Hypothesis strategies for messages of every protocol version, outside and inside a stream."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
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
    TupleData,
    Type,
    Update,
)

int32s = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(LSN)
times = st.integers(-(2**63), 2**63 - 1)
# Any bytes without NUL: names need not be UTF-8 where the database is SQL_ASCII.
names = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.binary(max_size=12).map(lambda name: name.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
)
cells: SearchStrategy[Cell] = st.one_of(
    st.none(), st.just(UNCHANGED_TOAST), st.binary(max_size=40), st.binary(max_size=40).map(Binary)
)
tuples: SearchStrategy[TupleData] = st.lists(cells, max_size=8).map(tuple)
old_kinds: SearchStrategy[OldKind] = st.sampled_from(["K", "O"])
columns = st.builds(Column, st.booleans(), names, int32s, st.integers(-(2**31), 2**31 - 1))


def messages(xids: SearchStrategy[int | None]) -> SearchStrategy[Message]:
    """Draw any message; those that can stand in a stream have one of `xids`."""
    relation_columns = st.lists(columns, max_size=6).map(tuple)
    return st.one_of(
        st.builds(Begin, lsns, times, int32s),
        st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=40), xids),
        st.builds(Commit, st.just(0), lsns, lsns, times),
        st.builds(Origin, lsns, names),
        st.builds(Relation, int32s, names, names, st.sampled_from("dnfi"), relation_columns, xids),
        st.builds(Type, int32s, names, names, xids),
        st.builds(Insert, int32s, tuples, xids),
        st.builds(Update, int32s, st.none(), st.none(), tuples, xids),
        st.builds(Update, int32s, old_kinds, tuples, tuples, xids),
        st.builds(Delete, int32s, old_kinds, tuples, xids),
        st.builds(Truncate, st.lists(int32s, max_size=5).map(tuple), st.integers(0, 3), xids),
        st.builds(StreamStart, int32s, st.booleans()),
        st.builds(StreamStop),
        st.builds(StreamCommit, int32s, st.just(0), lsns, lsns, times),
        st.builds(StreamAbort, int32s, int32s),
        st.builds(StreamAbort, int32s, int32s, lsns, times),
        st.builds(BeginPrepare, lsns, lsns, times, int32s, names),
        st.builds(Prepare, st.just(0), lsns, lsns, times, int32s, names),
        st.builds(CommitPrepared, st.just(0), lsns, lsns, times, int32s, names),
        st.builds(RollbackPrepared, st.just(0), lsns, lsns, times, times, int32s, names),
        st.builds(StreamPrepare, st.just(0), lsns, lsns, times, int32s, names),
    )
