"""The configuration as frozen values: one class per section of the file, one annotated field per key.

The annotations are the single description of the file: pydantic validates it against them (`load`), and the
JSON Schema and the reference page are generated from them (`schema`). Only the file is validated; code
that builds or replaces a value is trusted. Nothing here reads a file or connects to anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from pipeline.config.alerts import DEFAULT_ALERTS, Alerting
from pipeline.config.jobs import (
    DEFAULT_APPLY,
    DEFAULT_BRONZE,
    DEFAULT_CATALOG,
    DEFAULT_INGEST,
    DEFAULT_MAINTENANCE,
    Apply,
    BronzeLog,
    Catalog,
    Ingest,
    Maintenance,
)
from pipeline.config.lineage import DEFAULT_LINEAGE, Lineage
from pipeline.config.scalars import Flag, Internal, Root, Seconds, Text, Word
from pipeline.config.schedule import NO_SCHEDULE, Schedule
from pipeline.config.source import DEFAULT_SOURCE, Copying, Create, Protocol, Source
from pipeline.config.storage import DEFAULT_STORAGE, Storage
from pipeline.config.tables import (
    COMMITTED_VERSIONS,
    FILE_SECTION,
    NO_LIMITS,
    PIPELINE_RETENTION,
    DetachedTables,
    DroppedColumns,
    DroppedPartitions,
    Guards,
    History,
    Inheritance,
    Misfits,
    OnChange,
    Readers,
    SilverMode,
    TableRule,
    TypeChanges,
)
from pipeline.config.verify import DEFAULT_VERIFY, Verify
from pipeline.table_name import TableName

__all__ = ["Config", "Copying", "Create", "Protocol", "Silver", "Source", "Storage"]


@dataclass(frozen=True, slots=True)
class Silver:
    """How silver tables are kept if their rule does not say."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    mode: Annotated[
        SilverMode,
        Field(
            description="How rows are kept: `mirror` has one row per source row; `soft_delete` marks a row"
            " that the source deletes, and keeps its last values; `history` has one row per version that a"
            " commit left; `append` has one row per change."
        ),
    ] = "mirror"
    history: Annotated[
        History,
        Field(description="Which versions tables in the mode `history` have."),
    ] = COMMITTED_VERSIONS
    on_delete: Annotated[
        OnChange,
        Field(
            description="What a DELETE does in the mode `mirror`: silver deletes the row (`apply`) or keeps"
            " it (`ignore`)."
        ),
    ] = "apply"
    on_truncate: Annotated[
        OnChange,
        Field(
            description="What a TRUNCATE does in the mode `mirror`: silver deletes all rows (`apply`) or"
            " keeps them (`ignore`)."
        ),
    ] = "apply"
    metadata_columns: Annotated[
        bool,
        Flag,
        Field(description="Add `_commit_lsn` and `_commit_time` of the transaction that last wrote the row."),
    ] = True
    misfits: Annotated[
        Misfits,
        Field(
            description="What happens to a value that its silver type cannot hold: NULL (`null`), NULL with"
            " the text in a column `<column>__text` (`text`), the nearest value (`clamp`), or the table stops"
            " before it (`error`)."
        ),
    ] = "null"
    dropped_columns: Annotated[
        DroppedColumns,
        Field(
            description="What happens to a column that is dropped from the source table: silver keeps it with"
            " its values (`keep`) or drops it (`drop`)."
        ),
    ] = "keep"
    type_changes: Annotated[
        TypeChanges,
        Field(
            description="What happens at a type change, in the source or in `types`, that the silver column"
            " cannot hold: the table is held before it (`hold`), rebuilt from bronze (`rebuild`), or copied"
            " again (`resync`), which also brings what `ALTER TABLE … USING` computed."
        ),
    ] = "hold"
    readers: Annotated[
        Readers,
        Field(
            description="Which readers tables are kept for. With `spark`, silver renames, drops or widens a"
            " column by a change of metadata, and readers need column mapping or type widening from then on."
            " With `widest`, one commit writes the table's files again instead, and readers need no table"
            " feature but that of a TIMESTAMP_NTZ column, which `types` can make a STRING. Columns and rows"
            " are the same."
        ),
    ] = "spark"
    shared_root: Annotated[
        str | None,
        Root,
        Field(
            description="Folder of the silver tables whose target has `{table}`. Pipelines with the same one"
            " write the same tables.",
            examples=["/data/shared"],
            json_schema_extra={"x-default": "`{storage.root}/silver`"},
        ),
    ] = None
    resync: Annotated[
        Literal["ask", "auto"],
        Word,
        Field(
            description="What happens when the stream does not carry a change: an event says that the table"
            " needs a resync (`ask`), or the table is resynced (`auto`)."
        ),
    ] = "ask"
    rewrites: Annotated[
        Literal["compare", "resync", "event"],
        Word,
        Field(
            description="What happens when the source rewrites a table, as `ALTER TABLE … TYPE … USING`"
            " does, and no row proves that the values are the same, alters an enum or composite type so that"
            " stored values have another text, or edits the publication and nothing proves that no change was"
            " missed: the table is compared with the source and"
            " what differs is copied (`compare`), all its rows are copied (`resync`), or an event says that"
            " it needs a resync (`event`). Without comparable rows (`source.copy: never`, mode `append`,"
            " operations that are ignored or not published), `compare` records the event."
        ),
    ] = "compare"
    detached_tables: Annotated[
        DetachedTables,
        Field(
            description="What happens to a table that is dropped, no longer published or no longer matched:"
            " it stays in place (`keep`) or is moved to `{root}/archive` (`archive`). Ingest detects dropped"
            " and unpublished tables with `source.copy: initial`."
        ),
    ] = "keep"
    dropped_partitions: Annotated[
        DroppedPartitions,
        Field(
            description="What happens to the rows of a partition that is dropped or detached from a table"
            " that is published by its root: they leave silver, as they left `SELECT` on the root (`delete`),"
            " they stay until the next copy or comparison of it (`keep`, with an event of kind `info`),"
            " or the whole table is copied again (`resync`). `delete` goes by the bounds of the partition,"
            " which ingest recorded, and copies no row."
        ),
    ] = "delete"
    inheritance: Annotated[
        Inheritance,
        Word,
        Field(
            description="What happens to a table that others inherit from (`INHERITS`): silver has its own"
            " rows, as `SELECT … FROM ONLY` shows them, and says so (`parent_only`), or it is not followed"
            " (`refuse`, with `source.copy: initial`). Tables that inherit are tables of their own, unless"
            " the rule of one parent has `union`."
        ),
    ] = "parent_only"
    source_comments: Annotated[
        bool,
        Flag,
        Field(
            description="Whether silver tables and their columns get the comments on the source's"
            " (`COMMENT ON`)."
        ),
    ] = True
    writer: Annotated[
        Literal["auto", "spark", "native"],
        Word,
        Field(
            description="Who writes changes to silver tables: `spark`; `native`, this process without Spark,"
            " wherever it can; or `auto`, native where memory suffices. What only Spark can write, such as"
            " tables with deletion vectors, or on storage other than folders, object stores and HDFS, is"
            " always written by Spark."
        ),
    ] = "auto"
    min_interval: Annotated[
        Seconds,
        Field(
            description="Least time between two writes to a table in a continuous run, for fewer and larger"
            " writes; 0 writes what is pending in every batch. A run with the trigger `available-now` writes"
            " all tables.",
            examples=["30s", "5min"],
        ),
    ] = 0
    schedule: Annotated[
        Schedule,
        Field(
            description="At which hours of the day a continuous run writes tables how often. It applies to"
            " tables that have no `min_interval` of their own."
        ),
    ] = NO_SCHEDULE
    guards: Annotated[
        Guards,
        Field(
            description="Limits for one batch of a table; a table that would exceed one is held until you"
            " confirm the batch."
        ),
    ] = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of one pipeline; `path` is the file it was read from."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    pipeline: Annotated[
        str,
        Field(
            description="Name of the pipeline. It names the slot and the publication unless these are given,"
            " and identifies the transactions in the lake, so it never changes during a lake's life.",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
            examples=["shop"],
            json_schema_extra={
                "patternErrorMessage": "A pipeline name has 1 to 63 letters, digits, `_`, `.` or `-`, and"
                " starts with a letter or digit."
            },
        ),
        Text,
    ]
    source: Annotated[Source, Field(description="The PostgreSQL server, publication and slot to read.")] = (
        DEFAULT_SOURCE
    )
    storage: Annotated[Storage, Field(description="Where the lake is.")] = DEFAULT_STORAGE
    silver: Annotated[Silver, Field(description="How silver tables are kept if their rule does not say.")] = (
        Silver()
    )
    tables: Annotated[
        tuple[TableRule, ...],
        Field(
            description="Rules that map source tables to silver tables; the first match wins. A table without"
            " a rule has no silver table; `[]` captures bronze only.",
            json_schema_extra={"x-default": "all tables of `public`"},
        ),
    ] = (TableRule("public.*"),)
    path: Internal[str] = ""
    bronze: Annotated[BronzeLog, Field(description="How long bronze keeps changes.")] = DEFAULT_BRONZE
    maintenance: Annotated[
        Maintenance,
        Field(description="What the jobs and `pgdelta maintain` merge and remove, and when."),
    ] = DEFAULT_MAINTENANCE
    ingest: Annotated[Ingest, Field(description="What ingest may use of this machine.")] = DEFAULT_INGEST
    apply: Annotated[Apply, Field(description="How apply works.")] = DEFAULT_APPLY

    catalog: Annotated[
        Catalog, Field(description="By which names which catalogs have the silver tables.")
    ] = DEFAULT_CATALOG
    alerts: Annotated[Alerting, Field(description="What needs a person, and where the jobs send it.")] = (
        DEFAULT_ALERTS
    )
    verify: Annotated[Verify, Field(description="How often silver is proved to equal its source.")] = (
        DEFAULT_VERIFY
    )
    lineage: Annotated[
        Lineage, Field(description="Where the jobs send OpenLineage events of their runs.")
    ] = DEFAULT_LINEAGE

    def rule_for(self, name: TableName) -> TableRule | None:
        """Return the first rule that matches, or None: the table has no silver table."""
        return next((rule for rule in self.tables if rule.matches(name)), None)

    def retention_of(self, name: TableName) -> int | None:
        """Return how many seconds bronze keeps every change of a table, None for ever."""
        rule = self.rule_for(name)
        written = PIPELINE_RETENTION if rule is None else rule.retention
        return self.bronze.retention if written == PIPELINE_RETENTION else written

    @property
    def shortest_retention(self) -> int | None:
        """The shortest time in seconds that bronze keeps changes of some tables, None if all for ever."""
        found = (self.bronze.retention, *(rule.retention for rule in self.tables))
        return min((each for each in found if each), default=None)
