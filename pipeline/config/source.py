"""The section `source` of the configuration: the server, publication and slot to read, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pipeline.config.conninfo import with_password_command
from pipeline.config.scalars import (
    Argument,
    ByteCount,
    Conninfo,
    FileSection,
    Flag,
    HashKey,
    Internal,
    Number,
    Publication,
    Text,
    Version,
    Word,
    key,
)

SLOT_PATTERN = r"^[a-z0-9_]{1,63}$"
SLOT_ERROR = "A slot name has 1 to 63 lower-case letters, digits or `_`."


@dataclass(frozen=True, slots=True)
class Protocol(FileSection):
    """The options of pgoutput.

    An option in `written` was set in the file, so the server must support it; any other is off if the
    server lacks it.
    """

    version: Annotated[
        Literal["auto", 1, 2, 3, 4],
        Version,
        key(
            "Version of the protocol: `1`, `2` (PostgreSQL 14), `3` (15), `4` (16), or `auto`, the highest"
            " that the server supports."
        ),
    ] = "auto"
    streaming: Annotated[
        Literal["auto", "off", "on", "parallel"],
        Word,
        key(
            "Whether large transactions are sent before they commit: `off`, `on` (PostgreSQL 14, version 2),"
            " `parallel` (16, version 4), or `auto`, the best that the server supports. With the route `sql`,"
            " which would send them again at every poll, `auto` is `off`."
        ),
    ] = "auto"
    two_phase: Annotated[
        bool,
        Flag,
        key(
            "Send prepared transactions at PREPARE. This changes the slot permanently; a slot created with it"
            " is always read this way.",
            since=15,
        ),
    ] = False
    binary: Annotated[
        bool,
        Flag,
        key(
            "Send values in binary format, with the same result in bronze and silver. A published column"
            " whose type cannot be read in binary is refused by name before anything starts.",
            since=14,
        ),
    ] = False
    messages: Annotated[
        bool, Flag, key("Capture logical messages (`pg_logical_emit_message`).", since=14)
    ] = True
    origin: Annotated[
        Literal["any", "none"],
        Word,
        key("`none` leaves out changes that have a replication origin.", since=16),
    ] = "any"
    written: Internal[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Copying(FileSection):
    """How table copies read rows: from which server, in how many sessions, at which rate (bytes/s)."""

    conninfo: Annotated[
        str | None,
        Conninfo,
        key(
            "Server that rows are copied from: the source or a standby of it.",
            default="`source.conninfo`",
            examples=["host=standby"],
        ),
    ] = field(default=None, repr=False)
    password_command: Annotated[
        tuple[Argument, ...],
        key(
            "Program that prints the password of `source.copying.conninfo`, as `source.password_command` does"
            " for `source.conninfo`.",
            default="none",
            json_schema_extra={"minItems": 1},
        ),
    ] = field(default=(), repr=False, kw_only=True)
    connections: Annotated[
        int,
        key("Number of sessions that read in parallel, also for a proof without a budget.", ge=1, le=64),
        Number,
    ] = 2
    rate_limit: Annotated[
        ByteCount,
        key("Most bytes per second that all sessions read together; 0 is no limit.", examples=["20MB"]),
    ] = 0
    range_size: Annotated[
        ByteCount,
        key(
            "Least size of a chunk of rows, which is read and committed at once; after a crash an unfinished"
            " chunk is read again.",
            json_schema_extra={"default": "64MB"},
            examples=["64MB"],
        ),
    ] = 64 << 20

    def __post_init__(self) -> None:
        """Give the connection string its program."""
        if self.conninfo is not None:
            conninfo = with_password_command(
                self.conninfo, self.password_command, "source.copying.password_command"
            )
            object.__setattr__(self, "conninfo", conninfo)


@dataclass(frozen=True, slots=True)
class Create(FileSection):
    """What ingest may create on the server."""

    publication: Annotated[
        Literal["configured", "schemas", "all", "never"],
        Word,
        key(
            "What a missing publication is created for: the tables that `tables` matches (`configured`); the"
            " same with a whole schema for each rule of the form `schema.*` (`schemas`: `FOR TABLES IN"
            " SCHEMA`, PostgreSQL 15 and newer, as a superuser); or `all` tables (`FOR ALL TABLES`). `never`"
            " creates none. Tables without a replica identity are left out, because UPDATE and DELETE would"
            " fail on them; the others are then published one by one. Ingest adds what matches later to the"
            " publication that the pipeline created, unless that is for all tables."
        ),
    ] = "configured"
    slot: Annotated[
        bool,
        Flag,
        key(
            "Create a missing slot, as long as bronze holds no offset: later, a new slot would skip changes."
        ),
    ] = True
    failover: Annotated[
        bool, Flag, key("Create the slot with `failover`, so that standbys can synchronize it.", since=17)
    ] = False
    via_partition_root: Annotated[
        bool | None,
        Flag,
        key(
            "Publish the rows of a partitioned table under its own name (`publish_via_partition_root`), so"
            " that silver has one table for it; with `false`, each partition is a table. A publication that"
            " exists is used as it is.",
            since=13,
            default="`true`",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Source(FileSection):
    """The server, publication and slot to read. `load_config` never leaves a name empty."""

    conninfo: Annotated[
        str,
        Conninfo,
        key(
            "Connection to the server: libpq keywords or a URI. A password is refused unless it comes from a"
            " `${VARIABLE}`.",
            default="libpq's environment (`PGHOST`, `PGDATABASE`, `PGSERVICE` …)",
            examples=["host=localhost dbname=shop", "postgresql://replicator@db/shop"],
        ),
    ] = field(default="", repr=False)
    password_command: Annotated[
        tuple[Argument, ...],
        key(
            "Program that prints a password or a token on one line: a list of the program and its arguments,"
            " which no shell reads. It is run for each connection and has 30 seconds.",
            default="none",
            json_schema_extra={"minItems": 1},
            examples=[["aws", "rds", "generate-db-auth-token", "--hostname", "db", "--port", "5432"]],
        ),
    ] = field(default=(), repr=False, kw_only=True)
    publication: Annotated[
        str,
        Publication,
        key(
            "Publication to read; one that the pipeline did not create is used as it is.",
            default="the pipeline's name",
            json_schema_extra={"maxLength": 63},
        ),
    ] = ""
    slot: Annotated[
        str,
        key(
            "Replication slot to read; an existing one is used as it is.",
            default="the pipeline's name",
            json_schema_extra={"patternErrorMessage": SLOT_ERROR},
            pattern=SLOT_PATTERN,
        ),
        Text,
    ] = ""
    route: Annotated[
        Literal["walsender", "sql"],
        Word,
        key(
            "How the slot is read: by a replication connection (`walsender`) or by the slot's SQL functions"
            " (`sql`), if replication connections are not available. On PostgreSQL 10 `sql` advances the slot"
            " only at commits, so an idle server keeps WAL."
        ),
    ] = "walsender"
    create: Annotated[Create, key("What ingest may create on the server.")] = Create()
    copy: Annotated[
        Literal["initial", "never"],
        Word,
        key(
            "Whether to copy the rows that exist before the slot (`initial`), or to read only what changes"
            " afterwards (`never`)."
        ),
    ] = "initial"
    copying: Annotated[Copying, key("How rows are copied.")] = Copying()
    lost_slot: Annotated[
        Literal["stop", "resync", "compare"],
        Word,
        key(
            "What happens when the slot is missing, invalidated, or was advanced by another consumer: `stop`"
            " with an error; `resync`, which creates a slot and copies all tables again; or `compare`, which"
            " creates a slot, compares each table with the source by the hashes of its rows, and copies only"
            " the keys that differ."
        ),
    ] = "stop"
    hash_key: Annotated[
        str | None,
        HashKey,
        key(
            "Key of the columns that `tables[].columns.hash` names: a variable of the environment, of at"
            " least 16 characters. It is never written anywhere. Another key gives other hashes, so the"
            " tables need a resync.",
            default="none",
            examples=["${PGDELTA_HASH_KEY}"],
        ),
    ] = field(default=None, repr=False)
    protocol: Annotated[
        Protocol,
        key(
            "Options of pgoutput. The server must support an option that is written here; one that is left"
            " out is off if the server lacks it."
        ),
    ] = Protocol()

    def __post_init__(self) -> None:
        """Give the connection string its program."""
        conninfo = with_password_command(self.conninfo, self.password_command, "source.password_command")
        object.__setattr__(self, "conninfo", conninfo)

    @property
    def snapshot_conninfo(self) -> str:
        """The server on which snapshots are exported, for copies and comparisons."""
        return self.copying.conninfo or self.conninfo

    @property
    def snapshot_key(self) -> str:
        """The key that names the server of `snapshot_conninfo`."""
        return "source.copying.conninfo" if self.copying.conninfo else "source.conninfo"
