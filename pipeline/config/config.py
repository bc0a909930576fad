"""The configuration as frozen values: one class per section of the file, one annotated field per key.

The annotations are the single description of the file: pydantic validates it against them (`load`), and the
JSON Schema and the reference page are generated from them (`schema`). Only the file is validated; code
that builds or replaces a value is trusted. Nothing here reads a file or connects to anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

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
from pipeline.config.scalars import (
    ByteCount,
    Conninfo,
    Flag,
    HashKey,
    Internal,
    Number,
    Publication,
    Root,
    Seconds,
    Text,
    Version,
    Word,
)
from pipeline.config.storage import DEFAULT_STORAGE
from pipeline.config.storage import Storage as Storage
from pipeline.config.tables import (
    COMMITTED_VERSIONS,
    FILE_SECTION,
    NO_LIMITS,
    PIPELINE_RETENTION,
    DetachedTables,
    DroppedColumns,
    Guards,
    History,
    Misfits,
    OnChange,
    SilverMode,
    TableRule,
    TypeChanges,
)
from pipeline.table_name import TableName


def _since(major: int) -> dict[str, int]:
    """Return the schema's note that a key needs a PostgreSQL of this version or newer."""
    return {"x-postgresql": major}


@dataclass(frozen=True, slots=True)
class Protocol:
    """The options of pgoutput.

    An option in `written` was set in the file, so the server must support it; any other is off if the
    server lacks it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    version: Annotated[
        Literal["auto", 1, 2, 3, 4],
        Version,
        Field(
            description="Version of the protocol: `1`, `2` (PostgreSQL 14), `3` (15), `4` (16), or `auto`,"
            " the highest that the server supports."
        ),
    ] = "auto"
    streaming: Annotated[
        Literal["auto", "off", "on", "parallel"],
        Word,
        Field(
            description="Whether large transactions are sent before they commit: `off`, `on` (PostgreSQL 14,"
            " version 2), `parallel` (16, version 4), or `auto`, the best that the server supports. With the"
            " route `sql`, which would send them again at every poll, `auto` is `off`."
        ),
    ] = "auto"
    two_phase: Annotated[
        bool,
        Flag,
        Field(
            description="Send prepared transactions at PREPARE. This changes the slot permanently; a slot"
            " created with it is always read this way.",
            json_schema_extra=_since(15),
        ),
    ] = False
    binary: Annotated[
        bool,
        Flag,
        Field(
            description="Send values in binary format, with the same result in bronze and silver. A published"
            " column whose type cannot be read in binary is refused by name before anything starts.",
            json_schema_extra=_since(14),
        ),
    ] = False
    messages: Annotated[
        bool,
        Flag,
        Field(
            description="Capture logical messages (`pg_logical_emit_message`).", json_schema_extra=_since(14)
        ),
    ] = True
    origin: Annotated[
        Literal["any", "none"],
        Word,
        Field(
            description="`none` leaves out changes that have a replication origin.",
            json_schema_extra=_since(16),
        ),
    ] = "any"
    written: Internal[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Copying:
    """How table copies read rows: from which server, in how many sessions, at which rate (bytes/s)."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    conninfo: Annotated[
        str | None,
        Conninfo,
        Field(
            description="Server that rows are copied from: the source or a standby of it.",
            examples=["host=standby"],
            json_schema_extra={"x-default": "`source.conninfo`"},
        ),
    ] = field(default=None, repr=False)
    connections: Annotated[
        int, Field(ge=1, le=64, description="Number of sessions that read in parallel."), Number
    ] = 2
    rate_limit: Annotated[
        ByteCount,
        Field(
            description="Most bytes per second that all sessions read together; 0 is no limit.",
            examples=["20MB"],
        ),
    ] = 0
    range_size: Annotated[
        ByteCount,
        Field(
            description="Least size of a chunk of rows, which is read and committed at once; after a crash an"
            " unfinished chunk is read again.",
            examples=["64MB"],
            json_schema_extra={"default": "64MB"},
        ),
    ] = 64 << 20


@dataclass(frozen=True, slots=True)
class Create:
    """What ingest may create on the server."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    publication: Annotated[
        Literal["configured", "all", "never"],
        Word,
        Field(
            description="What a missing publication is created for: the tables that `tables` matches"
            " (`configured`) or `all` tables (`FOR ALL TABLES`); `never` creates none. With `configured`,"
            " ingest also adds tables that match later to the publication that the pipeline created."
        ),
    ] = "configured"
    slot: Annotated[
        bool,
        Flag,
        Field(
            description="Create a missing slot, as long as bronze holds no offset: later, a new slot would"
            " skip changes."
        ),
    ] = True
    failover: Annotated[
        bool,
        Flag,
        Field(
            description="Create the slot with `failover`, so that standbys can synchronize it.",
            json_schema_extra=_since(17),
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Source:
    """The server, publication and slot to read. `load_config` never leaves a name empty."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    conninfo: Annotated[
        str,
        Conninfo,
        Field(
            description="Connection to the server: libpq keywords or a URI. A password is refused unless it"
            " comes from a `${VARIABLE}`.",
            examples=["host=localhost dbname=shop", "postgresql://replicator@db/shop"],
            json_schema_extra={"x-default": "libpq's environment (`PGHOST`, `PGDATABASE`, `PGSERVICE` …)"},
        ),
    ] = field(default="", repr=False)
    publication: Annotated[
        str,
        Publication,
        Field(
            description="Publication to read; one that the pipeline did not create is used as it is.",
            json_schema_extra={"maxLength": 63, "x-default": "the pipeline's name"},
        ),
    ] = ""
    slot: Annotated[
        str,
        Field(
            description="Replication slot to read; an existing one is used as it is.",
            pattern=r"^[a-z0-9_]{1,63}$",
            json_schema_extra={
                "patternErrorMessage": "A slot name has 1 to 63 lower-case letters, digits or `_`.",
                "x-default": "the pipeline's name",
            },
        ),
        Text,
    ] = ""
    route: Annotated[
        Literal["walsender", "sql"],
        Word,
        Field(
            description="How the slot is read: by a replication connection (`walsender`) or by the slot's SQL"
            " functions (`sql`), if replication connections are not available. On PostgreSQL 10 `sql`"
            " advances the slot only at commits, so an idle server keeps WAL."
        ),
    ] = "walsender"
    create: Annotated[Create, Field(description="What ingest may create on the server.")] = Create()
    copy: Annotated[
        Literal["initial", "never"],
        Word,
        Field(
            description="Whether to copy the rows that exist before the slot (`initial`), or to read only"
            " what changes afterwards (`never`)."
        ),
    ] = "initial"
    copying: Annotated[Copying, Field(description="How rows are copied.")] = Copying()
    lost_slot: Annotated[
        Literal["stop", "resync"],
        Word,
        Field(
            description="What happens when the slot is missing, invalidated, or was advanced by another"
            " consumer: `stop` with an error, or `resync`, which creates a slot and copies all tables again."
        ),
    ] = "stop"
    hash_key: Annotated[
        str | None,
        HashKey,
        Field(
            description="Key of the columns that `tables[].columns.hash` names: a variable of the"
            " environment, of at least 16 characters. It is never written anywhere. Another key gives other"
            " hashes, so the tables need a resync.",
            examples=["${PGDELTA_HASH_KEY}"],
            json_schema_extra={"x-default": "none"},
        ),
    ] = field(default=None, repr=False)
    protocol: Annotated[
        Protocol,
        Field(
            description="Options of pgoutput. The server must support an option that is written here; one"
            " that is left out is off if the server lacks it."
        ),
    ] = Protocol()

    @property
    def snapshot_conninfo(self) -> str:
        """The server on which snapshots are exported, for copies and comparisons."""
        return self.copying.conninfo or self.conninfo

    @property
    def snapshot_key(self) -> str:
        """The key that names the server of `snapshot_conninfo`."""
        return "source.copying.conninfo" if self.copying.conninfo else "source.conninfo"


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
    detached_tables: Annotated[
        DetachedTables,
        Field(
            description="What happens to a table that is dropped, no longer published or no longer matched:"
            " it stays in place (`keep`) or is moved to `{root}/archive` (`archive`). Ingest detects dropped"
            " and unpublished tables with `source.copy: initial`."
        ),
    ] = "keep"
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
            " tables on other storage than this machine's or with column mapping, is always written by Spark."
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
        Source()
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
        Catalog, Field(description="By which names Spark's catalog has the silver tables.")
    ] = DEFAULT_CATALOG

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
