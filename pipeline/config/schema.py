"""The JSON Schema of the configuration file, generated from its classes.

Editors complete and check `conf/pipeline.yaml` with it: `conf/pipeline.schema.json` is the output of
`schema_text`. The reference page is generated from it, and errors take known keys and allowed values from it.
Beyond the standard it has `x-postgresql`, the first version that supports a key, and `x-default`, the default
in words where it is not a constant.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter

from pipeline.config.config import Config

_VARIABLE = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
    "description": "A value from the environment: ${NAME} or ${NAME:-default}.",
}


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
    return adapter().json_schema()


def _definition(reference: str) -> dict[str, Any]:
    return cast(dict[str, Any], _models()["$defs"][reference.rpartition("/")[2]])


def _section(model: dict[str, Any]) -> dict[str, Any]:
    properties = {key: _field(each) for key, each in model["properties"].items()}
    section = {"type": "object", "properties": properties, "additionalProperties": False}
    return section | ({"required": model["required"]} if "required" in model else {})


def _field(model: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one key: what the file may hold in place of what the code gets."""
    field = {key: each for key, each in model.items() if key != "title"}
    if "$ref" in field and "description" not in field:  # pydantic leaves out what the section says too
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
