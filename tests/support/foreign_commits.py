"""Commits of other writers to a table on this machine: they alter its columns or rows, or undo that."""

from collections.abc import Callable

from pipeline.delta.definition import Definition
from pipeline.delta.features import Feature
from pipeline.delta.native_commit import Operation, commit_version, remove_action
from pipeline.delta.schema import SchemaField
from pipeline.delta.table import LakeTable

Change = Callable[[Definition], Definition]


def alter(table: LakeTable, operation: str, change: Change) -> int:
    """Commit a change of a table's definition, which has column mapping by then; return the version."""
    snapshot = table.snapshot()
    before = Definition.of(snapshot)
    after = change(before.enabled(Feature.COLUMN_MAPPING))
    return commit_version(table.folder, snapshot.version, after.actions(before), Operation(operation))


def add(table: LakeTable, column: str, kind: str = "string") -> int:
    """Add a column as ALTER TABLE … ADD COLUMNS does; return the version."""
    field = SchemaField(column, kind)
    return alter(table, "ADD COLUMNS", lambda definition: definition.with_column(field))


def drop(table: LakeTable, *columns: str) -> int:
    """Drop columns as ALTER TABLE … DROP COLUMNS does; return the version."""

    def change(definition: Definition) -> Definition:
        for column in columns:
            definition = definition.without(column)
        return definition

    return alter(table, "DROP COLUMNS", change)


def rename(table: LakeTable, column: str, to: str) -> int:
    """Rename a column; return the version."""
    return alter(table, "RENAME COLUMN", lambda definition: definition.renamed(column, to))


def delete_rows(table: LakeTable) -> int:
    """Delete all rows; return the version."""
    snapshot = table.snapshot()
    actions = [remove_action(add) for add in snapshot.files.values()]
    return commit_version(table.folder, snapshot.version, actions, Operation("DELETE"))


def restore(table: LakeTable, version: int) -> None:
    """Restore the columns of a version that has the same files."""
    snapshot, earlier = table.snapshot(), table.snapshot(version)
    assert snapshot.files.keys() == earlier.files.keys()
    operation = Operation("RESTORE", {"version": str(version)})
    commit_version(table.folder, snapshot.version, [{"metaData": dict(earlier.metadata)}], operation)
