"""Record tables: a dataclass has the columns of a small Delta table, and each row is an instance of it.

The columns have the names, the order and the types of the fields; a tuple is an ARRAY, a dataclass in it a
STRUCT. A value that is NULL, or that an earlier version of pgdelta did not write, is the field's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from functools import cache, partial
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pipeline.delta.log_retention import short_log
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TxnId
from pipeline.protocol.lsn import LSN
from pipeline.protocol.pg_types import Int4
from pipeline.table_name import TableName

Record = TypeVar("Record")
_TYPES: dict[Any, str] = {
    str: "STRING",
    TxnId: "STRING",
    Int4: "INT",
    int: "BIGINT",
    LSN: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    datetime: "TIMESTAMP",
}


def _read_txn(text: str) -> TxnId:
    txn = TxnId.parse(text)
    assert txn is not None, text
    return txn


_READERS: dict[Any, Callable[[Any], Any]] = {LSN: LSN, TxnId: _read_txn}


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A record of a source table."""

    schema_name: str
    table_name: str

    @property
    def name(self) -> TableName:
        return TableName(self.schema_name, self.table_name)


@cache
def ddl_of(record: type, mark: str = "") -> str:
    """Return `name TYPE, …` for the fields of a dataclass, with a mark after each name."""
    return ", ".join(f"{name}{mark} {_ddl(kind)}" for name, kind in _types(record).items())


def _types(record: type) -> dict[str, Any]:
    """Return the types of the fields, for `X | None` X."""
    hints = get_type_hints(record, include_extras=True)
    types = {each.name: hints[each.name] for each in fields(record)}
    return {name: get_args(t)[0] if NoneType in get_args(t) else t for name, t in types.items()}


def _ddl(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"ARRAY<{_ddl(get_args(kind)[0])}>"
    return _TYPES.get(kind) or f"STRUCT<{ddl_of(kind, ':')}>"


def row_of(record: Any) -> dict[str, Any]:
    """Return a record as a row."""
    return {
        name: value if (value := getattr(record, name)) is None or write is None else write(value)
        for name, write in _writers(type(record)).items()  # type: ignore[arg-type]
    }


@cache
def _writers(record: type) -> dict[str, Callable[[Any], Any] | None]:
    """Return what makes a value of each field one of a row, None where it is one."""
    return {name: _writer(kind) for name, kind in _types(record).items()}


def _writer(kind: Any) -> Callable[[Any], Any] | None:
    if get_origin(kind) is tuple:
        write = _writer(get_args(kind)[0])
        return list if write is None else lambda values: list(map(write, values))
    return str if kind is TxnId else None if kind in _TYPES else row_of


def record_of(record: type[Record], row: Mapping[str, Any]) -> Record:
    """Return the record that a row is."""
    names, values, readers = _readers(record)  # type: ignore[arg-type]
    values = values | {name: row[name] for name in names if row.get(name) is not None}
    for name, read in readers.items():
        if values.get(name) is not None:
            values[name] = read(values[name])
    return record(**values)


@cache
def _readers(record: type) -> tuple[list[str], dict[str, Any], dict[str, Callable[[Any], Any]]]:
    """Return the names of the fields, NULLs of those without a default, and the readers that are needed."""
    types = _types(record)
    required = [each.name for each in fields(record) if each.default is MISSING]
    readers = {name: read for name, kind in types.items() if (read := _reader(kind)) is not None}
    return list(types), dict.fromkeys(required), readers


def _reader(kind: Any) -> Callable[[Any], Any] | None:
    if get_origin(kind) is tuple:
        read = _reader(get_args(kind)[0])
        return tuple if read is None else lambda values: tuple(map(read, values))
    return _READERS.get(kind) if kind in _TYPES else partial(record_of, kind)


class RecordTable(Generic[Record]):
    """A table under `_pgdelta` whose rows are records of one class."""

    def __init__(self, lake: Lake, name: str, record: type[Record]) -> None:
        self.table = lake.table("_pgdelta", name)
        self.ddl = ddl_of(record)  # type: ignore[arg-type]
        self._record = record
        self._newest: tuple[tuple[str, int], tuple[Record, ...]] = ("", -1), ()

    def read(self, snapshot: Snapshot | None = None) -> tuple[Record, ...]:
        """Return the records of a snapshot, default the newest; they are read only if it is a new version."""
        snapshot = snapshot or self.table.snapshot()
        version = snapshot.table_id, snapshot.version
        if version != self._newest[0]:
            rows = self.table.rows(snapshot=snapshot).to_pylist() if snapshot.exists else ()
            self._newest = version, tuple(record_of(self._record, row) for row in rows)
        return self._newest[1]

    def replace(self, records: Iterable[Record]) -> None:
        """Record these in place of all others, in one commit."""
        rows = [row_of(each) for each in records]
        retry_conflicts(lambda: self.table.overwrite_rows(rows, self.ddl, replaces_schema=True))

    def put(self, records: Iterable[Record], key: Callable[[Record], Any]) -> None:
        """Record these in place of earlier ones with the same keys, in the order of the keys."""
        new = {key(each): each for each in records}
        if new:
            self.change(lambda before: sorted(({key(each): each for each in before} | new).values(), key=key))

    def change(self, change: Callable[[Sequence[Record]], Iterable[Record]]) -> tuple[Record, ...]:
        """Replace the records by what a function makes of them, in one commit, and return them.

        The function is called again if another job changed them meanwhile. Without a difference nothing is
        written.
        """

        def write() -> tuple[Record, ...]:
            snapshot = self.table.snapshot()
            before = self.read(snapshot)
            after = tuple(change(before))
            if after != before and not snapshot.exists:
                self.table.ensure(self.ddl, short_log())  # another job may do so, and write its rows
                return write()
            if after != before:
                # a commit that follows this snapshot: another job's in between is a conflict
                self.table.overwrite_rows(
                    [row_of(each) for each in after], self.ddl, replaces_schema=True, snapshot=snapshot
                )
            return after

        return retry_conflicts(write)
