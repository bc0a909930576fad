"""Limits on what one pass of apply may take from a table: more than that holds it until somebody confirms.

Counted are the stream's own messages between the table's position and the point of the pass. A held table
keeps its position, so what waits for it only grows. An update that changes a key is no delete; a row that
moves to another partition, or out of a row filter, comes as one. What begins a table shows no row yet that
could be lost, and rows that were copied are those of the source: neither is counted.
"""

from collections.abc import Mapping

from pipeline.rules import Guards, TableName, command_for


def find_excess(name: TableName, counts: Mapping[str, int], guards: Guards) -> str | None:
    """Return why the guards hold a table with so many changes by operation (`I U D T`), or None."""
    limits = (("D", "deletes", guards.deletes), ("T", "truncates", guards.truncates))
    excess = [
        f"{counts[op]} {what} (guards.{what} is {limit})"
        for op, what, limit in limits
        if limit is not None and counts.get(op, 0) > limit
    ]
    if not excess:
        return None
    return (
        f"{'.'.join(name)} is held by its guards: what waits for it has {' and '.join(excess)}; bronze keeps "
        f"the changes: where they are meant, apply them with {confirmation(name)}"
    )


def confirmation(name: TableName) -> str:
    """Return the command that applies what waits for a table whatever its guards say."""
    return command_for(name, "retry --confirm")
