"""A message as one line of text, in the words of `tests/captures/scenarios.py`."""

from collections.abc import Mapping

from pipeline.protocol.messages import (
    UNSENT,
    Begin,
    Binary,
    Cell,
    Column,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    Truncate,
    Tuple,
    Type,
    Update,
)


def tell(message: Message, relations: Mapping[int, str], types: Mapping[int, str]) -> str:
    """Return what the message says, with the names that the catalog has for its oids."""
    match message:
        case Begin() | Commit():
            return type(message).__name__
        case Origin():
            return f"Origin {message.name} {message.commit_lsn}"
        case Relation():
            columns = ", ".join(_column(column, types) for column in message.columns)
            return f"Relation {message.qualified_name} {message.replica_identity} ({columns})"
        case Type():
            return f"Type of {types[message.oid]}: {message.namespace or 'pg_catalog'}.{message.name}"
        case Insert():
            return f"Insert {relations[message.oid]} {_tuple(message.new)}"
        case Update():
            old = "" if message.old is None else f"{message.old_kind} {_tuple(message.old)} "
            return f"Update {relations[message.oid]} {old}→ {_tuple(message.new)}"
        case Delete():
            return f"Delete {relations[message.oid]} {message.old_kind} {_tuple(message.old)}"
        case Truncate():
            return f"Truncate {', '.join(relations[oid] for oid in message.oids)} {message.options}"
        case LogicalMessage():
            kind = "transactional" if message.transactional else "non-transactional"
            return f"Message {message.prefix} {kind}: {message.content.hex()}"


def _column(column: Column, types: Mapping[int, str]) -> str:
    modifier = "" if column.type_modifier == -1 else f" {column.type_modifier}"
    return f"{column.name} {types[column.type_oid]}{modifier}{' *' if column.is_key else ''}"


def _tuple(cells: Tuple) -> str:
    return f"({', '.join(map(_cell, cells))})"


def _cell(cell: Cell) -> str:
    if cell is None:
        return "NULL"
    if cell is UNSENT:
        return "unsent"
    if isinstance(cell, Binary):
        return f"binary {cell.hex()}"
    text = cell.decode("utf-8", "surrogateescape")
    if len(text) > 100 and len(set(text)) == 1:
        return f"'{text[0]}'·{len(text)}"
    return f"'{text}'"
