"""A message as one line of text, in the words of `tests/support/captures/scenarios.py`."""

from collections.abc import Mapping

from pipeline.protocol import messages as wire


def describe(
    message: wire.Message, relations: Mapping[int, str], types: Mapping[int, str], xids: dict[int, int]
) -> str:
    """Return a message as a line of text, with the names that the catalog has for its OIDs.

    The xids of streams are numbered in the order in which they appear; `xids` holds the numbers given so far.
    """

    def number(xid: int) -> int:
        return xids.setdefault(xid, len(xids) + 1)

    is_whole = isinstance(
        message, wire.Begin | wire.BeginPrepare | wire.Prepare | wire.CommitPrepared | wire.RollbackPrepared
    )
    xid = None if is_whole else getattr(message, "xid", None)
    inside = "" if xid is None else f"{number(xid)} "
    match message:
        case wire.Begin() | wire.Commit():
            return type(message).__name__
        case wire.Origin():
            return f"Origin {message.name} {message.commit_lsn}"
        case wire.Relation():
            columns = ", ".join(_column(column, types) for column in message.columns)
            return f"Relation {inside}{qualified_name(message)} {message.replica_identity} ({columns})"
        case wire.Type():
            name = f"{message.namespace or 'pg_catalog'}.{message.name}"
            return f"Type {inside}of {types[message.oid]}: {name}"
        case wire.Insert():
            return f"Insert {inside}{relations[message.oid]} {_tuple(message.new)}"
        case wire.Update():
            old = "" if message.old is None else f"{message.old_kind} {_tuple(message.old)} "
            return f"Update {inside}{relations[message.oid]} {old}→ {_tuple(message.new)}"
        case wire.Delete():
            return f"Delete {inside}{relations[message.oid]} {message.old_kind} {_tuple(message.old)}"
        case wire.Truncate():
            names = ", ".join(relations[oid] for oid in message.oids)
            return f"Truncate {inside}{names} {message.options}"
        case wire.LogicalMessage():
            kind = "transactional" if message.transactional else "non-transactional"
            return f"Message {inside}{message.prefix} {kind}: {message.content.hex()}"
        case wire.StreamStart():
            return (
                f"Stream Start {inside}first" if message.is_first_segment else f"Stream Start {inside[:-1]}"
            )
        case wire.StreamStop():
            return "Stream Stop"
        case wire.StreamCommit():
            return f"Stream Commit {inside[:-1]}"
        case wire.StreamAbort():
            return f"Stream Abort {inside}of {number(message.subxid)}"
        case wire.BeginPrepare():
            return f"Begin Prepare '{message.gid}'"
        case wire.Prepare():
            return f"Prepare '{message.gid}'"
        case wire.CommitPrepared():
            return f"Commit Prepared '{message.gid}'"
        case wire.RollbackPrepared():
            return f"Rollback Prepared '{message.gid}'"
        case wire.StreamPrepare():
            return f"Stream Prepare {inside}'{message.gid}'"


def qualified_name(relation: wire.Relation) -> str:
    """Return the name as `schema.table`, unquoted; `pg_catalog` is sent as an empty string."""
    return f"{relation.namespace or 'pg_catalog'}.{relation.name}"


def _column(column: wire.Column, types: Mapping[int, str]) -> str:
    modifier = "" if column.type_modifier == -1 else f" {column.type_modifier}"
    return f"{column.name} {types[column.type_oid]}{modifier}{' *' if column.is_key else ''}"


def _tuple(cells: wire.TupleData) -> str:
    return f"({', '.join(map(_cell, cells))})"


def _cell(cell: wire.Cell) -> str:
    if cell is None:
        return "NULL"
    if cell is wire.UNCHANGED_TOAST:
        return "unchanged TOAST"
    if isinstance(cell, wire.Binary):
        return f"binary {cell.hex()}"
    text = cell.decode("utf-8", "surrogateescape")
    if len(text) > 100 and len(set(text)) == 1:
        return f"'{text[0]}'·{len(text)}"
    return f"'{text}'"
