"""The sections of the file about the jobs: what they use, how long they keep it, and what they maintain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from pipeline.config.scalars import (
    AtOnce,
    ByteCount,
    CatalogSchema,
    CatalogTable,
    CatalogUri,
    Flag,
    HashKey,
    Number,
    Retention,
    Seconds,
    Text,
    Word,
)
from pipeline.config.tables import FILE_SECTION


@dataclass(frozen=True, slots=True)
class BronzeLog:
    """How long bronze keeps all changes."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    retention: Annotated[
        Retention,
        Field(
            description="How long bronze keeps every change, such as `30d`. `pgdelta maintain` compacts older"
            " ones to the rows that each table had; the jobs do not. `pgdelta rebuild` works as before.",
            examples=["30d", "forever"],
            json_schema_extra={"x-default": "`forever`"},
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Apply:
    """How apply works."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    tables_at_once: Annotated[
        AtOnce,
        Field(
            description="How many silver tables are written at once. `auto` is one more than the cores of"
            " this process, from 2 to 8 and fewer if memory is short; if Spark writes all tables, one more"
            " than Spark's cores, from 2 to 16. With `1`, batches wait for slow tables."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class CatalogService:
    """A catalog in which silver tables are registered."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    type: Annotated[
        Literal["spark", "glue", "hive", "unity"],
        Word,
        Field(
            description="`spark`: the catalog of the Spark session; `glue`: AWS Glue, by boto3; `hive`: a"
            " Hive metastore, by Thrift; `unity`: Unity Catalog, by its REST API. All but the first start no"
            " Spark.",
            examples=["glue", "unity"],
        ),
    ]
    uri: Annotated[
        str | None,
        CatalogUri,
        Field(
            description="The Hive metastore, `thrift://HOST:PORT`, or several with commas between them, tried"
            " in order; the server of Unity Catalog, `https://HOST`. Only of `hive` and `unity`.",
            examples=["thrift://metastore:9083"],
            json_schema_extra={"x-default": "required with `hive` and `unity`"},
        ),
    ] = None
    catalog: Annotated[
        str | None,
        Text,
        Field(
            pattern=r"^[^./\s\x00-\x1f\x7f]{1,255}$",
            description="The catalog in Unity Catalog that has the schemas. Only of `unity`.",
            examples=["main"],
            json_schema_extra={
                "patternErrorMessage": "The name of a catalog has no dot, slash or space.",
                "x-default": "required with `unity`",
            },
        ),
    ] = None
    token: Annotated[
        str | None,
        HashKey,
        Field(
            description="Token that is sent to Unity Catalog, as a `${VARIABLE}` without a default. Only of"
            " `unity`.",
            examples=["${UNITY_TOKEN}"],
            json_schema_extra={"x-default": "none"},
        ),
    ] = field(default=None, repr=False)
    token_file: Annotated[
        str | None,
        Text,
        Field(
            description="File with the token instead, which is read for each request. Only of `unity`.",
            examples=["/run/secrets/unity-token"],
            json_schema_extra={"x-default": "none"},
        ),
    ] = None
    region: Annotated[
        str | None,
        Text,
        Field(
            description="The region of AWS Glue.",
            examples=["eu-central-1"],
            json_schema_extra={"x-default": "that of AWS's settings, such as `AWS_DEFAULT_REGION`"},
        ),
    ] = None
    catalog_id: Annotated[
        str | None,
        Text,
        Field(
            description="The account whose AWS Glue it is. Only of `glue`, as `region`.",
            examples=["123456789012"],
            json_schema_extra={"x-default": "that of the credentials"},
        ),
    ] = None

    @property
    def recorded_type(self) -> str | None:
        """The type as `_pgdelta/catalog_entries` has it, None for Spark's."""
        return None if self.type == "spark" else self.type


@dataclass(frozen=True, slots=True)
class Catalog:
    """How silver tables are named in catalogs; without `schema`, not at all."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    schema: Annotated[
        str | None,
        CatalogSchema,
        Field(
            description="Schema in which apply registers silver tables: a name, also with `{schema}`, the"
            " schema at the source, and `{pipeline}`.",
            examples=["{schema}", "shop", "raw_{schema}"],
            json_schema_extra={"x-default": "no table is registered"},
        ),
    ] = None
    table: Annotated[
        str,
        CatalogTable,
        Field(
            description="Name of each table there: a name with `{table}`, and also `{schema}` and"
            " `{pipeline}`.",
            examples=["{table}", "{schema}_{table}"],
        ),
    ] = "{table}"
    targets: Annotated[
        tuple[CatalogService, ...],
        Field(
            description="The catalogs, one of a type.",
            json_schema_extra={
                "minItems": 1,
                "x-default": "that of Spark, which must have a metastore",
            },
        ),
    ] = (CatalogService("spark"),)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """When tables are maintained and files are merged, and how long what is out of date is kept."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    enabled: Annotated[
        bool,
        Flag,
        Field(
            description="Let ingest maintain bronze, and apply silver and the tables under `_pgdelta`, while"
            " they run. `false` leaves that to `pgdelta maintain`."
        ),
    ] = True
    every: Annotated[
        Seconds,
        Field(
            description="Least time before a job maintains the same table again, such as `15min`.",
            examples=["15min", "1h"],
            json_schema_extra={"default": "15min"},
        ),
    ] = 900
    small_files: Annotated[
        int,
        Field(
            ge=2, le=100_000, description="Number of small files from which on a table's files are merged."
        ),
        Number,
    ] = 20
    small_file_size: Annotated[
        ByteCount,
        Field(
            description="Size below which a file is small, such as `16MB`. A merged file has about four times"
            " as much at most. In silver a file is small below 2 MB, of tables above 8 GB below a 4,000th of"
            " the table. `0` merges none.",
            examples=["16MB"],
            json_schema_extra={"default": "16MB"},
        ),
    ] = 16 << 20
    vacuum: Annotated[
        bool,
        Flag,
        Field(
            description="Remove files that left a table longer ago than its"
            " `delta.deletedFileRetentionDuration`. `as_of` cannot read older versions that need them."
        ),
    ] = True
    log_retention: Annotated[
        Seconds,
        Field(
            description="How long bronze and the tables under `_pgdelta` keep old versions, such as `24h`:"
            " the commits that `pgdelta audit` can walk, and time travel by version. `0` leaves these tables'"
            " properties as they are. Silver is not affected.",
            examples=["24h", "168h"],
            json_schema_extra={"default": "24h"},
        ),
    ] = 86_400
    log_commits: Annotated[
        int,
        Field(
            ge=0,
            le=10_000_000,
            description="How many of the newest commits the logs of bronze and of the tables under `_pgdelta`"
            " keep. Older commits go after an hour, even if `log_retention` has not passed. `0` sets no"
            " number.",
        ),
        Number,
    ] = 2000
    silver_log_commits: Annotated[
        int,
        Field(
            ge=0,
            le=10_000_000,
            description="How many of the newest commits the logs of silver tables keep: `as_of` cannot read"
            " older versions. `0` sets no number: old versions go after the table's"
            " `delta.logRetentionDuration`, 30 days by default.",
        ),
        Number,
    ] = 0


@dataclass(frozen=True, slots=True)
class Ingest:
    """What ingest may use of this machine."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    spool_limit: Annotated[
        ByteCount,
        Field(
            description="Size of the staged files at which ingest stops reading while a commit to bronze is"
            " under way, for the stream and for table copies each. It continues after that commit. A"
            " transaction may be larger. `0` sets no limit.",
            examples=["20GB"],
            json_schema_extra={"default": "4GB"},
        ),
    ] = 4 << 30


DEFAULT_BRONZE = BronzeLog()
DEFAULT_APPLY = Apply()
DEFAULT_MAINTENANCE = Maintenance()
DEFAULT_INGEST = Ingest()
DEFAULT_CATALOG = Catalog()
