"""Read the configuration file into a validated `Config`, and write its JSON Schema.

`load_config` is the only way from a file to a `Config`, so a loaded configuration is complete and valid. A
mistake raises a ConfigError of one sentence with its fix, `file:line: key: …`; if there are several, the
first one in the file is raised. Errors contain no values. Nothing here connects to anything.

The schema is generated from the same classes; editors, the reference page and the errors use it. In addition
to the standard's keywords it has `x-postgresql`, the first version that supports a key, and `x-default`, a
default in words.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlparse

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipeline.config.alerts import check_alerts
from pipeline.config.catalog_rules import check_catalog
from pipeline.config.config import Config, Source, Storage
from pipeline.config.scalars import holds_password
from pipeline.config.shared_rules import NO_GLOB, check_readers, check_shared, check_union
from pipeline.config.source import SLOT_ERROR, SLOT_PATTERN
from pipeline.config.tables import INHERITED, TABLE_PLACEHOLDER, ColumnRules, TableRule
from pipeline.config.yaml_document import Document, Items, Scalar, Section, dotted, parse_document
from pipeline.errors import ConfigError
from pipeline.table_name import TableGlob

_DELTA_PROPERTIES = frozenset(("delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"))
_CREDENTIAL = re.compile("key|token|secret|password|sas")
_RESERVED = frozenset(("comment", "location", "provider", "owner", "external", "is_managed_location"))
_NO_VERSIONS = "Only the mode history has versions. Leave the key out, or write mode: history."
_NO_DETACHING = (
    "inheritance: {} takes tables out of silver, which source.copy: never has no copies to bring back."
    " Write parent_only, or source.copy: initial."
)
_MAX_PARTITION_COLUMNS = 4
NOT_FOR_PARTITIONS = ("FLOAT", "DOUBLE", "BINARY", "VARIANT", "ARRAY<", "MAP<")
"""Silver types whose values cannot be those of partitions, as they begin."""
_VARIABLE = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    "description": "A value from the environment: ${NAME} or ${NAME:-default}.",
}


def load_config(path: str | Path, environ: Mapping[str, str] | None = None) -> Config:
    """Return the validated configuration of a YAML file; raise ConfigError with file, line and key."""
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: File not found. Give --config the path of a YAML file.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: Not valid YAML: not UTF-8. Save the file as UTF-8.") from None
    except OSError as error:
        raise ConfigError(
            f"{file}: Cannot read the file ({error.strerror}). Check the path and its permissions."
        ) from None
    return load_text(text, file, environ)


def load_text(text: str, file: str, environ: Mapping[str, str] | None = None) -> Config:
    """Return the validated configuration of a YAML text; `file` is its name in errors."""
    document = parse_document(text, file, os.environ if environ is None else environ)
    try:
        config = adapter().validate_python(document.root)
    except ValidationError as invalid:
        found = invalid.errors(include_url=False, include_input=False)
        # the first in the file; a section that lacks a key comes before what is wrong in it
        raise min((_Mistake(each, document) for each in found), key=lambda each: each.line).error() from None
    _check_password_commands(config.source, document)
    _check_targets(config.tables, document)
    _check_columns(config, document)
    _check_properties(config.tables, document)
    check_catalog(config.catalog, config.storage.root, document)
    _check_store_options(config.storage, document)
    _check_columns_of_layout("cluster_by", config.tables, document)
    _check_columns_of_layout("partition_by", config.tables, document)
    _check_partition_by(config.tables, document)
    check_alerts(document)
    return _resolve(config, document)


def _resolve(config: Config, document: Document) -> Config:
    """Return the configuration with what the file leaves to the value of another key."""
    source, silver = config.source, config.silver
    slot = source.slot or config.pipeline
    if not re.search(SLOT_PATTERN, slot):
        raise document.error(
            f"The pipeline also names the slot. {SLOT_ERROR} Rename the pipeline or set source.slot.",
            "pipeline",
        )
    written = document.get("source", "protocol")
    protocol = replace(source.protocol, written=frozenset(written if isinstance(written, Section) else ()))
    source = replace(source, publication=source.publication or config.pipeline, slot=slot, protocol=protocol)
    inherited: dict[str, Any] = {key: getattr(silver, key) for key in INHERITED}
    rules = []
    for index, each in enumerate(config.tables):
        keys = document.get("tables", index)
        guards = document.get("tables", index, "guards")
        columns = replace(each.columns, places=_column_places(each.columns, index, document))
        left_out = {key: value for key, value in inherited.items() if key not in _keys(keys)}
        limits = {key: getattr(each.guards, key) for key in _keys(guards)}
        guarded = replace(silver.guards, **limits)
        history = each.history if _keys(document.get("tables", index, "history")) else silver.history
        found = replace(each, columns=columns, misfit=silver.misfits, guards=guarded, history=history)
        if "min_interval" in left_out:
            left_out["schedule"] = silver.schedule
        rules.append(replace(found, **left_out))
        _check_mode(rules[-1], index, document)
        if rules[-1].inheritance != "parent_only" and source.copy != "initial":
            written = ("tables", index) if "inheritance" in _keys(keys) else ("silver",)
            fault = _NO_DETACHING.format(rules[-1].inheritance)
            raise document.error(fault, *written, "inheritance")
        check_union(rules[-1], index, document)
        check_shared(rules[-1], index, document, rules[:-1])
        check_readers(rules[-1], index, document)
    if silver.history.intermediate and not any(rule.mode == "history" for rule in rules):
        raise document.error(_NO_VERSIONS, "silver", "history", "intermediate")
    return replace(config, source=source, tables=tuple(rules), path=document.file)


def _check_mode(rule: TableRule, index: int, document: Document) -> None:
    """Raise ConfigError for a key that a rule writes and its mode does not have."""
    written = _keys(document.get("tables", index))
    for key in ("on_delete", "on_truncate"):
        if rule.mode != "mirror" and key in written and getattr(rule, key) == "ignore":
            raise document.error(
                f"Mode {rule.mode} never removes rows, so there is nothing to ignore. Leave the key out, or"
                " write mode: mirror.",
                *("tables", index, key),
            )

    if rule.mode != "history" and "intermediate" in _keys(document.get("tables", index, "history")):
        raise document.error(_NO_VERSIONS, "tables", index, "history", "intermediate")


def _keys(value: object) -> Iterable[str]:
    return value.keys() if isinstance(value, Section) else ()


def _check_password_commands(source: Source, document: Document) -> None:
    """Raise ConfigError for a program that prints no password that is used."""
    copying = source.copying
    for of, place in ((source, ("source",)), (copying, ("source", "copying"))):
        key = (*place, "password_command")
        written = document.get(*key)
        if written is None:
            continue
        fault = None
        if not of.password_command or not of.password_command[0]:
            fault = "No program is named. Write [program, argument, …], or leave the key out."
        elif of is copying and copying.conninfo is None:
            fault = (
                "source.copying.conninfo is missing, so copies use source.conninfo. Write"
                " source.password_command instead, or add source.copying.conninfo."
            )
        elif holds_password(of.conninfo or ""):
            fault = f"{dotted(place)}.conninfo has a password already. Keep one of the two."
        if fault is not None:
            raise document.error(fault, *key, at_key=True)


def _check_targets(rules: Sequence[TableRule], document: Document) -> None:
    """Raise ConfigError for globs that are none and for targets that cannot be folders of one table."""
    for index, rule in enumerate(rules):
        if not TableGlob(rule.source).is_valid:
            raise document.error(NO_GLOB, "tables", index, "source")
        for number, text in enumerate(rule.exclude):
            if not TableGlob(text).is_valid:
                raise document.error(NO_GLOB, "tables", index, "exclude", number)
    # a Delta table cannot contain the folders of others
    schemas = {rule.source.partition(".")[0] for rule in rules if rule.target is None}
    for index, rule in enumerate(rules):
        fault = None
        if rule.target is None:
            continue
        if set("{}") & set(rule.target.replace(TABLE_PLACEHOLDER, "", 1)):
            fault = "A target may have {table} once, and no other braces. Write it like orders or {table}."
        elif rule.is_shared and not rule.is_union:
            continue
        elif "*" in rule.source or "?" in rule.source:
            fault = "A rule with a target matches one table only. Name the table in source."
        elif any(rule.target == other.target for other in rules[:index]):
            fault = "Another rule has the same target. Choose another name."
        elif rule.target in schemas:
            fault = "The target is the folder of a schema in silver. Choose another name."
        if fault is not None:
            raise document.error(fault, "tables", index, "target")


def _check_columns(config: Config, document: Document) -> None:
    """Raise ConfigError for rules of columns that contradict each other, or lack the key."""
    for index, rule in enumerate(config.tables):
        columns = rule.columns
        include = document.get("tables", index, "columns", "include")
        if isinstance(include, Items) and not include:
            raise document.error(
                "No column would be captured. Name some, or leave the key out.",
                *("tables", index, "columns", "include"),
            )
        if columns.include and columns.exclude:
            raise document.error(
                "include and exclude contradict each other. Keep one of them.",
                *("tables", index, "columns", "exclude"),
                at_key=True,
            )
        protected = {name: ("columns", "hash", name) for name in columns.hash}
        for name in columns.mask:
            if name in protected:
                raise document.error(
                    "The column is hashed too. Keep one of the two rules.",
                    *("tables", index, "columns", "mask", name),
                    at_key=True,
                )
            protected[name] = ("columns", "mask", name)
        for name, place in protected.items():
            fault = None
            if columns.excludes(name):
                fault = "The column is not captured. Remove one of the two rules."
            elif name in rule.types and columns.mask.get(name, "") is not None:
                fault = "The column is STRING, so types cannot name it. Remove one of the two."
            elif place[1] == "hash" and config.source.hash_key is None:
                fault = "source.hash_key is missing. Set it to a variable, such as ${PGDELTA_HASH_KEY}."
            if fault is not None:
                raise document.error(fault, "tables", index, *place, at_key=True)


def _check_properties(rules: Sequence[TableRule], document: Document) -> None:
    """Raise ConfigError for properties that the pipeline or Delta's protocol depends on."""
    for index, rule in enumerate(rules):
        for name in rule.properties:
            if name.lower() in _RESERVED or (
                name.lower().startswith(("delta.", "pgdelta.", "option.")) and name not in _DELTA_PROPERTIES
            ):
                raise document.error(
                    "The pipeline or Delta sets this property. Remove it, or use the key for its purpose.",
                    *("tables", index, "properties", name),
                    at_key=True,
                )


def _check_store_options(storage: Storage, document: Document) -> None:
    """Raise ConfigError for options without an object store, and for credentials that the file contains."""
    for name in storage.options:
        place = ("storage", "options", name)
        written = document.get(*place)
        if urlparse(storage.root).scheme in ("", "file"):
            raise document.error(
                "storage.root is on no object store. Remove the option, or correct storage.root.",
                *place,
                at_key=True,
            )
        if _CREDENTIAL.search(name) and isinstance(written, Scalar) and written.without_variables:
            raise document.error("The file contains a credential. Put it into a ${VARIABLE}.", *place)


def _check_columns_of_layout(key: str, rules: Sequence[TableRule], document: Document) -> None:
    """Raise ConfigError for columns that files cannot be sorted or divided by."""
    for index, rule in enumerate(rules):
        place = ("tables", index, key)
        written, names = document.get(*place), getattr(rule, key)
        if isinstance(written, Items) and not written:
            raise document.error("No column is named. Name some, or leave the key out.", *place)
        for number, name in enumerate(names):
            if name in names[:number]:
                raise document.error("The column is named twice. Remove one of the two.", *place, number)
            if rule.columns.excludes(name):
                raise document.error(
                    "The column is not captured. Remove it here, or capture it.", *place, number
                )


def _check_partition_by(rules: Sequence[TableRule], document: Document) -> None:
    """Raise ConfigError for columns whose values cannot be those of partitions."""
    for index, rule in enumerate(rules):
        place = ("tables", index, "partition_by")
        if len(rule.partition_by) > _MAX_PARTITION_COLUMNS:
            raise document.error(
                f"A table has at most {_MAX_PARTITION_COLUMNS} columns of partitions, because each"
                " combination of their values has files of its own. Name fewer, and sort by the others with"
                " cluster_by.",
                *(*place, _MAX_PARTITION_COLUMNS),
            )
        for number, name in enumerate(rule.partition_by):
            kind = rule.types.get(name)
            if kind is not None and kind.startswith(NOT_FOR_PARTITIONS):
                raise document.error(
                    f"types gives the column {kind}, whose values cannot be those of partitions. Remove it"
                    " here, or give it another type.",
                    *(*place, number),
                )
            if rule.columns.mask.get(name, "") is None:
                raise document.error(
                    "All values of the column are masked by NULL. Remove it here, or mask it otherwise.",
                    *(*place, number),
                )
        if rule.partition_by and rule.is_shared:
            raise document.error(
                "The partitions of a table that several sources share are its sources. Leave the key out, or"
                " give the tables targets without {table}.",
                *place,
                at_key=True,
            )


def _column_places(columns: ColumnRules, index: int, document: Document) -> dict[str, str]:
    """Return the place of each column's rule, as it begins an error."""
    found = {}
    for section in ("include", "exclude", "hash", "mask"):
        for number, name in enumerate(getattr(columns, section)):
            of = (section, number) if section in ("include", "exclude") else (section, name)
            location = ("tables", index, "columns", *of)
            line = document.line(*location, at_key=True)
            found[name] = f"{document.file}:{line}: {dotted(location)}"
    return found


class _Mistake:
    """A mistake that pydantic found, with its place in the file."""

    def __init__(self, details: ErrorDetails, document: Document) -> None:
        self._details, self._document = details, document
        self._location = details["loc"]
        self._is_unknown_key = details["type"] == "unexpected_keyword_argument"
        self.line = document.line(*self._location, at_key=self._is_unknown_key)

    def error(self) -> ConfigError:
        """Return the error that names the place."""
        return self._document.error(self._sentence(), *self._location, at_key=self._is_unknown_key)

    def _sentence(self) -> str:
        field = field_schema(self._location)
        value = self._document.get(*self._location)
        kind = value.kind if isinstance(value, (Scalar, Section, Items)) else "nothing"
        match self._details["type"]:
            case "value_error":
                return str(self._details["ctx"]["error"])
            case "unexpected_keyword_argument":
                known = list(field_schema(self._location[:-1])["properties"])
                hint = _suggest(str(self._location[-1]), known)
                return f"Unknown key.{hint or ' Known keys: ' + ', '.join(known) + '.'}"
            case "missing":
                example = f"{self._location[-1]}: {field['examples'][0]}"
                return f"Required key is missing. Write it, such as `{example}`."
            case "dataclass_type" | "dict_type":
                return f"Expected a section of keys, found {kind}."
            case "tuple_type":
                return f"Expected a list, found {kind}."
            case "literal_error":
                return _choose([str(word) for word in field.get("enum") or [field["const"]]], value, kind)
            case "int_parsing" | "greater_than_equal" | "less_than_equal":
                return f"Expected a whole number from {field['minimum']} to {field['maximum']}."
            case "string_pattern_mismatch":
                return f"{field['patternErrorMessage']} Choose another name."
            case other:
                raise AssertionError(f"pydantic's error {other} has no sentence")


def _choose(words: Sequence[str], value: object, kind: str) -> str:
    allowed = ", ".join(words)
    if not isinstance(value, Scalar):
        return f"Expected one of {allowed}, found {kind}."
    return f"Unknown value.{_suggest(value.expand(), words)} Allowed values: {allowed}."


def _suggest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


@cache
def adapter() -> TypeAdapter[Config]:
    """Return the validator of the file, built once."""
    return TypeAdapter(Config)


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the configuration file."""
    models = _models()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pgdelta pipeline",
        "description": "Configuration of a pgdelta pipeline: PostgreSQL to Delta Lake.",
    }
    sections = {name: _section(each) for name, each in models["$defs"].items()}
    return head | _section(models) | {"$defs": {**sections, "Variable": _VARIABLE}}


def schema_text() -> str:
    """Return the JSON Schema as text, as it is checked in."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def field_schema(location: Sequence[str | int]) -> dict[str, Any]:
    """Return the schema of a value of the file, empty for a key that does not exist."""
    found = _models()
    for part in location:
        if isinstance(part, int):
            found = found.get("items", {})
        else:
            found = found.get("properties", {}).get(part) or found.get("additionalProperties") or {}
        if "$ref" in found:
            found = found | _definition(found["$ref"])
    return found


@cache
def _models() -> dict[str, Any]:
    """Return pydantic's schema; a key of a rule that `silver` has, too, defaults to that."""
    models = adapter().json_schema()
    rule, silver = (models["$defs"][name]["properties"] for name in ("TableRule", "Silver"))
    for name in rule.keys() & silver.keys():
        rule[name]["x-default"] = f"`silver.{name}`"
    return models


def _definition(reference: str) -> dict[str, Any]:
    return cast(dict[str, Any], _models()["$defs"][reference.rpartition("/")[2]])


def _section(model: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _field(each) for key, each in model["properties"].items()}
    section = {"type": "object", "properties": properties, "additionalProperties": False}
    return section | ({"required": model["required"]} if "required" in model else {})


def _field(model: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one key: with what the file may contain, instead of what the code gets."""
    field = {key: each for key, each in model.items() if key != "title"}
    if "$ref" in field and "description" not in field:  # pydantic omits what the section also describes
        field["description"] = _definition(field["$ref"])["description"]
    optional = field.get("anyOf", [])
    if {"type": "null"} in optional:
        field |= next(each for each in optional if each != {"type": "null"})
        del field["anyOf"]
    default = field.pop("default", None)
    if {"const": "none"} in optional:
        default = "none"
    if isinstance(default, (str, int)) and default != "" and "x-default" not in field:
        field["default"] = default
    if isinstance(field.get("additionalProperties"), dict):
        field["additionalProperties"] = _field(field["additionalProperties"])
    return _or_variable(field)


def _or_variable(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field that a variable can give its value, unless it is text anyway."""
    restricted = {"type", "enum", "const", "pattern", "patternErrorMessage", "minimum", "maximum", "anyOf"}
    values = {key: field[key] for key in field if key in restricted}
    if not values or (values.keys() == {"type"} and values["type"] in ("string", "object", "array")):
        return field
    kinds = cast(list[dict[str, Any]], values.get("anyOf") or [values])
    if "null" in values.get("enum", ()):
        kinds = [*kinds, {"type": "null"}]  # `null` without quotes is read as the word
    rest = {key: each for key, each in field.items() if key not in restricted}
    return {"anyOf": [*kinds, {"$ref": "#/$defs/Variable"}], **rest}
