"""Transaction ids: one grammar, read as it is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.delta.txn import TxnId, TxnKind, is_partial
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

ids = st.builds(
    lambda pipeline, generation, kind, numbers, table: TxnId(
        pipeline,
        generation,
        kind,
        tuple(numbers[: kind.value.count("{}")]),
        table if "{table}" in kind.value else None,
    ),
    st.text(min_size=1, max_size=20),
    st.integers(1, 2**31),
    st.sampled_from(TxnKind),
    st.lists(st.integers(0, 2**62), min_size=2, max_size=2),
    st.builds(TableName, st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)),
)


@given(ids)
def test_an_id_is_read_as_it_is_written(txn: TxnId) -> None:
    assert TxnId.parse(str(txn)) == txn


@pytest.mark.parametrize(
    ("txn", "text"),
    [
        (TxnId("shop"), "pgdelta:shop:1"),
        (TxnId("shop", 2), "pgdelta:shop:2"),
        (TxnId("shop").of(TxnKind.PART, 3), "pgdelta:shop:1#3"),
        (TxnId("shop").of(TxnKind.COPIED, 17), "pgdelta:shop:1#copied/17"),
        (TxnId("shop").of(TxnKind.KEY_RANGES), "pgdelta:shop:1#keys"),
        (TxnId("shop").of(TxnKind.REBUILD), "pgdelta:shop:1/rebuild"),
        (TxnId("shop").of(TxnKind.BACKFILL, 16385, 4), "pgdelta:shop:1+16385.4"),
        (TxnId("shop").of(TxnKind.COPY_CHUNKS, 17), "pgdelta:shop:1#copy/17"),
        (TxnId("shop").of(TxnKind.CHUNKS, table=TableName("public", "7")), "pgdelta:shop:1#copy/public.7"),
        (
            TxnId("shop").of(TxnKind.CHUNKS, table=TableName("a.b", "c#/é")),
            "pgdelta:shop:1#copy/a%2Eb.c%23%2F%C3%A9",
        ),
        (TxnId("shop").of(TxnKind.PREPARED), "pgdelta:shop:1#prepared"),
        (TxnId("shop").of(TxnKind.EPOCH), "pgdelta:shop:1#epoch"),
    ],
)
def test_each_kind_has_its_text(txn: TxnId, text: str) -> None:
    assert str(txn) == text
    assert TxnId.parse(text) == txn
    assert txn.offset_id == TxnId("shop", txn.generation)
    assert txn.advances is (txn.kind is TxnKind.OFFSET)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pgdelta",
        "pgdelta:shop",
        "pgdelta:shop:",
        "pgdelta:shop:x",
        "pgdelta:shop:1#",
        "pgdelta:shop:1#copy",
        "pgdelta:shop:1#unknown",
        "pgdelta:shop:1+4",
        "pgdelta:shop:1/rebuild2",
        "Pgdelta:shop:1",
        "streaming-query",
    ],
)
def test_what_is_not_in_the_grammar_is_not_ours(text: str) -> None:
    assert TxnId.parse(text) is None


def test_a_table_is_partial_until_its_offset_reaches_that_of_its_parts() -> None:
    whole = TxnId("shop")
    for kind in TxnKind:
        is_part = kind in (TxnKind.PART, TxnKind.COPIED)
        assert kind.is_part is is_part
        part = whole.of(kind, *range(kind.value.count("{}")))
        assert is_partial({part: LSN(7)}) is is_part
        assert is_partial({part: LSN(7), whole: LSN(6)}) is is_part
        assert not is_partial({part: LSN(7), whole: LSN(7)})
    other = TxnId("shop", 2)
    assert is_partial({whole.of(TxnKind.PART, 1): LSN(7), other: LSN(9)})
