"""Read and change the entries of the session's catalog, `spark_catalog`.

An entry only names the location of a Delta table: schema, rows and properties come from the table's log, so
an entry never has to follow them. Creating or dropping one writes nothing to the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pipeline.delta.spark.provider import SparkProvider
from pipeline.delta.sql import literal, quoted
from pipeline.errors import LakeError

_CATALOG = "`spark_catalog`"
_PATH = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<host>[^/]*))?(?P<folder>.*)", re.DOTALL
)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]*)\]")
_MAX_CAUSES = 10
# Otherwise Delta creates an empty table at a path that has none.
_SETTINGS = {"spark.databricks.delta.createEmptySchemaTable.enabled": "false"}


@dataclass(frozen=True, slots=True)
class MetastoreEntry:
    """A table or view of the catalog, as the catalog describes it."""

    location: str | None
    is_external_delta: bool

    def points_to(self, path: str) -> bool:
        """Return whether this is an external Delta table at a path."""
        return self.is_external_delta and self.location is not None and same_path(self.location, path)


def same_path(one: str, other: str) -> bool:
    """Return whether two paths are one; of a path without a scheme only the folder counts."""
    (scheme, host, folder), (other_scheme, other_host, other_folder) = _parts(one), _parts(other)
    has_schemes = bool(scheme and other_scheme)
    return folder == other_folder and (not has_schemes or (scheme, host) == (other_scheme, other_host))


def _parts(path: str) -> tuple[str, str, str]:
    """Return scheme, host and folder; names in a path are never decoded."""
    match = _PATH.fullmatch(path)
    assert match is not None
    return match["scheme"] or "", match["host"] or "", match["folder"].rstrip("/")


class Metastore:
    """The catalog of a session; every method may start Spark, and raises what Spark does."""

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

    def create_table(self, schema: str, table: str, path: str) -> None:
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


def describe_failure(error: Exception) -> str:
    """Return what failed, without the message: a metastore's may have the password of its database."""
    if isinstance(error, LakeError):
        return str(error)
    names = [type(error).__name__]
    cause = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        names.append(cause.getClass().getSimpleName())
        cause = cause.getCause()
    condition = _CONDITION.match(str(error))
    what = condition[1] if condition else ", ".join(dict.fromkeys(names))
    return (
        f"The catalog of Spark failed: {what}. Check the metastore and Spark's settings for it; "
        "--debug shows the stack trace."
    )


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
