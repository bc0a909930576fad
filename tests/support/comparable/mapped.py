"""A table with column mapping or widened columns as its log and Parquet say, none of it by pgdelta's reader.

delta-rs refuses such tables, and Spark takes a second for each small one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.delta.store.store import is_store

_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass
class MappedTable:
    """The newest version of a table: its fields, and its files by path and deletion vector."""

    path: Path
    fields: list[dict[str, Any]] = field(default_factory=list)
    partition_columns: list[str] = field(default_factory=list)
    files: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str) -> MappedTable | None:
        """Return the table, None if there is none here or it has deletion vectors or other types."""
        log = Path(path, "_delta_log")
        if is_store(path) or not any(log.glob("*.json")):
            return None
        table = cls(Path(path))
        checkpoints = sorted(log.glob("*.checkpoint.parquet"))
        start = -1
        if checkpoints:
            start = int(checkpoints[-1].name.partition(".")[0])
            for action in pq.read_table(checkpoints[-1]).to_pylist():
                table._take(action)
        for entry in sorted(log.glob("*.json")):
            if entry.stem.isdigit() and int(entry.stem) > start:
                for line in entry.read_bytes().splitlines():  # not at U+2028
                    table._take(json.loads(line))
        is_readable = all(_type(each["type"]) is not None for each in table.fields)
        has_vectors = any(add.get("deletionVector") for add in table.files.values())
        return table if is_readable and not has_vectors else None

    def _take(self, action: dict[str, Any]) -> None:
        if metadata := action.get("metaData"):
            self.fields = json.loads(metadata["schemaString"])["fields"]
            self.partition_columns = list(metadata["partitionColumns"])
        if add := action.get("add"):
            self.files[_file_key(add)] = add
        if remove := action.get("remove"):
            self.files.pop(_file_key(remove), None)

    def read(self) -> pa.Table:
        """Return all rows under the columns' names and types."""
        schema = pa.schema([(each["name"], _type(each["type"])) for each in self.fields])
        return pa.concat_tables([schema.empty_table(), *map(self._read_file, self.files.values())])

    def _read_file(self, add: dict[str, Any]) -> pa.Table:
        file = pq.read_table(self.path / unquote(add["path"]), partitioning=None)
        partition = dict(add["partitionValues"] or {})
        columns = {}
        for each in self.fields:
            kind, physical = _type(each["type"]), each["metadata"].get(_PHYSICAL, each["name"])
            if each["name"] in self.partition_columns:
                column: Any = pa.repeat(pa.scalar(partition[physical], pa.string()), file.num_rows)
            elif physical in file.column_names:
                column = file.column(physical)
            else:
                column = pa.nulls(file.num_rows, kind)
            columns[each["name"]] = column.cast(kind)
        return pa.table(columns)


_PHYSICAL = "delta.columnMapping.physicalName"


def _type(kind: Any) -> pa.DataType | None:
    if isinstance(kind, dict):
        element = _type(kind["elementType"]) if kind["type"] == "array" else None
        return None if element is None else pa.list_(element)
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[8:-1].split(","))
        return pa.decimal128(precision, scale)
    return _TYPES.get(kind)


def _file_key(action: dict[str, Any]) -> tuple[str, str]:
    """Return the key of a file; the same file with another deletion vector has another key."""
    vector = action.get("deletionVector") or {}
    return action["path"], f"{vector.get('pathOrInlineDv')} {vector.get('offset')}"
