"""Committed changes in, staged Parquet files out, memory bounded whatever a transaction's size.

Changes of finished transactions go to one file per batch. Changes of a transaction that outgrows a batch
before its commit go to a file of that transaction alone, whose end LSN is filled in when it is known. `seal`
hands over everything that is committed and nothing else, so a batch always ends on a transaction boundary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.bronze.columns import decode_rows
from pipeline.bronze.schema import CHANGES
from pipeline.bronze.staged import Part, Staged, StagedFile, complete, create_file
from pipeline.bronze.versions import RelationVersion
from pipeline.protocol.lsn import INVALID
from pipeline.protocol.messages import Origin
from pipeline.protocol.transactions import Began, Change, Committed, Emitted, Truncation

ROW_LIMIT = 65_536
BYTE_LIMIT = 16 << 20
_EPOCH = 946_684_800_000_000  # 2000-01-01 UTC, in microseconds since 1970


@dataclass(slots=True)
class _Rows:
    """Row messages of one transaction or of many, side by side with what the messages do not say."""

    messages: list[bytes] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    origins: list[Origin | None] = field(default_factory=list)
    byte_count: int = 0


class Spool:
    """Stages the changes of an assembler's events; single-threaded."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions: list[RelationVersion] = []
        self._version_of_oid: dict[int, int] = {}
        self._rows = _Rows()
        self._others: list[dict[str, object]] = []  # truncations and messages: rare, row by row
        self._others_open = 0  # how many of them belong to finished transactions
        self._finished = 0  # how many of _rows belong to finished transactions
        self._transactions: list[tuple[int, Committed]] = []  # (rows, commit) of the finished ones in _rows
        self._whole: StagedFile | None = None
        self._open: StagedFile | None = None
        self._parts: list[Part] = []
        self._began: Began | None = None
        self._end_lsn = INVALID
        self._transaction_count = 0
        self._change_count = 0

    @property
    def pending_rows(self) -> int:
        """Return how many committed rows `seal` would hand over."""
        staged = sum(part.row_count for part in self._parts) + (self._whole.row_count if self._whole else 0)
        return staged + self._finished + self._others_open

    @property
    def has_commits(self) -> bool:
        """Say whether a commit was received since the last seal, be it empty."""
        return self._end_lsn > INVALID

    def describe(self, version: RelationVersion) -> None:
        """Make this version the one that later changes of its relation name."""
        self._version_of_oid[version.relation.oid] = len(self._versions)
        self._versions.append(version)

    def begin(self, began: Began) -> None:
        """Open a transaction."""
        self._began = began

    def add_change(self, change: Change) -> None:
        """Take one row message."""
        rows = self._rows
        rows.messages.append(change.data)
        rows.ordinals.append(change.ordinal)
        rows.versions.append(self._version_of_oid[change.relation.oid])
        rows.origins.append(change.origin)
        rows.byte_count += len(change.data)
        if rows.byte_count >= BYTE_LIMIT or len(rows.messages) >= ROW_LIMIT:
            self._flush()

    def add_truncation(self, truncation: Truncation) -> None:
        """Take a Truncate: one row per relation."""
        for offset, relation in enumerate(truncation.relations):
            version = self._versions[self._version_of_oid[relation.oid]]
            self._others.append(
                {
                    **_named(version),
                    **_origin(truncation.origin),
                    "ordinal": truncation.ordinal + offset,
                    "op": "T",
                    "truncate_options": truncation.options,
                }
            )

    def add_message(self, emitted: Emitted) -> None:
        """Take a logical message; one outside any transaction is committed as it comes."""
        message = emitted.message
        row: dict[str, object] = {
            "ordinal": emitted.sequence,
            "op": "M",
            "prefix": message.prefix,
            "content": message.content,
            "transactional": message.transactional,
            "message_lsn": message.lsn,
        }
        if message.transactional:
            self._others.append(row)
        else:
            row |= {"commit_lsn": message.lsn, "end_lsn": message.lsn}
            self._others.insert(self._others_open, row)
            self._others_open += 1
            self._end_lsn = max(self._end_lsn, message.lsn)

    def commit(self, committed: Committed) -> None:
        """Close the open transaction: its changes are in the next seal."""
        for row in self._others[self._others_open :]:
            row |= _transaction(committed)
        self._others_open = len(self._others)
        if self._open:
            self._flush()
            self._parts.append(complete(self._open.close(), committed.end_lsn))
            self._open = None
        else:
            self._transactions.append((len(self._rows.messages) - self._finished, committed))
            self._finished = len(self._rows.messages)
        self._began = None
        self._end_lsn = committed.end_lsn
        self._transaction_count += 1
        self._change_count += committed.change_count

    def seal(self) -> Staged | None:
        """Hand over all that is committed; None where nothing was received at all."""
        if not self.has_commits:
            return None
        self._flush_finished()
        if self._whole:
            self._parts.append(self._whole.close())
            self._whole = None
        staged = Staged(
            parts=tuple(self._parts),
            end_lsn=self._end_lsn,
            transaction_count=self._transaction_count,
            change_count=self._change_count,
        )
        self._parts, self._end_lsn = [], INVALID
        self._transaction_count = self._change_count = 0
        return staged

    def discard(self) -> None:
        """Drop what is staged and not handed over: the server sends it again."""
        for file in (self._whole, self._open):
            if file:
                file.discard()
        for part in self._parts:
            part.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        """Write out all rows: finished transactions' to the batch's file, the open one's to its own."""
        self._flush_finished()
        if not self._rows.messages:
            return
        self._open = self._open or create_file(self._directory)
        assert self._began is not None
        self._open.write(self._table(self._rows, [(len(self._rows.messages), self._began)]))
        self._rows = _Rows()

    def _flush_finished(self) -> None:
        count = self._finished
        rows, rest = self._rows, _Rows()
        if count < len(rows.messages):
            rest = _Rows(
                rows.messages[count:], rows.ordinals[count:], rows.versions[count:], rows.origins[count:]
            )
            rest.byte_count = sum(map(len, rest.messages))
            rows = _Rows(
                rows.messages[:count], rows.ordinals[:count], rows.versions[:count], rows.origins[:count]
            )
        if count:
            self._whole = self._whole or create_file(self._directory)
            self._whole.write(self._table(rows, self._transactions))
        if self._others_open:
            self._whole = self._whole or create_file(self._directory)
            self._whole.write(pa.Table.from_pylist(self._others[: self._others_open], CHANGES))
        self._rows, self._others = rest, self._others[self._others_open :]
        self._finished = self._others_open = 0
        self._transactions = []

    def _table(
        self, rows: _Rows, transactions: list[tuple[int, Committed]] | list[tuple[int, Began]]
    ) -> pa.Table:
        decoded = decode_rows(rows.messages)
        count = len(rows.messages)
        spans = np.array([span for span, _ in transactions], np.int64)
        repeated = {
            name: np.repeat(np.array(values, np.int64), spans)
            for name, values in _transaction_columns([transaction for _, transaction in transactions]).items()
        }
        versions = np.array(rows.versions, np.int32)
        columns: dict[str, pa.Array] = {
            name: pa.array(values).cast(CHANGES.field(name).type) for name, values in repeated.items()
        }
        columns |= {
            "ordinal": pa.array(rows.ordinals, pa.int64()),
            "op": decoded.op,
            "relation_id": pa.array(decoded.relation_id),
            "relation_version": pa.array(np.array([v.id for v in self._versions], np.int64)[versions]),
            "schema_name": self._names(versions, lambda v: v.relation.namespace or "pg_catalog"),
            "table_name": self._names(versions, lambda v: v.relation.name),
            "old_kind": decoded.old_kind,
            "old": decoded.old,
            "new": decoded.new,
            "unsent": decoded.unsent,
            "raw_old": decoded.raw_old,
            "raw_new": decoded.raw_new,
        }
        if any(rows.origins):
            origins = [_origin(origin) for origin in rows.origins]
            columns["origin"] = pa.array([o.get("origin") for o in origins], pa.string())
            columns["origin_lsn"] = pa.array([o.get("origin_lsn") for o in origins], pa.string())
        return pa.Table.from_arrays(
            [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in CHANGES],
            schema=CHANGES,
        )

    def _names(self, versions: np.ndarray, name_of: Callable[[RelationVersion], str]) -> pa.Array:
        names = pa.array([name_of(version) for version in self._versions], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(versions), names).cast(pa.string())


def _transaction_columns(transactions: Sequence[Committed | Began]) -> dict[str, list[int]]:
    columns: dict[str, list[int]] = {
        "commit_lsn": [t.commit_lsn for t in transactions],
        "xid": [t.xid for t in transactions],
        "commit_time": [t.commit_time + _EPOCH for t in transactions],
    }
    if isinstance(transactions[0], Committed):
        columns["end_lsn"] = [t.end_lsn for t in transactions if isinstance(t, Committed)]
    return columns


def _transaction(committed: Committed) -> dict[str, int]:
    return {name: values[0] for name, values in _transaction_columns([committed]).items()}


def _named(version: RelationVersion) -> dict[str, object]:
    relation = version.relation
    return {
        "relation_id": relation.oid,
        "relation_version": version.id,
        "schema_name": relation.namespace or "pg_catalog",
        "table_name": relation.name,
    }


def _origin(origin: Origin | None) -> dict[str, object]:
    return {"origin": origin.name, "origin_lsn": str(origin.commit_lsn)} if origin else {}
