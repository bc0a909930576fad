"""Notes of schema changes that the stream does not carry completely: silver may differ from the source."""

from __future__ import annotations

from pipeline.silver.schema.schema_operations import SchemaNote


def type_changed(name: str) -> SchemaNote:
    """Return the note for a column whose type changed so that it may have other values."""
    sentence = (
        f"The type of column {name} changed, which may have changed values that the stream does not carry. "
        "Run a resync to copy them."
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


def default_is_misfit(name: str, policy: str) -> SchemaNote:
    """Return the note for a column whose default the silver type cannot hold."""
    kept = "the nearest value" if policy == "clamp" else "NULL"
    sentence = (
        f"Column {name} was added with a default that its silver type cannot hold. Older rows have {kept}, "
        "and no misfit is recorded for them. Run a resync to copy them."
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
