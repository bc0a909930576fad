"""Entries of Delta tables in catalogs: what one holds, and the calls that read and change them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.delta.schema import SchemaField, TableSchema, type_ddl
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError

OWNER = "pgdelta.pipeline"
"""The parameter of an entry that names the pipeline whose entry it is."""
INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
"""What Spark gives the entry of a Delta table, whose files no format of Hive reads."""
_PROVIDER = "spark.sql.sources.provider"
_PARAMETERS = {
    "EXTERNAL": "TRUE",
    "table_type": "DELTA",  # for Athena
    _PROVIDER: "delta",  # for Spark and Trino
    "spark.sql.sources.schema": '{"type":"struct","fields":[]}',  # Spark reads the table's log
    "spark.sql.partitionProvider": "catalog",
}
_PATH = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<host>[^/]*))?(?P<folder>.*)", re.DOTALL
)
_HIVE_TYPES = {"timestamp_ntz": "timestamp", "variant": "string", "void": "string"}
_HIVE_TYPE = re.compile(r"[a-z0-9_<>,:()]+")
_MAX_COMMENT, _MAX_TABLE_COMMENT = 255, 2048  # bytes


def hive_column(field: SchemaField) -> tuple[str, str]:
    """Return the name that Hive has for a column, and its type; `string` if Hive has no such type."""
    text = type_ddl(field.type).lower()
    for name, known in _HIVE_TYPES.items():
        text = re.sub(rf"\b{name}\b", known, text)
    return field.name.lower(), text if _HIVE_TYPE.fullmatch(text) else "string"


@dataclass(frozen=True, slots=True)
class HeldColumns:
    """The columns of an entry, each with its name, type and comment, and the table's comment."""

    columns: tuple[tuple[str, str, str], ...] = ()
    comment: str = ""

    @staticmethod
    def of(
        snapshot: Snapshot, name_and_type: Callable[[SchemaField], tuple[str, str]] = hive_column
    ) -> HeldColumns:
        """Return the columns of a version of a Delta table, as a catalog holds them."""
        fields = TableSchema.of_json(snapshot.schema_string).fields
        columns = ((*name_and_type(f), _shortened(f.metadata.get("comment"), _MAX_COMMENT)) for f in fields)
        return HeldColumns(
            tuple(columns), _shortened(snapshot.metadata.get("description"), _MAX_TABLE_COMMENT)
        )


@dataclass(frozen=True, slots=True)
class MetastoreEntry:
    """A table or view of a catalog, as the catalog describes it; of Spark's without columns and owner."""

    location: str | None
    is_external_delta: bool
    held: HeldColumns | None = None
    owner: str | None = None

    def points_to(self, path: str) -> bool:
        """Return whether this is an external Delta table at a path."""
        return self.is_external_delta and self.location is not None and same_path(self.location, path)

    @staticmethod
    def of(
        kind: str | None, location: str | None, parameters: Mapping[str, str], held: HeldColumns
    ) -> MetastoreEntry:
        """Return an entry of a catalog that has Hive's parameters."""
        is_delta = parameters.get(_PROVIDER, parameters.get("table_type", "")).lower() == "delta"
        is_external = kind == "EXTERNAL_TABLE"
        return MetastoreEntry(location, is_delta and is_external, held, parameters.get(OWNER))


class TableCatalog(Protocol):
    """A catalog; its calls raise what its client does.

    `label` and `remedy` are its name in sentences, and what to check if it fails. One that `needs_spark` is
    only called for a change or while Spark runs. One that `holds_columns` also marks entries as a pipeline's.
    """

    label: str
    remedy: str
    needs_spark: bool
    holds_columns: bool

    def check(self) -> None:
        """Raise LakeError if tables cannot be registered there at all."""

    def held_columns(self, snapshot: Snapshot) -> HeldColumns:
        """Return the columns of a table's entry; only of a catalog that holds them."""

    def entries(self, schema: str, tables: Collection[str]) -> dict[str, MetastoreEntry]:
        """Return those of some tables that a schema has; nothing if there is no such schema."""

    def create_schema(self, schema: str) -> None:
        """Create a schema unless it exists."""

    def create_table(self, schema: str, table: str, path: str, held: HeldColumns | None) -> None:
        """Create an entry for the Delta table at a path; raise an error if the name is taken."""

    def update_table(self, schema: str, table: str, path: str, held: HeldColumns) -> None:
        """Give an entry other columns; only of a catalog that holds them."""

    def drop_table(self, schema: str, table: str) -> None:
        """Drop the entry of an external table, which leaves its files as they are."""

    def failure(self, error: Exception) -> str | None:
        """Return the name of a failure of this catalog, without its message, which may have secrets."""


def catalog_error(catalog: TableCatalog, error: Exception) -> LakeError:
    """Return the error of a call that failed, with what to check."""
    if isinstance(error, LakeError):
        return error
    what = catalog.failure(error) or type(error).__name__
    text = f"{catalog.label} failed: {what}. {catalog.remedy}; --debug shows the stack trace."
    return LakeError(text[0].upper() + text[1:])


def parameters_of(pipeline: str) -> dict[str, str]:
    """Return the parameters of an entry by which Spark, Trino and Athena read it as a Delta table."""
    return {**_PARAMETERS, OWNER: pipeline}


def serde_parameters(path: str) -> dict[str, str]:
    """Return the parameters of an entry's serde, where Spark and Trino look for the table."""
    return {"path": path, "serialization.format": "1"}


def same_path(one: str, other: str) -> bool:
    """Return whether two paths are one; of a path without a scheme only the folder counts."""
    (scheme, host, folder), (other_scheme, other_host, other_folder) = path_parts(one), path_parts(other)
    has_schemes = bool(scheme and other_scheme)
    return folder == other_folder and (not has_schemes or (scheme, host) == (other_scheme, other_host))


def path_parts(path: str) -> tuple[str, str, str]:
    """Return scheme, host and folder; names in a path are never decoded, and S3 has one scheme."""
    match = _PATH.fullmatch(path)
    assert match is not None
    scheme = match["scheme"] or ""
    return "s3" if scheme in ("s3a", "s3n") else scheme, match["host"] or "", match["folder"].rstrip("/")


def _shortened(text: str | None, longest: int) -> str:
    """Return a comment in one line, and of no more bytes than a catalog holds."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text or "").split())
    return line.encode("utf-8", "replace")[:longest].decode("utf-8", "ignore")
