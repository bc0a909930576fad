"""The sections about the jobs: what they use, keep and maintain, and how often they prove silver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pipeline.config.scalars import (
    AtOnce,
    ByteCount,
    CatalogSchema,
    CatalogTable,
    CatalogUri,
    FileSection,
    Flag,
    HashKey,
    Number,
    Rate,
    Retention,
    Seconds,
    Text,
    Word,
    key,
)


@dataclass(frozen=True, slots=True)
class BronzeLog(FileSection):
    """How long bronze keeps all changes."""

    retention: Annotated[
        Retention,
        key(
            "How long bronze keeps every change, such as `30d`. `pgdelta maintain` compacts older ones to the"
            " rows that each table had; the jobs do not. `pgdelta rebuild` works as before.",
            default="`forever`",
            examples=["30d", "forever"],
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Apply(FileSection):
    """How apply works."""

    tables_at_once: Annotated[
        AtOnce,
        key(
            "How many silver tables are written at once. `auto` is one more than the cores of this process,"
            " from 2 to 8 and fewer if memory is short; if Spark writes all tables, one more than Spark's"
            " cores, from 2 to 16. With `1`, batches wait for slow tables."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class CatalogService(FileSection):
    """A catalog in which silver tables are registered."""

    type: Annotated[
        Literal["spark", "glue", "hive", "unity"],
        Word,
        key(
            "`spark`: the catalog of the Spark session; `glue`: AWS Glue, by boto3; `hive`: a Hive metastore,"
            " by Thrift; `unity`: Unity Catalog, by its REST API. All but the first start no Spark.",
            examples=["glue", "unity"],
        ),
    ]
    uri: Annotated[
        str | None,
        CatalogUri,
        key(
            "The Hive metastore, `thrift://HOST:PORT`, or several with commas between them, tried in order;"
            " the server of Unity Catalog, `https://HOST`. Only of `hive` and `unity`.",
            default="required with `hive` and `unity`",
            examples=["thrift://metastore:9083"],
        ),
    ] = None
    catalog: Annotated[
        str | None,
        Text,
        key(
            "The catalog in Unity Catalog that has the schemas. Only of `unity`.",
            default="required with `unity`",
            json_schema_extra={"patternErrorMessage": "The name of a catalog has no dot, slash or space."},
            pattern=r"^[^./\s\x00-\x1f\x7f]{1,255}$",
            examples=["main"],
        ),
    ] = None
    token: Annotated[
        str | None,
        HashKey,
        key(
            "Token that is sent to Unity Catalog, as a `${VARIABLE}` without a default. Only of `unity`.",
            default="none",
            examples=["${UNITY_TOKEN}"],
        ),
    ] = field(default=None, repr=False)
    token_file: Annotated[
        str | None,
        Text,
        key(
            "File with the token instead, which is read for each request. Only of `unity`.",
            default="none",
            examples=["/run/secrets/unity-token"],
        ),
    ] = None
    region: Annotated[
        str | None,
        Text,
        key(
            "The region of AWS Glue.",
            default="that of AWS's settings, such as `AWS_DEFAULT_REGION`",
            examples=["eu-central-1"],
        ),
    ] = None
    catalog_id: Annotated[
        str | None,
        Text,
        key(
            "The account whose AWS Glue it is. Only of `glue`, as `region`.",
            default="that of the credentials",
            examples=["123456789012"],
        ),
    ] = None

    @property
    def recorded_type(self) -> str | None:
        """The type as `_pgdelta/catalog_entries` has it, None for Spark's."""
        return None if self.type == "spark" else self.type


@dataclass(frozen=True, slots=True)
class Catalog(FileSection):
    """How silver tables are named in catalogs; without `schema`, not at all."""

    schema: Annotated[
        str | None,
        CatalogSchema,
        key(
            "Schema in which apply registers silver tables: a name, also with `{schema}`, the schema at the"
            " source, and `{pipeline}`.",
            default="no table is registered",
            examples=["{schema}", "shop", "raw_{schema}"],
        ),
    ] = None
    table: Annotated[
        str,
        CatalogTable,
        key(
            "Name of each table there: a name with `{table}`, and also `{schema}` and `{pipeline}`.",
            examples=["{table}", "{schema}_{table}"],
        ),
    ] = "{table}"
    targets: Annotated[
        tuple[CatalogService, ...],
        key(
            "The catalogs, one of a type.",
            default="that of Spark, which must have a metastore",
            json_schema_extra={"minItems": 1},
        ),
    ] = (CatalogService("spark"),)


@dataclass(frozen=True, slots=True)
class Maintenance(FileSection):
    """When tables are maintained and files are merged, and how long what is out of date is kept."""

    enabled: Annotated[
        bool,
        Flag,
        key(
            "Let ingest maintain bronze, and apply silver and the tables under `_pgdelta`, while they run."
            " `false` leaves that to `pgdelta maintain`."
        ),
    ] = True
    every: Annotated[
        Seconds,
        key(
            "Least time before a job maintains the same table again, such as `15min`.",
            json_schema_extra={"default": "15min"},
            examples=["15min", "1h"],
        ),
    ] = 900
    small_files: Annotated[
        int, key("Number of small files from which on a table's files are merged.", ge=2, le=100_000), Number
    ] = 20
    small_file_size: Annotated[
        ByteCount,
        key(
            "Size below which a file is small, such as `16MB`. A merged file has about four times as much at"
            " most. In silver a file is small below 2 MB, of tables above 8 GB below a 4,000th of the table."
            " `0` merges none.",
            json_schema_extra={"default": "16MB"},
            examples=["16MB"],
        ),
    ] = 16 << 20
    vacuum: Annotated[
        bool,
        Flag,
        key(
            "Remove files that left a table longer ago than its `delta.deletedFileRetentionDuration`. `as_of`"
            " cannot read older versions that need them."
        ),
    ] = True
    log_retention: Annotated[
        Seconds,
        key(
            "How long bronze and the tables under `_pgdelta` keep old versions, such as `24h`: the commits"
            " that `pgdelta audit` can walk, and time travel by version. `0` leaves these tables' properties"
            " as they are. Silver is not affected.",
            json_schema_extra={"default": "24h"},
            examples=["24h", "168h"],
        ),
    ] = 86_400
    log_commits: Annotated[
        int,
        key(
            "How many of the newest commits the logs of bronze and of the tables under `_pgdelta` keep. Older"
            " commits go after an hour, even if `log_retention` has not passed. `0` sets no number.",
            ge=0,
            le=10_000_000,
        ),
        Number,
    ] = 2000
    silver_log_commits: Annotated[
        int,
        key(
            "How many of the newest commits the logs of silver tables keep: `as_of` cannot read older"
            " versions. `0` sets no number: old versions go after the table's `delta.logRetentionDuration`,"
            " 30 days by default.",
            ge=0,
            le=10_000_000,
        ),
        Number,
    ] = 0


@dataclass(frozen=True, slots=True)
class Ingest(FileSection):
    """What ingest may use of this machine."""

    spool_limit: Annotated[
        ByteCount,
        key(
            "Size of the staged files at which ingest stops reading while a commit to bronze is under way,"
            " or a large transaction is written, for the stream and for table copies each. It continues"
            " after that. A transaction may be larger. `0` sets no limit.",
            json_schema_extra={"default": "4GB"},
            examples=["20GB"],
        ),
    ] = 4 << 30


@dataclass(frozen=True, slots=True)
class Verify(FileSection):
    """How often each silver table is proved to equal its source; None is never."""

    every: Annotated[
        Retention,
        key(
            "How old the last proof of a table may become: then a continuous `pgdelta ingest` or `pgdelta"
            " run` proves it meanwhile, as `pgdelta prove --due` does, the oldest first.",
            default="proofs are made by command only",
            examples=["1d", "12h"],
        ),
    ] = None
    budget: Annotated[
        Rate | None,
        key(
            "How much of the source's tables a proof reads a second at most.",
            default="no limit",
            examples=["20MB/s"],
        ),
    ] = None
