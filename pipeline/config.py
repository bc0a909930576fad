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
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast
from urllib.parse import parse_qsl

from pipeline.document import Section, Value, parse_document
from pipeline.errors import ConfigError

_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_GLOB_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_GLOB = re.compile(rf"{_GLOB_PART}\.{_GLOB_PART}")
_SCALAR_TYPE = re.compile(
    r"BOOLEAN|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|STRING|BINARY|DATE|TIMESTAMP|TIMESTAMP_NTZ"
    r"|DECIMAL\((?P<precision>\d{1,2}),(?P<scale>\d{1,2})\)"
)
_PLANNED_TYPES = re.compile(r"VARIANT|MAP<STRING,STRING>")
_SECRET_KEYWORDS = frozenset(
    ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
)
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)", re.DOTALL)
_MODES = ("mirror",), ("soft_delete", "history", "append")


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
class Source:
    """Say which server, publication and slot to read, by which route, and what may be created."""

    conninfo: str = field(repr=False)
    publication: str
    slot: str
    route: Literal["walsender", "sql"] = "walsender"
    create_publication: Literal["configured", "all", "never"] = "configured"
    create_slot: bool = True
    copy: Literal["never"] = "never"
    protocol: Protocol = Protocol()


@dataclass(frozen=True, slots=True)
class Storage:
    """Say where the lake lives: any path that Spark can write, without a slash at its end."""

    root: str


@dataclass(frozen=True, slots=True)
class Silver:
    """Say how silver tables are kept where a rule says nothing else."""

    mode: Literal["mirror"] = "mirror"
    metadata_columns: bool = True


@dataclass(frozen=True, slots=True)
class TableRule:
    """Say how the tables that a glob matches become silver tables."""

    source: str
    target: str | None = None
    mode: str = "mirror"
    types: Mapping[str, str] = field(default_factory=dict, hash=False)

    @staticmethod
    def is_glob(text: str) -> bool:
        """Tell whether a text is a `schema.table` glob."""
        return _parse_glob(text) is not None

    def matches(self, schema: str, table: str) -> bool:
        """Tell whether the glob matches a table; names are compared as the catalog has them, case and all."""
        patterns = _parse_glob(self.source)
        return patterns is not None and all(
            pattern.fullmatch(name) is not None
            for pattern, name in zip(patterns, (schema, table), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Config:
    """Hold one pipeline's whole configuration; `path` is the file it was read from."""

    pipeline: str
    source: Source
    storage: Storage
    silver: Silver
    tables: tuple[TableRule, ...]
    path: str

    def rule_for(self, schema: str, table: str) -> TableRule | None:
        """Return the first rule whose glob matches, or None: such a table has no silver table."""
        return next((rule for rule in self.tables if rule.matches(schema, table)), None)


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
    storage.finish()
    silver = top.section("silver")
    mode = cast(Literal["mirror"], silver.choice("mode", "mirror", *_MODES))
    kept = Silver(mode=mode, metadata_columns=silver.boolean("metadata_columns", True))
    silver.finish()
    tables = _read_tables(top.get("tables"), mode)
    top.finish()
    return Config(pipeline, source, Storage(root.rstrip("/") or root), kept, tables, file)


def _read_source(section: Section, pipeline: str, name: Value) -> Source:
    conninfo = section.get("conninfo")
    if conninfo is not None and _holds_secret(conninfo.written()):
        raise conninfo.error(
            "a password stands in the file; take it out and use PGPASSWORD, PGPASSFILE or a ${VARIABLE}"
        )
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
    create.finish()
    section.choice("copy", "never", ("never",), ("initial",))
    protocol = _read_protocol(section.section("protocol"))
    section.finish()
    return Source(
        conninfo="" if conninfo is None else conninfo.text(),
        publication=publication_name,
        slot=slot_name,
        route=cast(Literal["walsender", "sql"], route),
        create_publication=cast(Literal["configured", "all", "never"], create_publication),
        create_slot=create_slot,
        protocol=protocol,
    )


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


def _read_tables(value: Value | None, mode: str) -> tuple[TableRule, ...]:
    if value is None:
        return (TableRule("public.*", mode=mode),)
    rules: list[TableRule] = []
    targets: list[Value] = []
    for item in value.items():
        section = item.section()
        source = section.get("source")
        if source is None:
            raise item.error("source is missing; write a `schema.table` glob")
        glob = source.text()
        if not TableRule.is_glob(glob):
            raise source.error("write schema.table, with a part that holds a dot in double quotes")
        target = section.get("target")
        target_name = None if target is None else target.text()
        if target is not None:
            if "*" in glob or "?" in glob:
                raise target.error(
                    "one target cannot take the many tables of a glob; name the table in source"
                )
            if any(rule.target == target_name for rule in rules):
                raise target.error("another rule has the same target; two tables cannot share one")
        table_mode = section.choice("mode", mode, *_MODES)
        types = section.section("types").values()
        rules.append(
            TableRule(
                glob, target_name, table_mode, {column: _read_type(text) for column, text in types.items()}
            )
        )
        section.finish()
        if target is not None:
            targets.append(target)
    # a Delta table cannot hold the folders of others
    schemas = {rule.source.partition(".")[0] for rule in rules if rule.target is None}
    for target in targets:
        if target.text() in schemas:
            raise target.error("this is a schema's folder in silver; choose another name")
    return tuple(rules)


def _read_type(value: Value) -> str:
    text = "".join(value.text().upper().split())
    element = text[6:-1] if text.startswith("ARRAY<") and text.endswith(">") else text
    if _PLANNED_TYPES.fullmatch(element):
        raise value.error(f"{element} is not built yet; write another type")
    match = _SCALAR_TYPE.fullmatch(element)
    if match is None:
        raise value.error(
            "unknown type; write BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, "
            "BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ or ARRAY<one of these>"
        )
    if match["precision"] is not None:
        precision, scale = int(match["precision"]), int(match["scale"])
        if not (1 <= precision <= 38 and scale <= precision):
            raise value.error("a DECIMAL holds 1 to 38 digits, of which no more than all follow the point")
    return text


def _holds_secret(written: str) -> bool:
    """Tell whether a libpq connection string, as the file has it, gives a secret a literal value."""
    scheme, separator, rest = written.strip().partition("://")
    if separator and scheme in ("postgres", "postgresql"):
        authority, _, query = rest.partition("?")
        user = authority.partition("/")[0].rpartition("@")[0]
        pairs = [("password", user.partition(":")[2]), *parse_qsl(query)]
    else:
        pairs = [(match[1], match[2].strip("'")) for match in _KEYWORD.finditer(written)]
    return any(keyword in _SECRET_KEYWORDS and value for keyword, value in pairs)


@lru_cache(maxsize=4096)
def _parse_glob(glob: str) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
    match = _GLOB.fullmatch(glob)
    if match is None:
        return None
    schema, table = (
        quoted.replace('""', '"') if quoted else plain
        for quoted, plain in ((match[1], match[2]), (match[3], match[4]))
    )
    return _compile_glob(schema), _compile_glob(table)


def _compile_glob(part: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(letter) or re.escape(letter) for letter in part), re.DOTALL)
