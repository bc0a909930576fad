"""Schemas of Delta tables: Spark's DDL, the JSON in Delta's log and Arrow, one into the other.

A type is a JSON value as Delta's log protocol has it: the name of a primitive type, or an object for arrays,
maps and structs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

PHYSICAL_NAME, COLUMN_ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\w+|[<>(),:])")
# names of Spark's DDL whose name in the log is another one
_NAMES = {
    "bigint": "long",
    "int": "integer",
    "smallint": "short",
    "tinyint": "byte",
    "real": "float",
    "bool": "boolean",
}
_DDL = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
_ARROW: dict[str, pa.DataType] = {
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")

DeltaType = Any
"""A type as JSON: a string, or an object."""


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A column of a table: its name, its type as JSON, and Delta's metadata of it."""

    name: str
    type: DeltaType
    metadata: Mapping[str, Any] = field(default_factory=dict)
    nullable: bool = True

    @property
    def ddl(self) -> str:
        """The type in Spark's DDL, upper case: `DECIMAL(10,2)`, `ARRAY<STRING>`."""
        return type_ddl(self.type)

    @property
    def physical_name(self) -> str:
        """The column's name in data files, which a rename keeps."""
        return str(self.metadata.get(PHYSICAL_NAME, self.name))

    @property
    def stored(self) -> pa.Field:
        """The column as data files have it; no value is required."""
        number = self.metadata.get(COLUMN_ID)
        metadata = None if number is None else {"PARQUET:field_id": str(number)}
        return pa.field(self.physical_name, arrow_type(self.type), metadata=metadata)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table, in order."""

    fields: tuple[SchemaField, ...] = ()

    @staticmethod
    @lru_cache(maxsize=1024)
    def of_json(text: str) -> TableSchema:
        """Return the schema that a `schemaString` of Delta's log describes; none of the empty text."""
        fields = json.loads(text)["fields"] if text else ()
        return TableSchema(
            tuple(
                SchemaField(
                    each["name"], each["type"], each.get("metadata") or {}, each.get("nullable", True)
                )
                for each in fields
            )
        )

    @staticmethod
    @lru_cache(maxsize=1024)
    def of_ddl(ddl: str) -> TableSchema:
        """Return the schema of `name TYPE, …`; raises ValueError for what Spark's DDL has not."""
        return TableSchema(tuple(SchemaField(name, kind) for name, kind in _Parser(ddl).columns()))

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [each.name for each in self.fields]

    @property
    def physical_names(self) -> dict[str, str]:
        """The name of each column in data files, in order."""
        return {each.name: each.physical_name for each in self.fields}

    @property
    def stored(self) -> pa.Schema:
        """The columns as data files have them, those of partitions included."""
        return pa.schema([each.stored for each in self.fields])

    @property
    def json(self) -> str:
        """The `schemaString` of Delta's log."""
        return json.dumps(_struct(self.fields), separators=(",", ":"), ensure_ascii=False)

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of rows, with the columns' logical names."""
        return pa.schema([pa.field(each.name, arrow_type(each.type), each.nullable) for each in self.fields])


def _struct(fields: Sequence[SchemaField]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [
            {"name": f.name, "type": f.type, "nullable": f.nullable, "metadata": dict(f.metadata)}
            for f in fields
        ],
    }


def mentions(kind: DeltaType, name: str) -> bool:
    """Return whether a type is one of this name, or is made of it."""
    if isinstance(kind, str):
        return kind == name
    inner = [kind.get(key) for key in ("elementType", "keyType", "valueType")]
    inner += [each["type"] for each in kind.get("fields", ())]
    return kind["type"] == name or any(mentions(each, name) for each in inner if each is not None)


def arrow_type(kind: DeltaType) -> pa.DataType:
    """Return the Arrow type that Parquet files of Delta have for a type; raise ValueError if none has."""
    if isinstance(kind, str):
        if kind in _ARROW:
            return _ARROW[kind]
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
        raise ValueError(f"no Arrow type for {kind}")
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"])))
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    if kind["type"] == "struct":
        return pa.struct([arrow_field(each) for each in kind["fields"]])
    raise ValueError(f"no Arrow type for {kind['type']}")


def arrow_ddl(kind: pa.DataType) -> str:
    """Return the DDL of the type that `arrow_type` returns an Arrow type for, unless it is nested."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return next((type_ddl(name) for name, known in _ARROW.items() if known == kind), str(kind))


def arrow_field(field: Mapping[str, Any]) -> pa.Field:
    """Return the Arrow field of a field as JSON, with its metadata; raise ValueError as `arrow_type` does."""
    metadata = {key: str(value) for key, value in (field.get("metadata") or {}).items()}
    return pa.field(field["name"], arrow_type(field["type"]), metadata=metadata or None)


def type_ddl(kind: DeltaType) -> str:
    """Return a type in Spark's DDL, upper case."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind.upper().replace(" ", ""))
    if kind["type"] == "array":
        return f"ARRAY<{type_ddl(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{type_ddl(kind['keyType'])},{type_ddl(kind['valueType'])}>"
    return "STRUCT<" + ",".join(f"{f['name']}:{type_ddl(f['type'])}" for f in kind["fields"]).upper() + ">"


class _Parser:
    """Reads `name TYPE, …`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def columns(self) -> list[tuple[str, DeltaType]]:
        found: list[tuple[str, DeltaType]] = []
        if not self._text.strip():
            return found
        while True:
            found.append((self._name(), self._type()))
            if not self._accept(","):
                break
        if self._text[self._position :].strip():
            raise self._error()
        return found

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        return match[1] if match else ""

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            raise self._error()
        self._position = match.end()
        return match[1]

    def _accept(self, token: str) -> bool:
        if self._peek() == token:
            self._next()
            return True
        return False

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._error()

    def _error(self) -> ValueError:
        return ValueError(f"Invalid DDL {self._text!r} at character {self._position + 1}")

    def _name(self) -> str:
        token = self._next()
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _type(self) -> DeltaType:
        name = self._next().lower()
        if name == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return {"type": "array", "elementType": element, "containsNull": True}
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if name == "struct":
            return self._struct_type()
        if name in ("decimal", "dec", "numeric"):
            precision, scale = "10", "0"
            if self._accept("("):
                precision = self._next()
                if self._accept(","):
                    scale = self._next()
                self._expect(")")
            return f"decimal({precision},{scale})"
        return _NAMES.get(name, name)

    def _struct_type(self) -> DeltaType:
        self._expect("<")
        fields: list[SchemaField] = []
        while not self._accept(">"):
            name = self._name()
            self._accept(":")
            fields.append(SchemaField(name, self._type()))
            self._accept(",")
        return _struct(fields)
