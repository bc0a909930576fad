"""A table as delta-rs reads it, if it can: Spark takes a second for each small table.

Log and data files are read by delta-rs's own code, none of it by pgdelta's reader.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pipeline.delta.store.store import is_store
from tests.support.comparable.arrow import comparable_rows
from tests.support.comparable.source import Rows

_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def open_table(path: str) -> DeltaTable | None:
    """Return the newest version of a table, or None if there is none that delta-rs can read."""
    # delta-rs takes a path for a URL, which has other meanings for these
    if is_store(path) or set(path) & set("%#?") or not DeltaTable.is_deltatable(path):
        return None
    table = DeltaTable(path)
    protocol = table.protocol()
    if protocol.min_reader_version == 1:
        return table
    features = protocol.reader_features  # none of version 2, which is column mapping
    return table if features is not None and set(features) <= _FEATURES else None


def column_types(table: DeltaTable) -> dict[str, str]:
    """Return the types of the columns as Spark's `simpleString` names them."""
    fields = json.loads(table.schema().to_json())["fields"]
    return {field["name"]: type_name(field["type"]) for field in fields}


def type_name(kind: Any) -> str:
    """Return a type of a log as Spark's `simpleString` names it."""
    if isinstance(kind, str):
        return _NAMES.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])},{type_name(kind['valueType'])}>"
    inner = ",".join(f"{field['name']}:{type_name(field['type'])}" for field in kind["fields"])
    return f"struct<{inner}>"


def table_rows(table: DeltaTable, columns: Sequence[str]) -> Rows:
    """Return the multiset of a table's rows over `columns`, as comparable values."""
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    return comparable_rows(query(table, f"SELECT {names} FROM rows"))


def query(table: DeltaTable, statement: str) -> pa.Table:
    """Return the result of a SELECT from `rows`, which are those of the table."""
    return pa.table(QueryBuilder().register("rows", table).execute(statement).read_all())
