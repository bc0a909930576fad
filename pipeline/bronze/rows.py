"""Rows of `bronze/changes`: row messages side by side, truncations and logical messages one by one.

A row message says its relation and its tuples; what it does not say (position, transaction, relation version,
origin) stands beside it in `Rows`. The rows of a transaction that has not ended yet have no end LSN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.bronze.columns import decode_rows
from pipeline.bronze.schema import CHANGES, storable
from pipeline.bronze.versions import RelationVersion
from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Origin
from pipeline.protocol.transactions import Began, Committed, Emitted, Truncation

_EPOCH = 946_684_800_000_000  # 2000-01-01 UTC, in microseconds since 1970

Transaction = Began | Committed
OtherRow = dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Row messages of one transaction or of many, side by side with what the messages do not say."""

    messages: list[bytes] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # indexes into the spool's relation versions
    origins: list[Origin | None] = field(default_factory=list)
    byte_count: int = 0

    def part(self, rows: slice) -> "Rows":
        """Return some of the rows."""
        messages = self.messages[rows]
        return Rows(
            messages, self.ordinals[rows], self.versions[rows], self.origins[rows], sum(map(len, messages))
        )


def changes_table(
    rows: Rows, versions: Sequence[RelationVersion], transactions: Sequence[tuple[int, Transaction]]
) -> pa.Table:
    """Return the rows as Arrow; `transactions` are those of the rows in order, each with its row count.

    Raises ProtocolError, naming relation and transaction, for the first message that is malformed.
    """
    count = len(rows.messages)
    of_row = np.array(rows.versions, np.int32)
    spans = np.array([span for span, _ in transactions], np.int64)
    widths = np.array([len(v.relation.columns) for v in versions], np.int64)[of_row]

    def name_of(row: int) -> str:
        _, transaction = transactions[int(np.searchsorted(np.cumsum(spans), row, side="right"))]
        version = versions[rows.versions[row]]
        table = f"{version.schema_name}.{version.table_name}"
        return f"for {table} in the transaction committed at {LSN(transaction.commit_lsn)}"

    def name(name_of: Callable[[RelationVersion], str]) -> pa.Array:
        names = pa.array([name_of(v) for v in versions], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(of_row), names).cast(pa.string())

    decoded = decode_rows(rows.messages, widths, name_of)
    columns: dict[str, pa.Array] = {
        field_name: pa.array(np.repeat(_int64(values), spans)).cast(CHANGES.field(field_name).type)
        for field_name, values in _transaction_columns([t for _, t in transactions]).items()
    }
    columns |= {
        "ordinal": pa.array(rows.ordinals, pa.int64()),
        "op": decoded.op,
        "relation_id": pa.array(decoded.relation_id),
        "relation_version": pa.array(np.array([v.id for v in versions], np.int64)[of_row]),
        "schema_name": name(lambda v: v.schema_name),
        "table_name": name(lambda v: v.table_name),
        "old_kind": decoded.old_kind,
        "old": decoded.old,
        "new": decoded.new,
        "unsent": decoded.unsent,
        "raw_old": decoded.raw_old,
        "raw_new": decoded.raw_new,
    }
    if any(rows.origins):
        origins = [_origin(origin) for origin in rows.origins]
        for field_name in ("origin", "origin_lsn"):
            columns[field_name] = pa.array([o.get(field_name) for o in origins], pa.string())
    return pa.Table.from_arrays(
        [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in CHANGES], schema=CHANGES
    )


def others_table(rows: Sequence[OtherRow]) -> pa.Table:
    """Return truncations and logical messages as Arrow."""
    try:
        return pa.Table.from_pylist(list(rows), CHANGES)
    except (OverflowError, pa.ArrowInvalid):
        raise _beyond_63_bits() from None


def truncation_rows(truncation: Truncation, versions: Sequence[RelationVersion]) -> list[OtherRow]:
    """Return one row per truncated relation, whose versions are given in the same order."""
    return [
        {
            "relation_id": version.relation.oid,
            "relation_version": version.id,
            "schema_name": version.schema_name,
            "table_name": version.table_name,
            **_origin(truncation.origin),
            "ordinal": truncation.ordinal + offset,
            "op": "T",
            "truncate_options": truncation.options,
        }
        for offset, version in enumerate(versions)
    ]


def message_row(emitted: Emitted) -> OtherRow:
    """Return the row of a logical message; one outside any transaction has its own LSN for positions."""
    message = emitted.message
    row: OtherRow = {
        "ordinal": emitted.sequence,
        "op": "M",
        "prefix": storable(message.prefix),
        "content": message.content,
        "transactional": message.transactional,
        "message_lsn": message.lsn,
    }
    if not message.transactional:
        row |= {"commit_lsn": message.lsn, "end_lsn": message.lsn}
    return row


def transaction_values(transaction: Transaction) -> OtherRow:
    """Return what a transaction says of each of its rows."""
    return {name: values[0] for name, values in _transaction_columns([transaction]).items()}


def _transaction_columns(transactions: Sequence[Transaction]) -> dict[str, list[int]]:
    columns: dict[str, list[int]] = {
        "commit_lsn": [t.commit_lsn for t in transactions],
        "xid": [t.xid for t in transactions],
        "commit_time": [t.commit_time + _EPOCH for t in transactions],
    }
    if isinstance(transactions[0], Committed):
        columns["end_lsn"] = [t.end_lsn for t in transactions if isinstance(t, Committed)]
    return columns


def _int64(values: Sequence[int]) -> npt.NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise _beyond_63_bits() from None


def _beyond_63_bits() -> ProtocolError:
    return ProtocolError(
        "a transaction or logical message has a position or time that no server has: 64 bits"
    )


def _origin(origin: Origin | None) -> OtherRow:
    return {"origin": storable(origin.name), "origin_lsn": str(origin.commit_lsn)} if origin else {}
