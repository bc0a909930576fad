"""All silver tables as of one commit of the source.

Silver tables are written one by one; a manifest says which version of each shows the source as of one LSN.
Read by these versions, tables agree with one another: a transaction that wrote to several of them is seen in
all of them or in none.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.delta.log import JVM_ERRORS
from pipeline.delta.sql import quoted
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError, LakeError, ProtocolError, describe_error, report_error
from pipeline.metadata.manifests import Manifest, ManifestEntry, Manifests
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import LSN
from pipeline.silver.versions import resolve_path, why_unreadable
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class TableAsOf:
    """One silver table at the version that shows the commit; `refusal` says why it cannot be read so."""

    name: TableName
    path: str
    version: int
    refusal: str | None = None

    @property
    def query(self) -> str:
        """Return the query of all its rows."""
        return f"SELECT * FROM delta.{quoted(self.path)} VERSION AS OF {self.version}"


class AsOf(Mapping[TableName, DataFrame]):
    """Silver as of one commit: (schema, table) → its rows; `behind` names what did not get that far.

    Of a table that is behind, or whose version is gone, `silver[schema, table]` raises LakeError with a
    sentence; of one that silver did not have then, KeyError. Iteration leaves out tables that are behind.
    """

    def __init__(self, lake: Lake, manifest: Manifest) -> None:
        self.lsn = manifest.lsn
        self.commit_time = manifest.commit_time
        self._lake = lake
        self.behind = manifest.behind
        self._entries = manifest.by_name
        self._tables: dict[TableName, TableAsOf] = {}
        self._elsewhere: dict[TableName, str] | None = None

    def table(self, schema: str, table: str) -> TableAsOf:
        """Return path and version of a table, and whether it can be read; nothing is raised but KeyError."""
        name = TableName(schema, table)
        if name not in self._tables:
            self._tables[name] = self._look(self._entries[name])
        return self._tables[name]

    def create_views(
        self,
        tables: Collection[TableName] | None = None,
        *,
        name: Callable[[str, str], str] = lambda schema, table: f"{schema}__{table}",
    ) -> dict[str, TableName]:
        """Make temporary views of tables, or of all that are not behind; return their names.

        A view is called `<schema>__<table>`, names unchanged, or as `name` says; what is no plain identifier
        has to be quoted in SQL (`` `Sales__Order items` ``). A view of before is replaced, that of a table
        which is behind is dropped. Raise LakeError where two views would have one name, or a table cannot
        be read; then no view is made.
        """
        wanted = sorted(self if tables is None else {TableName(schema, table) for schema, table in tables})
        names = view_names(wanted, name)
        frames = {view: self[table] for view, table in names.items()}
        for schema, table in self.behind if tables is None else ():
            self._lake.spark.catalog.dropTempView(name(schema, table))
        for view, frame in frames.items():
            frame.createOrReplaceTempView(quoted(view))
        return names

    def __getitem__(self, name: TableName) -> DataFrame:
        found = self.table(*name)
        if found.refusal:
            raise LakeError(found.refusal)
        reader = self._lake.spark.read.format("delta").option("versionAsOf", found.version)
        try:
            return reader.load(found.path)
        except PySparkException as error:
            raise LakeError(f"{name} cannot be read: {describe_error(error)}") from error

    def __contains__(self, name: object) -> bool:
        return name in self._entries and name not in self.behind

    def __iter__(self) -> Iterator[TableName]:
        return (name for name in sorted(self._entries) if name not in self.behind)

    def __len__(self) -> int:
        return len(self._entries) - len(self.behind)

    def __repr__(self) -> str:
        return f"<silver as of {self.lsn}: {len(self)} tables, {len(self.behind)} behind>"

    def _look(self, entry: ManifestEntry) -> TableAsOf:
        name = entry.name
        path = resolve_path(entry.path, name, self._lake.root)
        found = TableAsOf(name, path, entry.version)
        if entry.is_behind:
            sentence = (
                f"{name} was as of {entry.applied_lsn} when the others were as of {self.lsn}: its "
                "rows would be those of another commit; ask for a manifest in which it caught up"
            )
            return replace(found, refusal=sentence)
        first: str | None = None
        for place in self._places(path, name):
            try:
                refusal = why_unreadable(self._lake.table_at(place), entry.version, self.lsn, entry.table_id)
            except JVM_ERRORS as error:
                refusal = report_error(error)
            if refusal is None:
                return replace(found, path=place)
            first = first or refusal
        return replace(found, refusal=f"{name} cannot be read as of {self.lsn}: {first}")

    def _places(self, path: str, name: TableName) -> list[str]:
        """Return where a table may be: where it was, unless another is there, and where it is on record."""
        if self._elsewhere is None:
            registered = Records(self._lake).registered()
            self._elsewhere = {n: resolve_path(t.path, n, self._lake.root) for n, t in registered.items()}
        now = self._elsewhere.get(name)
        is_taken = any(place == path and other != name for other, place in self._elsewhere.items())
        places = [] if is_taken and now not in (None, path) else [path]
        return places if now in (None, path) else [*places, now]


def as_of(
    spark: SparkSession, root: str, *, lsn: LSN | int | str | None = None, timestamp: Any = None
) -> AsOf:
    """Return silver as of the newest manifest, or the newest at or before an LSN or a commit time.

    `root` is the configuration's `storage.root`; `lsn` is text like `16/B374D848` or a number; `timestamp`
    is a datetime or ISO 8601 text, in UTC where it names no zone. Raise LakeError where there is no manifest
    that old, ConfigError for an LSN or a time that is none.
    """
    if lsn is not None and timestamp is not None:
        raise ConfigError("as of what: an LSN or a timestamp, not both")
    asked_lsn = None if lsn is None else parse_lsn(lsn)
    asked_time = None if timestamp is None else parse_time(timestamp)
    if not hasattr(spark, "_jsparkSession"):
        raise LakeError(
            "as_of reads Delta's log in the JVM of its session, and Spark Connect has none: run the queries "
            "that pgdelta as-of prints"
        )
    lake = Lake(spark, root)
    return AsOf(lake, Manifests(lake).at(asked_lsn, asked_time))


def parse_lsn(value: LSN | int | str) -> LSN:
    """Return a position that a person gave; raise ConfigError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{value!r} is not an LSN: write two hexadecimal numbers like 16/B374D848")
    if isinstance(value, str):
        try:
            return LSN.parse(value.strip())
        except ProtocolError as error:
            raise ConfigError(str(error)) from None
    if not 0 <= value < 2**63:
        raise ConfigError(f"{value} is not an LSN: a position is 0 or more, below 2⁶³")
    return LSN(value)


def parse_time(value: Any) -> datetime:
    """Return a point in time that a person gave, with its zone; raise ConfigError where it is none."""
    if isinstance(value, str):
        text = value.strip()
        try:
            # Z is read by Python 3.11 and newer only
            value = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            raise ConfigError(f"{text!r} is not a time: write one like 2026-01-31T12:00:00Z") from None
    if not isinstance(value, datetime):
        raise ConfigError(f"{value!r} is not a time: give a datetime, or text like 2026-01-31T12:00:00Z")
    return value if value.tzinfo else value.replace(tzinfo=timezone.utc)


def view_names(tables: Collection[TableName], name: Callable[[str, str], str]) -> dict[str, TableName]:
    """Return the tables by the names of their views; Spark does not tell names apart by case alone."""
    found: dict[str, TableName] = {}
    seen: dict[str, TableName] = {}
    for table in tables:
        view = name(*table)
        other = seen.setdefault(view.casefold(), table)
        if other != table:
            raise LakeError(
                f"the views of {other} and {table} would both be called {view}: give a "
                "name of your own, or choose tables"
            )
        found[view] = table
    return found
