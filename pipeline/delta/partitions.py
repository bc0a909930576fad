r"""The partitions of a Delta table: their values as texts, the folders of their files, and rows by partition.

The values of a table's partition columns are in the log, once for each file, and not in the file. Texts and
folders are as Spark writes them, so `p=a%2Fb/part-….parquet` has rows whose `p` is `a/b`. The log cannot
tell the empty text from NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.delta.features import WIDENED
from pipeline.delta.schema import TableSchema, arrow_ddl
from pipeline.errors import LakeError
from pipeline.partition_folders import escaped

if TYPE_CHECKING:
    from pipeline.delta.table_log import Snapshot

_TYPES = frozenset({"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "DATE"})
_OTHER_TYPES = ("DECIMAL(", "TIMESTAMP")
_QUOTED = ("DATE", "STRING", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Partition:
    """The values of a file's partition columns as texts, in order; none if the table has no such columns."""

    values: tuple[tuple[str, str | None], ...] = ()

    @property
    def folder(self) -> str:
        """The folder of the partition's files below the table's, with a slash at its end if it is another."""
        return "".join(f"{escaped(name)}={escaped(text)}/" for name, text in self.values)


WHOLE_TABLE = Partition()
"""The partition of all rows of a table without partition columns."""


def may_be_partition_column(ddl: str) -> bool:
    """Return whether a column of a type can be a partition column: one text is one value, and the reverse.

    Of `FLOAT` and `DOUBLE`, -0 and NaN have no text that all readers agree on, and `BINARY` has none.
    """
    return ddl in _TYPES or ddl.startswith(_OTHER_TYPES)


def file_columns(snapshot: Snapshot) -> pa.Schema:
    """Return the columns that data files of a table have, by their physical names; none is required."""
    fields = TableSchema.of_json(snapshot.schema_string).fields
    return pa.schema([each.stored for each in fields if each.name not in snapshot.partition_columns])


def physical_partition_columns(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the physical names of the partition columns, in order."""
    if not snapshot.partition_columns:
        return ()
    names = TableSchema.of_json(snapshot.schema_string).physical_names
    return tuple(names[name] for name in snapshot.partition_columns)


def has_plain_files(snapshot: Snapshot) -> bool:
    """Return whether data files have all columns of the table, under their names and with their types."""
    fields = TableSchema.of_json(snapshot.schema_string).fields
    is_plain = all(each.physical_name == each.name and WIDENED not in each.metadata for each in fields)
    return is_plain and not snapshot.partition_columns


def partition_of(columns: Sequence[str], add: Mapping[str, Any]) -> Partition:
    """Return the partition of a file, by its `add` action and the physical names of the partition columns."""
    values = add.get("partitionValues") or {}
    return Partition(tuple((name, values.get(name) or None) for name in columns))


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a partition column that a text shows; raise LakeError if it shows none."""
    if not text:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
            if kind.tz is not None and moment.tzinfo is None:
                moment = moment.replace(tzinfo=timezone.utc)
            return pa.scalar(moment, kind)
        return pa.scalar(text, pa.string()).cast(kind)
    except (ValueError, TypeError, pa.ArrowException):
        raise LakeError(
            f"The log of a table has a partition value that is not a valid {arrow_ddl(kind)}. Rebuild the "
            "table."
        ) from None


def divided(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Yield the rows of each partition with all their columns, in their order; none without rows."""
    if not columns:
        if rows.num_rows:
            yield WHOLE_TABLE, rows
        return
    if not rows.num_rows:
        return
    code: Any = np.zeros(rows.num_rows, np.int64)
    values: list[list[Any]] = []
    for name in columns:
        column = rows.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        encoded = column.dictionary_encode("encode")
        values.append(encoded.dictionary.to_pylist())
        code = code * len(values[-1]) + encoded.indices.to_numpy()
        _, code = np.unique(code, return_inverse=True)
    order = np.argsort(code, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        found = rows if len(part) == rows.num_rows else rows.take(pa.array(part))
        texts = tuple((name, _text(found.column(name)[0].as_py())) for name in columns)
        yield Partition(texts), found


def in_partition(rows: pa.Table, partition: Partition) -> Any:
    """Return which rows belong to a partition, as an Arrow array of BOOLEAN without NULL."""
    import pyarrow.compute as pc

    found: Any = None
    for name, text in partition.values:
        column = rows.column(name)
        if text is None:
            same = pc.is_null(column)
        else:
            same = pc.fill_null(pc.equal(column, partition_value(text, column.type)), False)
        found = same if found is None else pc.and_(found, same)
    return pa.repeat(True, rows.num_rows) if found is None else found


def partition_bounds(snapshot: Snapshot, add: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the value of each partition column in a file, by physical name, as statistics have bounds.

    Numbers are int or Decimal, others texts; NULL is left out.
    """
    if not snapshot.partition_columns:
        return ()
    fields = {each.name: each for each in TableSchema.of_json(snapshot.schema_string).fields}
    columns = [fields[name] for name in snapshot.partition_columns]
    values = partition_of([each.physical_name for each in columns], add).values
    return tuple(
        (name, text if each.ddl.startswith(_QUOTED) else Decimal(text))
        for each, (name, text) in zip(columns, values, strict=True)
        if text is not None and each.ddl != "BOOLEAN"
    )


def _text(value: Any) -> str | None:
    """Return the text of a value as Spark writes it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime():
            if value.tzinfo is not None:
                utc = value.astimezone(timezone.utc).replace(tzinfo=None)
                return utc.isoformat(timespec="microseconds") + "Z"
            return value.isoformat(" ", timespec="microseconds")
        case date():
            return value.isoformat()
    return str(value)
