"""Read and change the entries of the session's catalog, `spark_catalog`.

An entry only names the location of a Delta table: schema, rows and properties come from the table's log, so
an entry never has to follow them. Creating or dropping one writes nothing to the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from pipeline.delta.catalogs.entry import HeldColumns, MetastoreEntry
from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.sql import literal, quoted
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError

_CATALOG = "`spark_catalog`"
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]*)\]")
_MAX_CAUSES = 10
# Otherwise Delta creates an empty table at a path that has none.
_SETTINGS = {"spark.databricks.delta.createEmptySchemaTable.enabled": "false"}


class Metastore:
    """The catalog of a session; every method may start Spark, and raises what Spark does."""

    label = "the catalog of Spark"
    remedy = "Check the metastore and Spark's settings for it"
    needs_spark = True
    holds_columns = False

    def __init__(self, sessions: SparkProvider) -> None:
        self._sessions = sessions

    def check(self) -> None:
        """Raise LakeError if the catalog ends with this process."""
        implementation = self._sessions.session.conf.get("spark.sql.catalogImplementation", "in-memory")
        if implementation == "in-memory":
            raise LakeError(
                "Spark has no metastore: its catalog is in memory and ends with the run. Set "
                "spark.sql.catalogImplementation to hive and give Spark a metastore, or remove the section "
                "catalog."
            )

    def held_columns(self, snapshot: Snapshot) -> HeldColumns:
        """Return none: an entry follows the table's log."""
        return HeldColumns()

    def entries(self, schema: str, tables: Collection[str]) -> dict[str, MetastoreEntry]:
        """Return those of some tables that a schema has; nothing if there is no such schema."""
        spark = self._sessions.session
        if not spark.catalog.databaseExists(f"{_CATALOG}.{quoted(schema)}"):
            return {}
        # the pattern needs no escapes: names have letters, digits and _ only
        pattern = literal("|".join(sorted(tables)))
        rows = spark.sql(f"SHOW TABLE EXTENDED IN {_CATALOG}.{quoted(schema)} LIKE {pattern}").collect()
        return {
            row.tableName: _described(row.information.splitlines()) for row in rows if not row.isTemporary
        }

    def create_schema(self, schema: str) -> None:
        """Create a schema unless it exists."""
        self._sessions.session.sql(f"CREATE SCHEMA IF NOT EXISTS {_CATALOG}.{quoted(schema)}")

    def create_table(self, schema: str, table: str, path: str, held: HeldColumns | None = None) -> None:
        """Create an entry for the Delta table at a path; raise an error if the name is taken."""
        name = f"{_CATALOG}.{quoted(schema)}.{quoted(table)}"
        from pipeline.delta.spark.session import settings

        spark = self._sessions.session
        with settings(spark, _SETTINGS):
            spark.sql(f"CREATE TABLE {name} USING delta LOCATION {literal(path)}")

    def drop_table(self, schema: str, table: str) -> None:
        """Drop the entry of an external table, which leaves its files as they are."""
        name = f"{_CATALOG}.{quoted(schema)}.{quoted(table)}"
        self._sessions.session.sql(f"DROP TABLE IF EXISTS {name}")

    def update_table(self, schema: str, table: str, path: str, held: HeldColumns) -> None:
        """Do nothing, for the same reason."""

    def failure(self, error: Exception) -> str | None:
        """Return the condition of Spark, or the classes of an exception and its causes."""
        names = [type(error).__name__]
        cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        for _ in range(_MAX_CAUSES):
            if cause is None:
                break
            names.append(cause.getClass().getSimpleName())
            cause = cause.getCause()
        condition = _CONDITION.match(str(error))
        return condition[1] if condition else ", ".join(dict.fromkeys(names))


def _described(lines: Iterable[str]) -> MetastoreEntry:
    """Return an entry from its description, a line `key: value` for each property.

    The first line of a key counts, because a later one may be in the text of a view.
    """
    found: dict[str, str] = {}
    for line in lines:
        key, separator, value = line.partition(": ")
        if separator:
            found.setdefault(key, value)
    is_external_delta = found.get("Type") == "EXTERNAL" and found.get("Provider", "").lower() == "delta"
    return MetastoreEntry(found.get("Location"), is_external_delta)
