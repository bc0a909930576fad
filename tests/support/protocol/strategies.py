"""Hypothesis strategies for messages of every protocol version, outside and inside a stream."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pipeline.protocol import messages as wire
from pipeline.protocol.lsn import LSN

int32s = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1).map(LSN)
times = st.integers(-(2**63), 2**63 - 1)
# Any bytes without NUL: names need not be UTF-8 where the database is SQL_ASCII.
names = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
    st.binary(max_size=12).map(lambda name: name.replace(b"\0", b"").decode("utf-8", "surrogateescape")),
)
cells: SearchStrategy[wire.Cell] = st.one_of(
    st.none(), st.just(wire.UNCHANGED_TOAST), st.binary(max_size=40), st.binary(max_size=40).map(wire.Binary)
)
tuples: SearchStrategy[wire.TupleData] = st.lists(cells, max_size=8).map(tuple)
old_kinds: SearchStrategy[wire.OldKind] = st.sampled_from(["K", "O"])
columns = st.builds(wire.Column, st.booleans(), names, int32s, st.integers(-(2**31), 2**31 - 1))


def messages(xids: SearchStrategy[int | None]) -> SearchStrategy[wire.Message]:
    """Draw any message; those that can stand in a stream have one of `xids`."""
    relation_columns = st.lists(columns, max_size=6).map(tuple)
    return st.one_of(
        st.builds(wire.Begin, lsns, times, int32s),
        st.builds(wire.LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=40), xids),
        st.builds(wire.Commit, st.just(0), lsns, lsns, times),
        st.builds(wire.Origin, lsns, names),
        st.builds(wire.Relation, int32s, names, names, st.sampled_from("dnfi"), relation_columns, xids),
        st.builds(wire.Type, int32s, names, names, xids),
        st.builds(wire.Insert, int32s, tuples, xids),
        st.builds(wire.Update, int32s, st.none(), st.none(), tuples, xids),
        st.builds(wire.Update, int32s, old_kinds, tuples, tuples, xids),
        st.builds(wire.Delete, int32s, old_kinds, tuples, xids),
        st.builds(wire.Truncate, st.lists(int32s, max_size=5).map(tuple), st.integers(0, 3), xids),
        st.builds(wire.StreamStart, int32s, st.booleans()),
        st.builds(wire.StreamStop),
        st.builds(wire.StreamCommit, int32s, st.just(0), lsns, lsns, times),
        st.builds(wire.StreamAbort, int32s, int32s),
        st.builds(wire.StreamAbort, int32s, int32s, lsns, times),
        st.builds(wire.BeginPrepare, lsns, lsns, times, int32s, names),
        st.builds(wire.Prepare, st.just(0), lsns, lsns, times, int32s, names),
        st.builds(wire.CommitPrepared, st.just(0), lsns, lsns, times, int32s, names),
        st.builds(wire.RollbackPrepared, st.just(0), lsns, lsns, times, times, int32s, names),
        st.builds(wire.StreamPrepare, st.just(0), lsns, lsns, times, int32s, names),
    )
