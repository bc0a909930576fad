"""The configuration: a YAML file in, validated frozen values out.

`load_config` is the only door: a `Config` that exists is complete and valid. Unknown keys, wrong types, unset
variables and what is not built yet are `ConfigError`s with file, line and key. Secrets stay outside: a
password written into `conninfo` is refused, one that comes from a variable is kept out of `repr`. Keys,
defaults and meanings are those of the README's reference; nothing here connects to anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast
from urllib.parse import parse_qsl

from pipeline.config.tables import (
    DETACHED_TABLES,
    DROPPED_COLUMNS,
    MISFITS,
    MODES,
    NO_LIMITS,
    TYPE_CHANGES,
    DetachedTables,
    DroppedColumns,
    Guards,
    Misfits,
    TableRule,
    TypeChanges,
    read_guards,
    read_rules,
)
from pipeline.config.yaml_document import Section, Value, parse_document
from pipeline.errors import ConfigError
from pipeline.table_name import TableName

_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_SECRET_KEYWORDS = frozenset(
    ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
)
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Protocol:
    """Say which pgoutput options to ask for; `written` names those that stand in the file.

    What is not written follows the server (off where it lacks the option); what is written must be honoured.
    """

    version: int | Literal["auto"] = "auto"
    streaming: Literal["auto", "off", "on", "parallel"] = "auto"
    two_phase: bool = False
    binary: bool = False
    messages: bool = True
    origin: Literal["any", "none"] = "any"
    written: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Copying:
    """Say how rows from before the slot are read: from where, side by side, and how many bytes a second.

    Without a conninfo of its own it is the source's; a rate of 0 is no limit. A range is what is read, landed
    and, after a crash, read again as one; the larger a table, the larger its ranges.
    """

    conninfo: str | None = field(default=None, repr=False)
    connections: int = 2
    rate_limit: int = 0
    range_size: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Say which server, publication and slot to read, by which route, and what may be created."""

    conninfo: str = field(repr=False)
    publication: str
    slot: str
    route: Literal["walsender", "sql"] = "walsender"
    create_publication: Literal["configured", "all", "never"] = "configured"
    create_slot: bool = True
    create_failover: bool = False
    lost_slot: Literal["stop", "resync"] = "stop"
    copy: Literal["initial", "never"] = "initial"
    copying: Copying = Copying()
    protocol: Protocol = Protocol()

    @property
    def snapshot_conninfo(self) -> str:
        """Return where snapshots are taken, of which tables are copied or compared."""
        return self.copying.conninfo or self.conninfo

    @property
    def snapshot_key(self) -> str:
        """Return the key that says where snapshots are taken."""
        return "source.copying.conninfo" if self.copying.conninfo else "source.conninfo"


@dataclass(frozen=True, slots=True)
class Storage:
    """Say where the lake lives: any path that Spark can write, without a slash at its end."""

    root: str


@dataclass(frozen=True, slots=True)
class Silver:
    """Say how silver tables are kept where a rule says nothing else."""

    mode: Literal["mirror"] = "mirror"
    metadata_columns: bool = True
    misfits: Misfits = "null"
    dropped_columns: DroppedColumns = "keep"
    type_changes: TypeChanges = "hold"
    resync: Literal["ask", "auto"] = "ask"
    detached_tables: DetachedTables = "keep"
    guards: Guards = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Config:
    """Hold one pipeline's whole configuration; `path` is the file it was read from."""

    pipeline: str
    source: Source
    storage: Storage
    silver: Silver
    tables: tuple[TableRule, ...]
    path: str

    def rule_for(self, name: TableName) -> TableRule | None:
        """Return the first rule whose glob matches, or None: such a table has no silver table."""
        return next((rule for rule in self.tables if rule.matches(name)), None)


def load_config(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Return the validated configuration of a YAML file, or raise ConfigError with file, line and key."""
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give --config the path of a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not valid YAML: the file is not UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}); check the path and its rights"
        ) from None
    top = parse_document(text, file, os.environ if environ is None else environ)
    name = top.get("pipeline")
    if name is None:
        raise top.value.error("pipeline is missing; give the pipeline a name, such as `pipeline: shop`")
    pipeline = name.text()
    if not _PIPELINE_NAME.fullmatch(pipeline):
        raise name.error("a name is 1 to 63 letters, digits, `_`, `.` or `-`, the first a letter or digit")
    source = _read_source(top.section("source"), pipeline, name)
    storage = top.section("storage")
    root = storage.text("root", "./lake")
    if re.match(r"[\w+.-]+://[^/@]*:[^/]*@", root):
        raise storage.value.error(
            "root: credentials stand in the address, and whatever names the lake would repeat them; take them"
            " out and give them to Spark (spark.hadoop.fs.…) or to the environment"
        )
    storage.finish()
    silver = top.section("silver")
    kept = Silver(
        mode=cast(Literal["mirror"], silver.choice("mode", "mirror", *MODES)),
        metadata_columns=silver.boolean("metadata_columns", True),
        misfits=cast(Misfits, silver.choice("misfits", "null", MISFITS)),
        dropped_columns=cast(DroppedColumns, silver.choice("dropped_columns", "keep", DROPPED_COLUMNS)),
        type_changes=cast(TypeChanges, silver.choice("type_changes", "hold", TYPE_CHANGES)),
        resync=cast(Literal["ask", "auto"], silver.choice("resync", "ask", ("ask", "auto"))),
        detached_tables=cast(DetachedTables, silver.choice("detached_tables", "keep", DETACHED_TABLES)),
        guards=read_guards(silver.section("guards"), NO_LIMITS),
    )
    silver.finish()
    general = TableRule(
        "public.*",
        mode=kept.mode,
        misfit=kept.misfits,
        dropped_columns=kept.dropped_columns,
        type_changes=kept.type_changes,
        detached_tables=kept.detached_tables,
        guards=kept.guards,
    )
    tables = read_rules(top.get("tables"), general)
    top.finish()
    return Config(pipeline, source, Storage(root.rstrip("/") or root), kept, tables, file)


def _read_source(section: Section, pipeline: str, name: Value) -> Source:
    conninfo = _read_conninfo(section)
    publication = section.get("publication")
    publication_name = pipeline if publication is None else publication.text()
    if publication is not None and len(publication_name.encode()) > 63:
        raise publication.error("PostgreSQL keeps 63 bytes of a name; write a shorter one")
    slot = section.get("slot")
    slot_name = pipeline if slot is None else slot.text()
    if not _SLOT_NAME.fullmatch(slot_name):
        rule = "a slot's name is 1 to 63 lower-case letters, digits or `_`"
        if slot is None:
            raise name.error(f"it names the slot too, and {rule}; rename the pipeline or write source.slot")
        raise slot.error(rule)
    route = section.choice("route", "walsender", ("walsender", "sql"))
    create = section.section("create")
    create_publication = create.choice("publication", "configured", ("configured", "all", "never"))
    create_slot = create.boolean("slot", True)
    create_failover = create.boolean("failover", False)
    create.finish()
    copy = section.choice("copy", "initial", ("initial", "never"))
    copying = _read_copying(section.section("copying"))
    lost_slot = section.choice("lost_slot", "stop", ("stop", "resync"))
    protocol = _read_protocol(section.section("protocol"))
    section.finish()
    return Source(
        conninfo=conninfo or "",
        publication=publication_name,
        slot=slot_name,
        route=cast(Literal["walsender", "sql"], route),
        create_publication=cast(Literal["configured", "all", "never"], create_publication),
        create_slot=create_slot,
        create_failover=create_failover,
        lost_slot=cast(Literal["stop", "resync"], lost_slot),
        copy=cast(Literal["initial", "never"], copy),
        copying=copying,
        protocol=protocol,
    )


def _read_conninfo(section: Section) -> str | None:
    conninfo = section.get("conninfo")
    if conninfo is None:
        return None
    if holds_secret(conninfo.written()):
        raise conninfo.error(
            "a password stands in the file; take it out and use PGPASSWORD, PGPASSFILE or a ${VARIABLE}"
        )
    return conninfo.text()


def _read_copying(section: Section) -> Copying:
    conninfo = _read_conninfo(section)
    connections = section.number("connections", 2, least=1, most=64)
    rate_limit = section.byte_count("rate_limit", 0)
    range_size = section.byte_count("range_size", 64 << 20)
    section.finish()
    return Copying(conninfo, connections, rate_limit, range_size)


def _read_protocol(section: Section) -> Protocol:
    version = section.choice("version", "auto", ("auto", "1", "2", "3", "4"))
    streaming = section.choice("streaming", "auto", ("auto", "off", "on", "parallel"))
    two_phase = section.boolean("two_phase", False)
    binary = section.boolean("binary", False)
    messages = section.boolean("messages", True)
    origin = section.choice("origin", "any", ("any", "none"))
    section.finish()
    return Protocol(
        version="auto" if version == "auto" else int(version),
        streaming=cast(Literal["auto", "off", "on", "parallel"], streaming),
        two_phase=two_phase,
        binary=binary,
        messages=messages,
        origin=cast(Literal["any", "none"], origin),
        written=frozenset(section.values()),
    )


def holds_secret(written: str) -> bool:
    """Tell whether a libpq connection string, as the file has it, gives a secret a literal value."""
    scheme, separator, rest = written.strip().partition("://")
    if separator and scheme in ("postgres", "postgresql"):
        authority, _, query = rest.partition("?")
        user = authority.partition("/")[0].rpartition("@")[0]
        pairs = [("password", user.partition(":")[2]), *parse_qsl(query)]
    else:
        pairs = [(match[1], match[2].strip("'")) for match in _KEYWORD.finditer(written)]
    return any(keyword in _SECRET_KEYWORDS and value for keyword, value in pairs)
