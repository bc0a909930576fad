"""The sections of the file about the jobs: what they use, how long they keep it, and what they maintain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from pipeline.config.scalars import AtOnce, ByteCount, Flag, Number, Retention, Seconds
from pipeline.config.tables import FILE_SECTION


@dataclass(frozen=True, slots=True)
class BronzeLog:
    """How long bronze keeps all changes."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    retention: Annotated[
        Retention,
        Field(
            description="How long bronze keeps every change, such as `30d`. `pgdelta maintain` then compacts"
            " older ones to the rows that each table had, from which `pgdelta rebuild` works on.",
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
            description="How many silver tables are written at once: a number, or `auto`, one more than the"
            " cores that this process or, if Spark writes all tables, Spark has. `auto` is at least 2 and at"
            " most 8, with Spark 16. With `1`, batches wait for slow tables."
        ),
    ] = "auto"


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
            description="How often the jobs maintain one table at most, such as `15min`.",
            examples=["15min", "1h"],
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
        ),
    ] = 86_400
    log_commits: Annotated[
        int,
        Field(
            ge=0,
            le=10_000_000,
            description="Number of newest commits that the logs of bronze and of the tables under `_pgdelta`"
            " keep. Older ones go after an hour, before `log_retention` has passed. `0` sets no number.",
        ),
        Number,
    ] = 2000
    silver_log_commits: Annotated[
        int,
        Field(
            ge=0,
            le=10_000_000,
            description="The same for silver tables: `as_of` cannot read versions whose commits have gone."
            " `0` sets no number, and old versions go after 30 days or"
            " `delta.logRetentionDuration` of a table.",
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
            description="Size of the staged files from which on ingest reads nothing more while a commit to"
            " bronze is under way, of the stream and of table copies each. It goes on once that commit is"
            " done, so a transaction may be larger; 0 is no limit.",
            examples=["20GB"],
            json_schema_extra={"default": "4GB"},
        ),
    ] = 4 << 30


DEFAULT_BRONZE, DEFAULT_APPLY, DEFAULT_MAINTENANCE, DEFAULT_INGEST = (
    BronzeLog(),
    Apply(),
    Maintenance(),
    Ingest(),
)
