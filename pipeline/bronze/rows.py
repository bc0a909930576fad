"""Rows of `bronze/changes`: row messages side by side, truncations and logical messages one by one.

A row message says its relation and its tuples; what it does not say (position, transaction, relation version,
origin) stands beside it in `Rows`. The rows of a transaction that has not ended yet have no end LSN.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.binary import RowTypes
from pipeline.bronze.columnar.decode import decode_rows
from pipeline.bronze.relation_versions import RelationVersion
from pipeline.bronze.schema import CHANGES, STREAMED, storable
from pipeline.errors import ProtocolError
from pipeline.protocol.events import (
    Began,
    BeganPrepare,
    Committed,
    StreamCommitted,
    StreamedTruncation,
    StreamPrepared,
    Truncation,
)
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import LogicalMessage, Origin

_EPOCH = 946_684_800_000_000  # 2000-01-01 UTC, in microseconds since 1970

Transaction: TypeAlias = Began | Committed | BeganPrepare | StreamCommitted | StreamPrepared
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
    spans = np.array([span for span, _ in transactions], np.int64)

    def transaction_of(row: int) -> str:
        _, transaction = transactions[int(np.searchsorted(np.cumsum(spans), row, side="right"))]
        return f"committed at {LSN(transaction_values(transaction)['commit_lsn'])}"

    columns = _row_columns(rows, versions, transaction_of, in_stream=False)
    of_row = pa.array(np.repeat(np.arange(len(spans)), spans))
    values = [transaction_values(transaction) for _, transaction in transactions]
    for field_name in values[0]:
        of_transaction = [value[field_name] for value in values]
        columns[field_name] = _array(of_transaction, CHANGES.field(field_name).type).take(of_row)
    return _table(columns, CHANGES, len(rows.messages))


def streamed_table(rows: Rows, versions: Sequence[RelationVersion], xid: int) -> pa.Table:
    """Return the rows of a transaction that is still streaming as Arrow, numbered by their arrival.

    Raises ProtocolError like `changes_table`.
    """
    columns = _row_columns(rows, versions, lambda _: f"{xid}, which streams", in_stream=True)
    return _table(columns, STREAMED, len(rows.messages))


def _table(columns: dict[str, pa.Array], schema: pa.Schema, count: int) -> pa.Table:
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _row_columns(
    rows: Rows,
    versions: Sequence[RelationVersion],
    transaction_of: Callable[[int], str],
    *,
    in_stream: bool,
) -> dict[str, pa.Array]:
    of_row = np.array(rows.versions, np.int32)
    widths = np.array([len(v.relation.columns) for v in versions], np.int64)[of_row]

    def name_of(row: int) -> str:
        version = versions[rows.versions[row]]
        return f"for {version.schema_name}.{version.table_name} in the transaction {transaction_of(row)}"

    def name(name_of: Callable[[RelationVersion], str]) -> pa.Array:
        names = pa.array([name_of(v) for v in versions], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(of_row), names).cast(pa.string())

    row_types = RowTypes(of_row, [(version.relation, version.types) for version in versions])
    decoded = decode_rows(rows.messages, widths, name_of, in_stream=in_stream, row_types=row_types)
    columns: dict[str, pa.Array] = {
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
    if decoded.subxid is not None:
        columns["subxid"] = pa.array(decoded.subxid)
    return columns


def others_table(rows: Sequence[OtherRow], schema: pa.Schema = CHANGES) -> pa.Table:
    """Return truncations and logical messages as Arrow."""
    try:
        return pa.Table.from_pylist(list(rows), schema)
    except (OverflowError, pa.ArrowInvalid):
        raise _beyond_63_bits() from None


def truncation_rows(
    truncation: Truncation | StreamedTruncation, first_ordinal: int, versions: Sequence[RelationVersion]
) -> list[OtherRow]:
    """Return one row per truncated relation, whose versions are given in the same order."""
    return [
        {
            "relation_id": version.relation.oid,
            "relation_version": version.id,
            "schema_name": version.schema_name,
            "table_name": version.table_name,
            **_origin(truncation.origin),
            "ordinal": first_ordinal + offset,
            "op": "T",
            "truncate_options": truncation.options,
        }
        for offset, version in enumerate(versions)
    ]


def message_row(message: LogicalMessage, sequence: int) -> OtherRow:
    """Return the row of a logical message; one outside any transaction has its own LSN for positions."""
    row: OtherRow = {
        "ordinal": sequence,
        "op": "M",
        "prefix": storable(message.prefix),
        "content": message.content,
        "transactional": message.transactional,
        "message_lsn": message.lsn,
    }
    if not message.transactional:
        row |= {"commit_lsn": message.lsn, "end_lsn": message.lsn}
    return row


def prepared_row(prepared: BeganPrepare | StreamPrepared) -> OtherRow:
    """Return the row that stands for a prepared transaction, be it empty, beside the rows that it wrote."""
    return {"op": "P", "ordinal": -1, **transaction_values(prepared)}


def transaction_values(transaction: Transaction) -> OtherRow:
    """Return what a transaction says of each of its rows.

    One that is prepared says the positions and the time of its PREPARE, until it is decided.
    """
    end: LSN | None = None
    gid: str | None = None
    match transaction:
        case BeganPrepare() | StreamPrepared():
            commit, end, time = transaction.prepare_lsn, transaction.end_lsn, transaction.prepare_time
            gid = storable(transaction.gid)
        case Began():
            commit, time = transaction.commit_lsn, transaction.commit_time
        case _:
            commit, end, time = transaction.commit_lsn, transaction.end_lsn, transaction.commit_time
    return {
        "xid": transaction.xid,
        "commit_lsn": commit,
        "end_lsn": end,
        "commit_time": time + _EPOCH,
        "gid": gid,
    }


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        raise _beyond_63_bits() from None


def _beyond_63_bits() -> ProtocolError:
    return ProtocolError(
        "a transaction or logical message has a position or time that no server has: 64 bits"
    )


def _origin(origin: Origin | None) -> OtherRow:
    return {"origin": storable(origin.name), "origin_lsn": str(origin.commit_lsn)} if origin else {}
