"""Write a message as one JSON object, with all fields under their names in the protocol and complete values.

No I/O. LSNs and times are text. A cell is a string, null, `{"sent": false}` for unchanged TOAST, or
`{"base64": …, "format": "binary"}`; a text value that is not UTF-8 has the format "text". Names that are not
UTF-8 keep their other bytes as lone surrogates, which JSON escapes. `transaction` is the message's
transaction; `xid` is the message's own field, which messages of streams have.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import (
    CASCADE,
    RESTART_IDENTITY,
    UNCHANGED_TOAST,
    Binary,
    Cell,
    Relation,
    Truncate,
)
from pipeline.tail.selection import TailMessage
from pipeline.tail.text_format import TypeName, kind_of, time_text


class JsonFormat:
    """Write messages as JSON objects."""

    def __init__(self, type_name: TypeName, *, has_values: bool = True) -> None:
        """Leave out the values of rows and the contents of messages unless `has_values`."""
        self._type_name = type_name
        self._has_values = has_values

    def write(self, tail_message: TailMessage) -> str:
        """Return the object of a message on one line, in ASCII."""
        return json.dumps(self._fields_of(tail_message))

    def write_malformed(self, data: bytes) -> str:
        """Return the object of a malformed or illegal message."""
        content = {"base64": b64encode(data).decode()} if self._has_values else {}
        return json.dumps({"message": "Undecodable", "length": len(data), **content})

    def _fields_of(self, tail_message: TailMessage) -> dict[str, Any]:
        """Return the message's kind, its transaction, its tables and all its fields."""
        message, frame, relations = tail_message.message, tail_message.frame, tail_message.relations
        found: dict[str, Any] = {"message": kind_of(message)}
        if frame is not None:
            found["transaction"] = {
                "xid": frame.xid,
                "lsn": None if frame.lsn is None else str(frame.lsn),
                "time": None if frame.time is None else _time(frame.time),
            }
        if isinstance(message, Truncate):
            found["tables"] = [{**_table(relation), "oid": relation.oid} for relation in relations]
            found["cascade"] = bool(message.options & CASCADE)
            found["restart_identity"] = bool(message.options & RESTART_IDENTITY)
        elif relations and not isinstance(message, Relation):
            found.update(_table(relations[0]))
        for field in fields(message):
            value = getattr(message, field.name)
            if field.name in ("old", "new"):
                if self._has_values:
                    found[field.name] = None if value is None else _row(relations[0], value)
            elif field.name == "content":
                found["length"] = len(value)
                if self._has_values:
                    found["content"] = _cell(value)
            elif field.name == "columns":
                found["columns"] = [
                    {
                        "name": column.name,
                        "type": self._type_name(column.type_oid, column.type_modifier),
                        "type_oid": column.type_oid,
                        "type_modifier": column.type_modifier,
                        "is_key": column.is_key,
                    }
                    for column in value
                ]
            elif isinstance(value, LSN):
                found[field.name] = str(value)
            elif field.name.endswith("_time") and value is not None:
                found[field.name] = _time(value)
            else:
                found[field.name] = value
        return found


def _time(microseconds: int) -> str:
    return time_text(microseconds).replace(" ", "T")


def _table(relation: Relation) -> dict[str, str]:
    return {"schema": relation.namespace or "pg_catalog", "table": relation.name}


def _row(relation: Relation, cells: Iterable[Cell]) -> dict[str, Any]:
    return {column.name: _cell(cell) for column, cell in zip(relation.columns, cells, strict=False)}


def _cell(cell: Cell) -> Any:
    if cell is None:
        return None
    if cell is UNCHANGED_TOAST:
        return {"sent": False}
    if not isinstance(cell, Binary):
        try:
            return cell.decode("utf-8")
        except UnicodeDecodeError:
            pass
    form = "binary" if isinstance(cell, Binary) else "text"
    return {"base64": b64encode(cell).decode(), "format": form}
