"""Read a small table that grows by appends again and again, each of its files once; give it new columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.delta.definition import Definition
from pipeline.delta.native_commit import Operation
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable


class NewRows:
    """The rows of a table that were not read yet; for one thread at a time.

    Columns that an earlier version of pgdelta did not give the table are left out.
    """

    def __init__(self, table: LakeTable, columns: Sequence[str] | None = None) -> None:
        self._table = table
        self._columns = columns
        self._table_id = ""
        self._files: frozenset[str] = frozenset()  # that were read

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return rows, and whether they are added to those that were returned before.

        Otherwise they are all rows: files were removed, the table was created again, or is on other storage
        than this machine's.
        """
        if self._table.local_path is None:
            return self._table.rows(self._present(self._table.schema())).to_pylist(), False
        snapshot = self._table.snapshot()
        columns = self._present(TableSchema.of_json(snapshot.schema_string))
        files = snapshot.files
        is_same = bool(self._table_id) and snapshot.table_id == self._table_id and self._files <= files.keys()
        added = {path: add for path, add in files.items() if not (is_same and path in self._files)}
        rows = self._table.rows(columns, snapshot=snapshot.with_files(added)).to_pylist()
        self._table_id, self._files = snapshot.table_id, frozenset(files)
        return rows, is_same

    def _present(self, schema: TableSchema) -> list[str] | None:
        return None if self._columns is None else [name for name in self._columns if name in schema.names]


def add_columns(table: LakeTable, ddl: str) -> None:
    """Give a table that an earlier version of pgdelta created, and its structs, all columns of `ddl`.

    Files that lack them stay as they are, because readers take a column that a file lacks as NULL.
    """
    schema = TableSchema.of_ddl(ddl)

    def add() -> None:
        snapshot = table.snapshot()
        if table.writes_natively(snapshot):
            before = Definition.of(snapshot)
            actions = before.with_fields(schema.fields).actions(before)
            table.commit(snapshot, actions, {}, Operation("ADD COLUMNS", is_blind_append=True))
            return
        rows = table.rows(snapshot=snapshot).to_pylist()
        table.overwrite_rows(rows, ddl, replaces_schema=True, snapshot=snapshot)

    if table.exists() and table.schema().fields != schema.fields:
        retry_conflicts(add)
