"""Values of protected columns are replaced column by column as they are one by one."""

import hashlib
import hmac
from random import Random

import numpy as np
import pytest

from pipeline.bronze.columnar.decode import decode_copied, decode_rows
from pipeline.bronze.columnar.protected_values import RowRules, hash_all
from pipeline.bronze.protection import protected_text
from pipeline.postgres.snapshot.read_table import NULL_MARK, ROW_END, VALUE_END, Block
from pipeline.protected_columns import EXCLUDE, LAST4_MASK, NULL_MASK, TEXT_MASK
from pipeline.protocol.messages import UNCHANGED_TOAST, Delete, Insert, TupleData, Update
from tests.support.protocol.encode import encode
from tests.support.seeds import seed_of_run

KEY = b"the key of the tests"
HASH = "hmac-sha256 0badcafe"
ALL = (None, EXCLUDE, HASH, LAST4_MASK, NULL_MASK, f"{TEXT_MASK}***", HASH)
PLAIN = (None,) * len(ALL)
VALUES = (b"", b"x", b"seven77", b"eight888", "grün-weiß".encode(), b"\xff\xfe not UTF-8", b"long" * 50)


def wanted(cells: TupleData | None, rules: tuple[str | None, ...]) -> list[object] | None:
    """Return the texts of a tuple, as bytes; what is not sent is UNCHANGED_TOAST."""
    if cells is None:
        return None
    found: list[object] = []
    for value, rule in zip(cells, rules, strict=True):
        if rule == EXCLUDE:
            continue
        if rule is None:
            found.append(value)
        elif rule == NULL_MASK or value is None:
            found.append(None)
        elif isinstance(value, bytes):
            found.append(protected_text(value, rule, KEY))
        else:
            found.append(value)
    return found


@pytest.mark.promise("protected columns")
def test_each_cell_of_every_message_is_replaced() -> None:
    rng = Random(seed_of_run())
    relations = [rng.choice((0, 1)) for _ in range(300)]
    rows: list[Insert | Update | Delete] = []
    for _ in relations:
        old, new = (tuple(rng.choice((None, UNCHANGED_TOAST, *VALUES)) for _ in ALL) for _ in range(2))
        kind = rng.choice("IUOD")
        if kind == "I":
            rows.append(Insert(1, new))
        elif kind == "D":
            rows.append(Delete(1, "O", old))
        else:
            rows.append(Update(1, "O" if kind == "O" else None, old if kind == "O" else None, new))
    rules = RowRules(np.array(relations, np.int32), (ALL, None), KEY)
    widths = np.full(len(rows), len(ALL), np.int64)
    decoded = decode_rows([encode(row) for row in rows], widths, row_rules=rules)
    sides = (("old", decoded.old, decoded.raw_old), ("new", decoded.new, decoded.raw_new))
    unsent = decoded.unchanged_toast.to_pylist()
    for name, texts, raw in sides:
        for n, (found, octets) in enumerate(zip(texts.to_pylist(), raw.to_pylist(), strict=True)):
            of = wanted(getattr(rows[n], name, None), ALL if relations[n] == 0 else PLAIN)
            if of is None:
                assert found is None
                continue
            if name == "new":
                assert (unsent[n] or []) == [i for i, value in enumerate(of) if value is UNCHANGED_TOAST]
            shown = octets or [text if text is None else text.encode() for text in found]
            assert shown == [None if value is UNCHANGED_TOAST else value for value in of]


@pytest.mark.promise("protected columns")
@pytest.mark.parametrize("as_rows", [False, True])
def test_copied_rows_are_replaced_too(as_rows: bool) -> None:
    rng = Random(seed_of_run())
    kept = tuple(rule for rule in ALL if rule != EXCLUDE)  # the server leaves the others out
    rows = [tuple(rng.choice((None, *VALUES)) for _ in kept) for _ in range(100)]
    text = b"".join(
        b"".join((NULL_MARK.encode() if v is None else v) + VALUE_END.encode() for v in row)
        + ROW_END.encode()
        for row in rows
    )
    block = Block(len(rows), rows=rows) if as_rows else Block(len(rows), text)
    rules = RowRules(np.zeros(len(rows), np.int32), (kept,), KEY)
    found, raw = decode_copied(block, len(kept), rules)
    for row, texts, octets in zip(rows, found.to_pylist(), raw.to_pylist(), strict=True):
        shown = octets or [text if text is None else text.encode() for text in texts]
        assert shown == wanted(row, kept)


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 64, b"long" * 40])
def test_hashes_are_those_of_rfc_2104(key: bytes) -> None:
    found = hash_all(VALUES, key).decode()
    assert found == "".join(hmac.new(key, value, hashlib.sha256).hexdigest() for value in VALUES)
