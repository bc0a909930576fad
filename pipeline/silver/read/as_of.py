"""Read all silver tables as of one commit of the source.

Silver tables are written one by one; a manifest records which version of each shows the source as of one LSN.
Read at these versions, the tables agree: a transaction that wrote to several of them is visible in all or in
none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.delta.sql import quoted
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError, MissingTable, ProtocolError, describe_error, report_error
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import TableRegistry, verified_through
from pipeline.protocol.lsn import LSN
from pipeline.silver.read.missing_tables import why_missing
from pipeline.silver.read.versions import why_unreadable
from pipeline.table_name import TableName
from pipeline.units import format_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class TableAsOf:
    """A silver table at the version that shows the commit; `refusal` is why it cannot be read."""

    name: TableName
    path: str
    version: int
    refusal: str | None = None

    @property
    def query(self) -> str:
        """The query of all its rows."""
        return f"SELECT * FROM delta.{quoted(self.path)} VERSION AS OF {self.version}"


class AsOf(Mapping[TableName, "DataFrame"]):
    """Silver as of one commit: a mapping of (schema, table) to a frame of its rows.

    `behind` are the tables that the manifest does not show as of the commit, each with its own LSN; iteration
    leaves them out. `silver[schema, table]` raises LakeError for such a table, or if the version cannot be
    read any more, and MissingTable, a KeyError too, for a table that silver did not have.
    """

    def __init__(self, lake: Lake, manifest: Manifest) -> None:
        self.manifest = manifest
        self.lsn = manifest.lsn
        self.commit_time = manifest.commit_time
        self._lake = lake
        self.behind = manifest.behind
        self._entries = manifest.by_name
        self._tables: dict[TableName, TableAsOf] = {}

    def table(self, schema: str, table: str) -> TableAsOf:
        """Return path and version of a table, and whether it can be read; raises only MissingTable."""
        name = TableName(schema, table)
        if name not in self._entries:
            raise MissingTable(why_missing(self._lake, name, self._entries, None))
        if name not in self._tables:
            self._tables[name] = self._resolve(self._entries[name])
        return self._tables[name]

    @cached_property
    def verified_through(self) -> Mapping[TableName, LSN]:
        """The newest LSN at which each table was found equal to its source, by prove or reconcile."""
        return verified_through(self._lake)

    def create_views(
        self,
        tables: Collection[TableName] | None = None,
        *,
        name: Callable[[str, str], str] = lambda schema, table: f"{schema}__{table}",
    ) -> dict[str, TableName]:
        """Create temporary views of tables, or of all that are not behind; return their names.

        A view is named `<schema>__<table>`, or as `name` returns; quote names that are no plain identifiers
        (`` `Sales__Order items` ``). Existing views are replaced, those of tables that are behind are
        dropped. Raises LakeError, and creates no view, if two views would have one name or a table cannot be
        read.
        """
        return create_views(self, tables, self.behind, self._lake, name)

    def __getitem__(self, name: TableName) -> DataFrame:
        found = self.table(*name)
        if found.refusal:
            raise LakeError(found.refusal)
        from pyspark.errors import PySparkException

        try:
            return self._lake.table_at(found.path).frame(found.version)
        except PySparkException as error:
            raise LakeError(f"Table {name} cannot be read. {describe_error(error)}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._entries and name not in self.behind

    def __iter__(self) -> Iterator[TableName]:
        return (name for name in sorted(self._entries) if name not in self.behind)

    def __len__(self) -> int:
        return len(self._entries) - len(self.behind)

    def __repr__(self) -> str:
        return f"<silver as of {self.lsn}: {format_count(len(self), 'table')}, {len(self.behind)} behind>"

    def _resolve(self, entry: ManifestEntry) -> TableAsOf:
        name = entry.name
        found = TableAsOf(name, entry.path, entry.version)
        if entry.is_behind:
            sentence = (
                f"Table {name} is behind: it shows {entry.applied_lsn}, the other tables show {self.lsn}. "
                "Read silver as of a manifest that has caught up."
            )
            if entry.applied_lsn >= self.lsn:  # as in a shared table that holds it
                sentence = f"Table {name} lacks rows as of {self.lsn}. Run pgdelta status to find out why."
            return replace(found, refusal=sentence)
        reason: str | None = None
        for candidate in self._candidate_paths(entry.path, name):
            table = self._lake.table_at(candidate)
            try:
                refusal = why_unreadable(table, entry.version, self.lsn, entry.table_id)
            except Exception as error:  # of the log, or of Spark
                refusal = report_error(error)
            if refusal is None:
                return replace(found, path=candidate)
            reason = reason or refusal
        return replace(found, refusal=f"Table {name} cannot be read as of {self.lsn}. {reason}")

    @cached_property
    def _registered_paths(self) -> dict[TableName, str]:
        return {name: table.path for name, table in TableRegistry(self._lake).read().items()}

    def _candidate_paths(self, path: str, name: TableName) -> list[str]:
        """Return the manifest's path, unless another table has it now, and the registered path."""
        now = self._registered_paths.get(name)
        is_reused = any(
            other_path == path and other != name for other, other_path in self._registered_paths.items()
        )
        paths = [] if is_reused and now not in (None, path) else [path]
        return paths if now in (None, path) else [*paths, now]


def as_of(
    spark: SparkSession, root: str, *, lsn: LSN | int | str | None = None, timestamp: Any = None
) -> AsOf:
    """Return silver as of the newest manifest, or the newest at or before an LSN or a commit time.

    `root` is the configuration's `storage.root`; `lsn` is text like `16/B374D848` or a number; `timestamp` is
    a datetime or ISO 8601 text, in UTC if it has no zone. Raises LakeError if no manifest is that old,
    ConfigError if the LSN or the time is invalid.
    """

    def lake() -> Lake:
        if not hasattr(spark, "_jsparkSession"):
            raise LakeError(
                "as_of reads Delta's log in the JVM of the session, and a Spark Connect session has none. "
                "Run the queries that pgdelta as-of prints."
            )
        return Lake(root, spark)

    return find_silver(lake, lsn=lsn, timestamp=timestamp)


def find_silver(
    lake: Callable[[], Lake], *, lsn: LSN | int | str | None = None, timestamp: Any = None
) -> AsOf:
    """Return what `as_of` returns, for a lake that is opened once the arguments are valid."""
    if lsn is not None and timestamp is not None:
        raise ConfigError("lsn and timestamp exclude each other. Give only one of them.")
    max_lsn = None if lsn is None else parse_lsn(lsn)
    max_time = None if timestamp is None else parse_time(timestamp)
    opened = lake()
    return AsOf(opened, Manifests(opened).at(max_lsn, max_time))


def parse_lsn(value: LSN | int | str) -> LSN:
    """Return the LSN that a user gave; raise ConfigError if it is invalid."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{value!r} is not an LSN. Write two hexadecimal numbers like 16/B374D848.")
    if isinstance(value, str):
        try:
            return LSN.parse(value.strip())
        except ProtocolError as error:
            raise ConfigError(str(error)) from None
    if not 0 <= value < 2**63:
        raise ConfigError(f"{value} is not an LSN. Give a number from 0 to 2⁶³ - 1.")
    return LSN(value)


def parse_time(value: Any) -> datetime:
    """Return the time that a user gave, with its zone; raise ConfigError if it is invalid."""
    if isinstance(value, str):
        text = value.strip()
        try:
            # Python 3.10 does not accept Z
            value = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a time. Write one like 2026-01-31T12:00:00Z.") from None
    if not isinstance(value, datetime):
        raise ConfigError(f"{value!r} is not a time. Give a datetime, or text like 2026-01-31T12:00:00Z.")
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def create_views(
    frames: Mapping[TableName, DataFrame],
    tables: Collection[TableName] | None,
    refused: Collection[TableName],
    lake: Lake,
    name: Callable[[str, str], str],
) -> dict[str, TableName]:
    """Create views of some frames, or of all and drop those of refused tables; return the tables by view."""
    chosen = sorted(frames if tables is None else {TableName(schema, table) for schema, table in tables})
    names = view_names(chosen, name)
    found = {view: frames[table] for view, table in names.items()}
    for schema, table in refused if tables is None else ():
        lake.spark.catalog.dropTempView(name(schema, table))
    for view, frame in found.items():
        frame.createOrReplaceTempView(quoted(view))
    return names


def view_names(tables: Collection[TableName], name: Callable[[str, str], str]) -> dict[str, TableName]:
    """Return the tables by the names of their views, which must differ not only in case."""
    views: dict[str, TableName] = {}
    by_folded_name: dict[str, TableName] = {}
    for table in tables:
        view = name(*table)
        other = by_folded_name.setdefault(view.casefold(), table)
        if other != table:
            raise LakeError(
                f"The views of {other} and {table} would both be named {view}. Pass `name` to name them "
                "differently, or choose tables."
            )
        views[view] = table
    return views
