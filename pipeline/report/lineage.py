"""OpenLineage events of runs: source tables, bronze and silver as datasets, with columns and LSNs. Pure.

In come the records of the lake, out come events as data, by version 2-0-2 of the specification. They have
names, types, counts and LSNs, and no values of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from pipeline import __version__
from pipeline.config.scalars import read_public_keywords
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import utc_text
from pipeline.metadata.registry import RegisteredTable
from pipeline.protected_columns import HMAC_SHA256, find_protected
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

PRODUCER = f"urn:pgdelta:{__version__}"
SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
POSITION_KEY = "pgdelta_position"
POSITION = "urn:pgdelta:facets:1-0-0:PgdeltaPositionFacet"
"""The schema of our own facet: docs/reference/PgdeltaPositionFacet.json."""
_VERSIONS = {
    "SchemaDatasetFacet": "1-2-0",
    "ColumnLineageDatasetFacet": "1-2-0",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
}
_WITHOUT_SLASH = ("s3", "gs")  # the name of such a dataset is the key of an object

Dataset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineageJob:
    """A job of one run: `ingest` or `apply` of a pipeline, and the UUID of the run."""

    namespace: str
    name: str
    run_id: str

    def event(
        self,
        kind: str,
        time: datetime,
        *,
        position: Mapping[str, Any] | None = None,
        inputs: Sequence[Dataset] = (),
        outputs: Sequence[Dataset] = (),
        failure: str | None = None,
        is_continuous: bool = False,
    ) -> dict[str, Any]:
        """Return an event; `kind` is START, RUNNING, COMPLETE, FAIL or ABORT."""
        run: dict[str, Any] = {} if position is None else {POSITION_KEY: position}
        if failure is not None:
            run["errorMessage"] = _facet(
                "ErrorMessageRunFacet", message=failure, programmingLanguage="PYTHON"
            )
        processing = "STREAMING" if is_continuous else "BATCH"
        job = _facet("JobTypeJobFacet", processingType=processing, integration="PGDELTA", jobType="JOB")
        return {
            "eventType": kind,
            "eventTime": utc_text(time),
            "producer": PRODUCER,
            "schemaURL": SCHEMA,
            "run": {"runId": self.run_id, "facets": run},
            "job": {"namespace": self.namespace, "name": self.name, "facets": {"jobType": job}},
            "inputs": list(inputs),
            "outputs": list(outputs),
        }


def _facet(name: str, **content: Any) -> dict[str, Any]:
    schema = f"https://openlineage.io/spec/facets/{_VERSIONS[name]}/{name}.json#/$defs/{name}"
    return {"_producer": PRODUCER, "_schemaURL": schema, **content}


def position(lsn: LSN, commit_time: datetime | None = None) -> dict[str, Any] | None:
    """Return the facet with an LSN and the time of its commit, None without an LSN."""
    if lsn == INVALID:
        return None
    found = {"_producer": PRODUCER, "_schemaURL": POSITION, "lsn": str(lsn)}
    return found if commit_time is None else {**found, "commitTime": utc_text(commit_time)}


@dataclass(frozen=True, slots=True)
class SourceServer:
    """The namespace of a server's tables, and the database that begins their names."""

    namespace: str
    database: str

    @classmethod
    def of(cls, conninfo: str, environ: Mapping[str, str]) -> SourceServer:
        """Return the server of a connection string, with libpq's environment and defaults."""
        words = read_public_keywords(conninfo)
        host, _, port = words.get("host", environ.get("PGHOST", "")).split(",")[0].partition(":")
        host = "localhost" if not host or host.startswith("/") else host
        port = words.get("port", port or environ.get("PGPORT", "")).split(",")[0] or "5432"
        user = words.get("user", environ.get("PGUSER", ""))
        return cls(f"postgres://{host}:{port}", words.get("dbname", environ.get("PGDATABASE", user)))

    def table(self, name: TableName, columns: Iterable[tuple[str, str]] = ()) -> Dataset:
        """Return a table with its columns, pairs of name and type."""
        fields = [{"name": column, "type": kind} for column, kind in columns]
        facets = {"schema": _facet("SchemaDatasetFacet", fields=fields)} if fields else {}
        return {"namespace": self.namespace, "name": self._name(name), "facets": facets}

    def _name(self, name: TableName) -> str:
        return ".".join(filter(None, (self.database, *name)))

    def column_lineage(self, table: RegisteredTable) -> dict[str, Any]:
        """Return from which column of the source each column of a silver table comes, and whether masked."""
        fields = {}
        for column in table.columns:
            if column.type_oid is None:
                continue  # the source does not have it any more
            protected = find_protected(table.protected, column.name, column.attribute_number)
            change = {"type": "DIRECT", "subtype": "IDENTITY", "masking": False}
            if protected is not None:
                is_hash = protected.rule.startswith(HMAC_SHA256)
                rule = HMAC_SHA256 if is_hash else " ".join(protected.rule.split()[:2])
                change = {"type": "DIRECT", "subtype": "TRANSFORMATION", "description": rule, "masking": True}
            origin = {"namespace": self.namespace, "name": self._name(table.name), "field": column.name}
            fields[column.silver_name] = {"inputFields": [{**origin, "transformations": [change]}]}
        return _facet("ColumnLineageDatasetFacet", fields=fields)


def lake_dataset(path: str) -> Dataset:
    """Return a table of the lake, without facets, named by its place."""
    scheme, authority, rest, *_ = urlsplit(path.replace("?", "%3F").replace("#", "%23"))
    rest = rest.replace("%3F", "?").replace("%23", "#")
    scheme = {"s3a": "s3"}.get(scheme, scheme)
    if scheme in ("", "file"):
        return {"namespace": "file", "name": rest, "facets": {}}
    name = rest.lstrip("/") if scheme in _WITHOUT_SLASH else rest
    return {"namespace": f"{scheme}://{authority}", "name": name, "facets": {}}


def written(
    path: str,
    schema: TableSchema,
    rows: int,
    at: Mapping[str, Any] | None,
    columns: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return a table of the lake to which a run wrote: its columns, how many rows, and up to which LSN."""
    found = lake_dataset(path)
    fields = [{"name": field.name, "type": field.ddl} for field in schema.fields]
    facets: dict[str, Any] = {"schema": _facet("SchemaDatasetFacet", fields=fields)}
    facets |= {} if columns is None else {"columnLineage": columns}
    facets |= {} if at is None else {POSITION_KEY: at}
    statistics = _facet("OutputStatisticsOutputDatasetFacet", rowCount=rows)
    return {**found, "facets": facets, "outputFacets": {"outputStatistics": statistics}}
