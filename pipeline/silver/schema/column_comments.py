"""Comments of silver's table and columns, as they are and as the source's make them. Pure.

Only what the source has a comment on, or had one since comments are recorded, follows the source. A comment
that was removed becomes an empty text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pipeline.delta.schema import SchemaField
from pipeline.metadata.source_comments import SourceComment
from pipeline.silver.schema.schema_operations import COMMENT, DropColumn, RenameColumn, SchemaOperation


def source_comment(comments: Iterable[SourceComment], relation_id: int) -> str | None:
    """Return the comment on a table, given by its OID, None if it never had one."""
    found = (each for each in comments if each.relation_id == relation_id and each.attribute_number == 0)
    return next((each.comment or "" for each in found), None)


def column_comments(
    comments: Iterable[SourceComment], relation_id: int, numbers: Mapping[str, int | None]
) -> dict[str, str]:
    """Return the comments on silver's columns, given with their attribute numbers in a source table."""
    found = [each for each in comments if each.relation_id == relation_id and each.column_name is not None]
    by_number = {each.attribute_number: each for each in found if each.attribute_number is not None}
    by_name = {each.column_name: each for each in found}
    wanted = {}
    for name, number in numbers.items():
        comment = by_number.get(number) if number in by_number else None
        if comment is None and (same := by_name.get(name)) and None in (number, same.attribute_number):
            comment = same
        if comment is not None:
            wanted[name] = comment.comment or ""
    return wanted


def comments_of(fields: Iterable[SchemaField], operations: Sequence[SchemaOperation]) -> dict[str, str]:
    """Return the comments that columns of a table have after operations; without one a column is left out."""
    found = {each.name: str(each.metadata[COMMENT]) for each in fields if each.metadata.get(COMMENT)}
    for operation in operations:
        match operation:
            case RenameColumn() if operation.name in found:
                found[operation.to] = found.pop(operation.name)
            case DropColumn():
                found.pop(operation.name, None)
    return found


def differing(
    wanted: Mapping[str, str], found: Mapping[str, str], columns: Collection[str]
) -> dict[str, str]:
    """Return the comments that are to be set on those of the columns that exist."""
    return {name: text for name, text in wanted.items() if name in columns and found.get(name, "") != text}
