"""Notes about schema changes that the stream does not carry completely: silver may differ from the source.

Each is recorded as an event of kind `resync` or `diverged`.
"""

from pipeline.bronze.relations import SourceColumn
from pipeline.silver.column_mapping import SilverColumns
from pipeline.silver.schema_operations import SchemaNote
from pipeline.silver.types import keeps_values


def schema_note(recorded: SilverColumns, column: SourceColumn) -> SchemaNote | None:
    """Return the note about a column that silver has already, None if nothing can differ."""
    before = recorded.types.get(column.name)
    if before is None:
        return was_unpublished(column.name) if recorded.types and column.name in recorded.numbers else None
    if not column.is_type_known or keeps_values(before, column.type):
        return None
    sentence = (
        f"The type of column {column.name} changed, which may have changed values that the stream does not "
        "carry. Run a resync to copy them."
    )
    return SchemaNote(sentence, "resync")


def default_may_vary(name: str) -> SchemaNote:
    """Return the note for a column whose default may have given each row another value."""
    sentence = (
        f"Column {name} was added with a default that may have given older rows values which the stream does "
        "not carry. Run a resync to copy them."
    )
    return SchemaNote(sentence, "resync")


def default_is_gone(name: str) -> SchemaNote:
    """Return the note for a NOT NULL column whose default the catalog does not have any more."""
    sentence = (
        f"Column {name} was added as NOT NULL, and the catalog no longer has the default that gave older "
        "rows, if there were any, their values. Run a resync to copy them."
    )
    return SchemaNote(sentence, "resync")


def was_unpublished(name: str) -> SchemaNote:
    """Return the note for a column whose values were not published for some time."""
    sentence = f"Column {name} was not published for some time. Run a resync to copy what changed meanwhile."
    return SchemaNote(sentence, "resync")


def may_be_renamed(name: str) -> SchemaNote:
    """Return the note for a new column that may be a renamed one."""
    return SchemaNote(
        f"Column {name} appeared while the catalog was ahead of the stream. If it was renamed or has a "
        "default, older rows may lack its values. Run a resync to copy them."
    )
