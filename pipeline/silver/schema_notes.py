"""What no message of the stream tells, and an event says instead: where silver may differ."""

from pipeline.bronze.relations import SourceColumn
from pipeline.silver.column_mapping import SilverColumns
from pipeline.silver.schema_operations import SchemaNote
from pipeline.silver.types import keeps_values


def schema_note(known: SilverColumns, column: SourceColumn) -> SchemaNote | None:
    """Say what no message tells of a column that silver has already."""
    before = known.types.get(column.name)
    if before is None:
        return was_unpublished(column.name) if known.types and column.name in known.numbers else None
    if not column.is_type_known or keeps_values(before, column.type):
        return None
    sentence = (
        f"the type of column {column.name} changed, which may have changed values of rows that no message "
        "tells of: only a resync brings them"
    )
    return SchemaNote(sentence, "resync")


def default_may_vary(name: str) -> SchemaNote:
    """Say that a default was computed for each row, or set after the column was added."""
    sentence = (
        f"column {name} was added with a default that may have given each row from before a value of its "
        "own, of which no message tells: only a resync brings them"
    )
    return SchemaNote(sentence, "resync")


def default_is_gone(name: str) -> SchemaNote:
    """Say that rows from before have values of which nothing is known: the default that gave them is gone."""
    sentence = (
        f"column {name} was added as NOT NULL without a default that the catalog still has: if the table had "
        "rows, they have values of which no message may have told, and only a resync brings them"
    )
    return SchemaNote(sentence, "resync")


def was_unpublished(name: str) -> SchemaNote:
    """Say that a column has values which were not published."""
    sentence = f"column {name} was not published for some time: only a resync brings what it was then"
    return SchemaNote(sentence, "resync")


def may_be_renamed(name: str) -> SchemaNote:
    """Say that nobody knows whether a column is a new one."""
    return SchemaNote(
        f"column {name} appeared while the catalog was ahead of the stream: "
        "if it was renamed or has a default, silver's older rows may not show it"
    )
