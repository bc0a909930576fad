"""Rows of `bronze/changes`: row messages column by column, truncations and logical messages one by one.

A row message has its relation and its tuples; `RowMessages` has what it does not carry (ordinal, relation
version, origin), and the transaction gives the rest. The rows of a transaction that has not ended yet have no
end LSN.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.bronze.columnar.binary import RowTypes
from pipeline.bronze.columnar.decode import decode_rows
from pipeline.bronze.columnar.protected_values import row_rules
from pipeline.bronze.relations import RelationVersion
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
from pipeline.protocol.messages import POSTGRES_EPOCH_MICROSECONDS, LogicalMessage, Origin, Relation
from pipeline.protocol.plain_transactions import PlainTransactions
from pipeline.table_name import TableName

MAX_OLD_VERSIONS = 256
Transaction: TypeAlias = Began | Committed | BeganPrepare | StreamCommitted | StreamPrepared
OtherRow = dict[str, Any]


class VersionIndex:
    """The relation versions of a run, each under an index that rows name it by."""

    def __init__(self) -> None:
        self.all: list[RelationVersion] = []
        self.in_force: dict[int, int] = {}  # index by oid, outside of streams
        # what is left out is no part of an id, but its place decides how rows are read
        self._by_id: dict[tuple[int, Relation], int] = {}

    def index_of(self, version: RelationVersion) -> int:
        """Return the index of a version, which is added unless an equal one is there."""
        index = self._by_id.setdefault((version.id, version.sent), len(self.all))
        if index == len(self.all):
            self.all.append(version)
        return index

    def forget_old(self) -> None:
        """Keep only the versions in force, if there are many others; no row may name an index before that."""
        if len(self.all) <= 2 * len(self.in_force) + MAX_OLD_VERSIONS:
            return
        kept = {oid: self.all[index] for oid, index in self.in_force.items()}
        self.all, self._by_id = [], {}
        self.in_force = {oid: self.index_of(version) for oid, version in kept.items()}

    def of(self, relations: Sequence[Relation], indexes: Mapping[int, int]) -> list[RelationVersion]:
        """Return the versions of relations, given which index is in force for an oid."""
        return [self.all[indexes[relation.oid]] for relation in relations]


@dataclass(slots=True)
class RowMessages:
    """Row messages of one transaction or of many, and what the messages do not carry."""

    messages: list[bytes] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of VersionIndex
    origins: list[Origin | None] = field(default_factory=list)
    byte_count: int = 0

    def part(self, rows: slice) -> "RowMessages":
        """Return some of the rows."""
        messages = self.messages[rows]
        return RowMessages(
            messages, self.ordinals[rows], self.versions[rows], self.origins[rows], sum(map(len, messages))
        )


@dataclass(slots=True)
class Transactions:
    """The transactions of rows, in order: how many rows each has, and what all of its rows share."""

    row_counts: list[int] = field(default_factory=list)
    values: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ("xid", "commit_lsn", "end_lsn", "commit_time", "gid")}
    )

    @classmethod
    def of(cls, row_count: int, transaction: Transaction) -> "Transactions":
        """Return a single one."""
        transactions = cls()
        transactions.append(row_count, transaction)
        return transactions

    def append(self, row_count: int, transaction: Transaction) -> None:
        """Add the next one."""
        self.row_counts.append(row_count)
        for name, value in transaction_values(transaction).items():
            self.values[name].append(value)

    def extend(self, plain: PlainTransactions) -> None:
        """Add the next ones."""
        self.row_counts += plain.change_counts
        self.values["xid"] += plain.xids
        self.values["commit_lsn"] += plain.commit_lsns
        self.values["end_lsn"] += plain.end_lsns
        self.values["commit_time"] += [time + POSTGRES_EPOCH_MICROSECONDS for time in plain.commit_times]
        self.values["gid"] += repeat(None, len(plain.xids))


def changes_table(
    rows: RowMessages, versions: Sequence[RelationVersion], transactions: Transactions
) -> pa.Table:
    """Return the rows of these transactions as Arrow.

    Raises ProtocolError, which names relation and transaction, for the first malformed message.
    """
    counts = np.array(transactions.row_counts, np.int64)

    def transaction_of(row: int) -> str:
        number = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        return f"committed at {LSN(transactions.values['commit_lsn'][number])}"

    columns = _row_columns(rows, versions, transaction_of, in_stream=False)
    of_row = pa.array(np.repeat(np.arange(len(counts)), counts))
    for name, values in transactions.values.items():
        columns[name] = _array(values, CHANGES.field(name).type).take(of_row)
    return _table(columns, CHANGES, len(rows.messages))


def ended_table(table: pa.Table, end_lsn: LSN) -> pa.Table:
    """Return the rows of a transaction whose end LSN was not known when they were decoded."""
    column = CHANGES.get_field_index("end_lsn")
    ends = pa.repeat(pa.scalar(int(end_lsn), pa.int64()), table.num_rows)
    return table.set_column(column, CHANGES.field(column), ends)


def streamed_table(rows: RowMessages, versions: Sequence[RelationVersion], xid: int) -> pa.Table:
    """Return the rows of an open stream as Arrow, numbered in the order of arrival.

    Raises ProtocolError like `changes_table`.
    """
    columns = _row_columns(rows, versions, lambda _: f"{xid}, which is streamed", in_stream=True)
    return _table(columns, STREAMED, len(rows.messages))


def _table(columns: dict[str, pa.Array], schema: pa.Schema, count: int) -> pa.Table:
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _row_columns(
    rows: RowMessages,
    versions: Sequence[RelationVersion],
    transaction_of: Callable[[int], str],
    *,
    in_stream: bool,
) -> dict[str, pa.Array]:
    of_row = np.array(rows.versions, np.int32)
    widths = np.array([len(v.sent.columns) for v in versions], np.int64)[of_row]

    def name_of(row: int) -> str:
        version = versions[rows.versions[row]]
        return (
            f"for {TableName(version.schema_name, version.table_name)} in the transaction "
            f"{transaction_of(row)}"
        )

    def name(name_of: Callable[[RelationVersion], str]) -> pa.Array:
        names = pa.array([name_of(v) for v in versions], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(of_row), names).cast(pa.string())

    decoded = decode_rows(
        rows.messages,
        widths,
        name_of,
        in_stream=in_stream,
        row_types=RowTypes(of_row, [(version.sent, version.types) for version in versions]),
        row_rules=row_rules(of_row, [version.protection for version in versions]),
    )
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
        "unsent": decoded.unchanged_toast,
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
        raise _out_of_range() from None


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
    """Return the row of a logical message; outside any transaction its own LSN is its commit and end LSN."""
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
    """Return the row of op P that every prepared transaction has, even an empty one."""
    return {"op": "P", "ordinal": -1, **transaction_values(prepared)}


def transaction_values(transaction: Transaction) -> OtherRow:
    """Return the columns that all rows of a transaction share.

    Those of a prepared transaction have the LSNs and the time of its PREPARE until it is committed.
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
        "commit_time": time + POSTGRES_EPOCH_MICROSECONDS,
        "gid": gid,
    }


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        raise _out_of_range() from None


def _out_of_range() -> ProtocolError:
    return ProtocolError("A transaction or logical message has an LSN or time of more than 63 bits.")


def _origin(origin: Origin | None) -> OtherRow:
    return {"origin": storable(origin.name), "origin_lsn": str(origin.commit_lsn)} if origin else {}
