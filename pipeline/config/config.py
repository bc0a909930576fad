"""The configuration as frozen values: one class per section of the file, one annotated field per key.

The annotations are the single description of the file: pydantic validates it against them (`load`), and the
JSON Schema and the reference page are generated from them (`schema`). Only the file is validated; code
that builds or replaces a value is trusted. Nothing here reads a file or connects to anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pipeline.config.alerts import Alerting
from pipeline.config.jobs import Apply, BronzeLog, Catalog, Ingest, Maintenance, Verify
from pipeline.config.lineage import Lineage
from pipeline.config.scalars import FileSection, Flag, Internal, Root, Seconds, Text, Word, key
from pipeline.config.schedule import NO_SCHEDULE, Schedule
from pipeline.config.source import Copying, Create, Protocol, Source
from pipeline.config.storage import Storage
from pipeline.config.tables import (
    COMMITTED_VERSIONS,
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
from pipeline.table_name import TableName

__all__ = ["Config", "Copying", "Create", "Protocol", "Silver", "Source", "Storage"]


@dataclass(frozen=True, slots=True)
class Silver(FileSection):
    """How silver tables are kept if their rule does not say."""

    mode: Annotated[
        SilverMode,
        key(
            "How rows are kept: `mirror` has one row per source row; `soft_delete` marks a row that the"
            " source deletes, and keeps its last values; `history` has one row per version that a commit"
            " left; `append` has one row per change."
        ),
    ] = "mirror"
    history: Annotated[History, key("Which versions tables in the mode `history` have.")] = COMMITTED_VERSIONS
    on_delete: Annotated[
        OnChange,
        key(
            "What a DELETE does in the mode `mirror`: silver deletes the row (`apply`) or keeps it"
            " (`ignore`)."
        ),
    ] = "apply"
    on_truncate: Annotated[
        OnChange,
        key(
            "What a TRUNCATE does in the mode `mirror`: silver deletes all rows (`apply`) or keeps them"
            " (`ignore`)."
        ),
    ] = "apply"
    metadata_columns: Annotated[
        bool, Flag, key("Add `_commit_lsn` and `_commit_time` of the transaction that last wrote the row.")
    ] = True
    misfits: Annotated[
        Misfits,
        key(
            "What happens to a value that its silver type cannot hold: NULL (`null`), NULL with the text in a"
            " column `<column>__text` (`text`), the nearest value (`clamp`), or the table stops before it"
            " (`error`)."
        ),
    ] = "null"
    dropped_columns: Annotated[
        DroppedColumns,
        key(
            "What happens to a column that is dropped from the source table: silver keeps it with its values"
            " (`keep`) or drops it (`drop`)."
        ),
    ] = "keep"
    type_changes: Annotated[
        TypeChanges,
        key(
            "What happens at a type change, in the source or in `types`, that the silver column cannot hold:"
            " the table is held before it (`hold`), rebuilt from bronze (`rebuild`), or copied again"
            " (`resync`), which also brings what `ALTER TABLE … USING` computed."
        ),
    ] = "hold"
    readers: Annotated[
        Readers,
        key(
            "Which readers tables are kept for. With `spark`, silver renames, drops or widens a column by a"
            " change of metadata, and readers need column mapping or type widening from then on. With"
            " `widest`, one commit writes the table's files again instead, and readers need no table feature"
            " but that of a TIMESTAMP_NTZ column, which `types` can make a STRING. Columns and rows are the"
            " same."
        ),
    ] = "spark"
    shared_root: Annotated[
        str | None,
        Root,
        key(
            "Folder of the silver tables whose target has `{table}`. Pipelines with the same one write the"
            " same tables.",
            default="`{storage.root}/silver`",
            examples=["/data/shared"],
        ),
    ] = None
    resync: Annotated[
        Literal["ask", "auto"],
        Word,
        key(
            "What happens when the stream does not carry a change: an event says that the table needs a"
            " resync (`ask`), or the table is resynced (`auto`)."
        ),
    ] = "ask"
    rewrites: Annotated[
        Literal["compare", "resync", "event"],
        Word,
        key(
            "What happens when the source rewrites a table, as `ALTER TABLE … TYPE … USING` does, and no row"
            " proves that the values are the same, alters an enum or composite type so that stored values"
            " have another text, or edits the publication and nothing proves that no change was missed: the"
            " table is compared with the source and what differs is copied (`compare`), all its rows are"
            " copied (`resync`), or an event says that it needs a resync (`event`). Without comparable rows"
            " (`source.copy: never`, mode `append`, operations that are ignored or not published), `compare`"
            " records the event."
        ),
    ] = "compare"
    detached_tables: Annotated[
        DetachedTables,
        key(
            "What happens to a table that is dropped, no longer published or no longer matched: it stays in"
            " place (`keep`) or is moved to `{root}/archive` (`archive`). Ingest detects dropped and"
            " unpublished tables with `source.copy: initial`."
        ),
    ] = "keep"
    dropped_partitions: Annotated[
        DroppedPartitions,
        key(
            "What happens to the rows of a partition that is dropped or detached from a table that is"
            " published by its root: they leave silver, as they left `SELECT` on the root (`delete`), they"
            " stay until the next copy or comparison of it (`keep`, with an event of kind `info`), or the"
            " whole table is copied again (`resync`). `delete` goes by the bounds of the partition, which"
            " ingest recorded, and copies no row."
        ),
    ] = "delete"
    inheritance: Annotated[
        Inheritance,
        Word,
        key(
            "What happens to a table that others inherit from (`INHERITS`): silver has its own rows, as"
            " `SELECT … FROM ONLY` shows them, and says so (`parent_only`), or it is not followed (`refuse`,"
            " with `source.copy: initial`). Tables that inherit are tables of their own, unless the rule of"
            " one parent has `union`."
        ),
    ] = "parent_only"
    source_comments: Annotated[
        bool,
        Flag,
        key("Whether silver tables and their columns get the comments on the source's (`COMMENT ON`)."),
    ] = True
    writer: Annotated[
        Literal["auto", "spark", "native"],
        Word,
        key(
            "Who writes changes to silver tables: `spark`; `native`, this process without Spark, wherever it"
            " can; or `auto`, native where memory suffices. What only Spark can write, such as tables with"
            " deletion vectors, or on storage other than folders, object stores and HDFS, is always written"
            " by Spark."
        ),
    ] = "auto"
    min_interval: Annotated[
        Seconds,
        key(
            "Least time between two writes to a table in a continuous run, for fewer and larger writes; 0"
            " writes what is pending in every batch. A run with the trigger `available-now` writes all"
            " tables.",
            examples=["30s", "5min"],
        ),
    ] = 0
    schedule: Annotated[
        Schedule,
        key(
            "At which hours of the day a continuous run writes tables how often. It applies to tables that"
            " have no `min_interval` of their own."
        ),
    ] = NO_SCHEDULE
    guards: Annotated[
        Guards,
        key(
            "Limits for one batch of a table; a table that would exceed one is held until you confirm the"
            " batch."
        ),
    ] = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Config(FileSection):
    """The whole configuration of one pipeline; `path` is the file it was read from."""

    pipeline: Annotated[
        str,
        key(
            "Name of the pipeline. It names the slot and the publication unless these are given, and"
            " identifies the transactions in the lake, so it never changes during a lake's life.",
            json_schema_extra={
                "patternErrorMessage": "A pipeline name has 1 to 63 letters, digits, `_`, `.` or `-`, and"
                " starts with a letter or digit."
            },
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
            examples=["shop"],
        ),
        Text,
    ]
    source: Annotated[Source, key("The PostgreSQL server, publication and slot to read.")] = field(
        default_factory=Source
    )
    storage: Annotated[Storage, key("Where the lake is.")] = field(default_factory=Storage)
    silver: Annotated[Silver, key("How silver tables are kept if their rule does not say.")] = Silver()
    tables: Annotated[
        tuple[TableRule, ...],
        key(
            "Rules that map source tables to silver tables; the first match wins. A table without a rule has"
            " no silver table; `[]` captures bronze only.",
            default="all tables of `public`",
        ),
    ] = (TableRule("public.*"),)
    path: Internal[str] = ""
    bronze: Annotated[BronzeLog, key("How long bronze keeps changes.")] = field(default_factory=BronzeLog)
    maintenance: Annotated[
        Maintenance, key("What the jobs and `pgdelta maintain` merge and remove, and when.")
    ] = field(default_factory=Maintenance)
    ingest: Annotated[Ingest, key("What ingest may use of this machine.")] = field(default_factory=Ingest)
    apply: Annotated[Apply, key("How apply works.")] = field(default_factory=Apply)
    catalog: Annotated[Catalog, key("By which names which catalogs have the silver tables.")] = field(
        default_factory=Catalog
    )
    alerts: Annotated[Alerting, key("What needs a person, and where the jobs send it.")] = field(
        default_factory=Alerting
    )
    verify: Annotated[Verify, key("How often silver is proved to equal its source.")] = field(
        default_factory=Verify
    )
    lineage: Annotated[Lineage, key("Where the jobs send OpenLineage events of their runs.")] = field(
        default_factory=Lineage
    )

    _rules: Internal[dict[TableName, TableRule | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def rule_for(self, name: TableName) -> TableRule | None:
        """Return the first rule that matches, or None: the table has no silver table."""
        try:
            return self._rules[name]
        except KeyError:
            self._rules[name] = next((rule for rule in self.tables if rule.matches(name)), None)
            return self._rules[name]

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
