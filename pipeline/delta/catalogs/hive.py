"""Tables in a Hive metastore, by Thrift; structs are fields by the numbers of Hive's interface."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from pipeline.delta.catalogs.entry import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    HeldColumns,
    MetastoreEntry,
    parameters_of,
    serde_parameters,
)
from pipeline.delta.catalogs.thrift import ThriftConnection, ThriftError, ThriftMap

_TIMEOUT = 30.0  # seconds, of a connection and of an answer
_AT_ONCE = 500  # tables in one call
_TABLE_TYPE = 12  # the last field of a table in the oldest version
# the exceptions that calls declare, from field 1 on
_EXCEPTIONS = {
    "get_table_objects_by_name_req": ("MetaException", "InvalidOperationException", "UnknownDBException"),
    "get_database": ("NoSuchObjectException", "MetaException"),
    "create_database": ("AlreadyExistsException", "InvalidObjectException", "MetaException"),
    "create_table": (
        *("AlreadyExistsException", "InvalidObjectException", "MetaException", "NoSuchObjectException"),
    ),
    "alter_table": ("InvalidOperationException", "MetaException"),
    "drop_table": ("NoSuchObjectException", "MetaException"),
}


class HiveFault(Exception):
    """An exception that a call declares; its text is the name, because the message may have secrets."""


class HiveCatalog:
    """The databases of a metastore; schemas are databases."""

    label = "the Hive metastore"
    remedy = "Check that it runs at the uri of catalog.targets, without Kerberos and TLS"
    needs_spark = False
    holds_columns = True
    held_columns = staticmethod(HeldColumns.of)

    def __init__(self, pipeline: str, uri: str) -> None:
        """Mark entries as a pipeline's; of several addresses with commas between them the first counts."""
        self._pipeline = pipeline
        self._addresses = [urlsplit(each.strip()) for each in uri.split(",")]

    def check(self) -> None:
        """Raise OSError if no address answers."""
        with self._connected():
            pass

    def entries(self, schema: str, tables: Collection[str]) -> dict[str, MetastoreEntry]:
        """Return those of some tables that a database has; nothing if there is no such database."""
        names, found = sorted(tables), []
        with self._connected() as connection:
            for start in range(0, len(names), _AT_ONCE):
                request = {1: schema, 2: names[start : start + _AT_ONCE]}
                try:
                    found += _call(connection, "get_table_objects_by_name_req", request)[1]
                except HiveFault as fault:
                    if str(fault) != "UnknownDBException":
                        raise
        return {table[1]: _entry(table) for table in found}

    def create_schema(self, schema: str) -> None:
        """Create a database unless it exists."""
        with self._connected() as connection:
            try:
                _call(connection, "get_database", schema)
            except HiveFault as fault:
                if str(fault) != "NoSuchObjectException":
                    raise
                _call(connection, "create_database", {1: schema})

    def create_table(self, schema: str, table: str, path: str, held: HeldColumns | None) -> None:
        """Create an entry for the Delta table at a path; raise HiveFault if the name is taken."""
        held = held or HeldColumns()
        serde = {2: SERDE, 3: ThriftMap(serde_parameters(path))}
        storage = {1: _columns(held), 2: path, 3: INPUT_FORMAT, 4: OUTPUT_FORMAT, 7: serde}
        entry = {1: table, 2: schema, 4: int(time.time()), 7: storage, 8: [], 9: self._parameters(held)}
        with self._connected() as connection:
            _call(connection, "create_table", entry | {_TABLE_TYPE: "EXTERNAL_TABLE"})

    def update_table(self, schema: str, table: str, path: str, held: HeldColumns) -> None:
        """Give an entry other columns; all else that it holds stays.

        Hive compares columns by their positions, and refuses types that no value can be cast to, such as
        after a column was dropped before others. Such an entry is dropped and created again.
        """
        with self._connected() as connection:
            request = {1: schema, 2: [table]}
            found = _call(connection, "get_table_objects_by_name_req", request)[1]
            if not found:
                raise HiveFault("NoSuchObjectException")
            # only what every version has
            changed = {number: value for number, value in found[0].items() if number <= _TABLE_TYPE}
            changed[7] = changed[7] | {1: _columns(held)}
            changed[9] = ThriftMap(changed.get(9, {}) | self._parameters(held))
            try:
                _call(connection, "alter_table", schema, table, changed)
            except HiveFault as fault:
                if str(fault) != "InvalidOperationException":
                    raise
                _call(connection, "drop_table", schema, table, False)
                _call(connection, "create_table", changed)

    def drop_table(self, schema: str, table: str) -> None:
        """Drop an entry, which leaves the table's files as they are."""
        with self._connected() as connection:
            _call(connection, "drop_table", schema, table, False)

    def failure(self, error: Exception) -> str | None:
        """Return the name of an exception of Hive."""
        return str(error) if isinstance(error, (HiveFault, ThriftError)) else None

    def _parameters(self, held: HeldColumns) -> ThriftMap:
        return ThriftMap(parameters_of(self._pipeline) | {"comment": held.comment})

    def _connected(self) -> ThriftConnection:
        for number, address in enumerate(self._addresses, 1):
            try:
                return ThriftConnection(address.hostname or "", address.port or 9083, _TIMEOUT)
            except OSError:
                if number == len(self._addresses):
                    raise
        raise AssertionError("no address")


def _call(connection: ThriftConnection, method: str, *arguments: Any) -> Any:
    """Return the value of a call; raise HiveFault for an exception that it declares."""
    result = connection.call(method, *arguments)
    names = _EXCEPTIONS[method]
    for number in result:
        if number:
            raise HiveFault(names[number - 1] if number <= len(names) else f"{method} failed")
    return result.get(0)


def _columns(held: HeldColumns) -> list[dict[int, str]]:
    return [{1: name, 2: kind, 3: comment} for name, kind, comment in held.columns]


def _entry(table: Mapping[int, Any]) -> MetastoreEntry:
    storage, parameters = table.get(7, {}), table.get(9, {})
    location = storage.get(7, {}).get(3, {}).get("path") or storage.get(2)
    columns = ((c[1], c.get(2, ""), c.get(3, "")) for c in storage.get(1, ()))
    held = HeldColumns(tuple(columns), parameters.get("comment", ""))
    return MetastoreEntry.of(table.get(_TABLE_TYPE), location, parameters, held)
