"""The JSON Schema and the reference page say what the loader accepts, and are checked in as generated."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pipeline.config.load import load_config, schema, schema_text
from pipeline.errors import ConfigError
from tests.support.paths import ROOT
from tools.reference_config import page

EXAMPLE = ROOT / "conf" / "pipeline.yaml"
VALIDATOR = Draft202012Validator(schema())

KEY = "0123456789abcdef"
Path_ = tuple[str | int, ...]


def fields(model: dict[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Yield every key of the schema with its field; keys of a rule are those of the first one."""
    for name, field in model["properties"].items():
        yield (*path, name), field
        reference, inside = field.get("$ref"), (*path, name)
        if reference is None and (reference := field.get("items", {}).get("$ref")):
            inside = (*inside, 0)
        if reference:
            yield from fields(schema()["$defs"][reference.rpartition("/")[2]], inside)


FIELDS = dict(fields(schema()))


def file_with(path: Path_, value: object) -> dict[str, Any]:
    """Return a file in which one key has a value."""
    nested = value
    needed_of_item: dict[str, Any] = {"source": "a.b"} if path[0] == "tables" else {"hours": "00:00-24:00"}
    if path[0] == "catalog":
        needed_of_item = {"type": "glue"}
        if path[-1] == "uri" or value == "hive":
            needed_of_item = {"type": "hive", "uri": "thrift://m:9083"}
        if path[-1] in ("catalog", "token", "token_file") or value == "unity":
            needed_of_item = {"type": "unity", "uri": "https://u", "catalog": "main"}
    if value == "union" or path[-1] == "descendants":
        needed_of_item |= {"target": "t", "inheritance": "union", "descendants": ["a.c"]}
    for part in reversed(path):
        if part == 0:
            assert isinstance(nested, dict)
            nested = [{**needed_of_item, **nested}]
        else:
            nested = {part: nested}
    assert isinstance(nested, dict)
    needed: dict[str, Any] = {"source": {"hash_key": "${PGDELTA_HASH_KEY}"}} if "hash" in path else {}
    if path == ("source", "copying", "password_command"):
        nested["source"]["copying"] = {"conninfo": "host=standby", **nested["source"]["copying"]}
    if path[:2] in (("catalog", "table"), ("catalog", "targets")):
        nested = {"catalog": {"schema": "shop", **nested["catalog"]}}
    if path == ("storage", "options"):
        nested = {"storage": {"root": "s3://bucket/lake", **nested["storage"]}}
    if "intermediate" in path:
        nested["silver"] = {"mode": "history", **nested.get("silver", {})}
    return {"pipeline": "shop", **needed, **nested}


def loads(folder: Path, content: dict[str, Any]) -> bool:
    """Return whether the loader accepts a file."""
    file = folder / "c.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    try:
        load_config(file, {"NAME": "shop", "PGDELTA_HASH_KEY": KEY, "LINEAGE_KEY": KEY, "UNITY_TOKEN": KEY})
    except ConfigError:
        return False
    return True


def test_the_schema_is_checked_in() -> None:
    VALIDATOR.check_schema(schema())
    checked_in = (ROOT / "conf" / "pipeline.schema.json").read_text(encoding="utf-8")
    assert checked_in == schema_text(), "write it with pipeline.config.load.schema_text"
    assert EXAMPLE.read_text(encoding="utf-8").startswith(
        "# yaml-language-server: $schema=pipeline.schema.json\n"
    )


def test_the_reference_page_is_checked_in() -> None:
    checked_in = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert checked_in == page(), "write it with: python -m tools.reference_config"


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_key_is_described_and_has_a_default_where_it_can(path: Path_) -> None:
    field = FIELDS[path]
    assert field["description"].endswith(".")
    is_section = "$ref" in field or field.get("type") == "object"
    is_required = path in (
        ("pipeline",),
        ("tables", 0, "source"),
        ("silver", "schedule", "windows", 0, "hours"),
        ("catalog", "targets", 0, "type"),
    )
    assert is_section or is_required or "default" in field or "x-default" in field


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_what_the_schema_names_loads(tmp_path: Path, path: Path_) -> None:
    field = FIELDS[path]
    named = [*field.get("examples", ()), *([field["default"]] if "default" in field else [])]
    for kind in field.get("anyOf", ()):
        named += [*kind.get("enum", ()), *([kind["const"]] if "const" in kind else [])]
        named += [kind[bound] for bound in ("minimum", "maximum") if bound in kind]
        if kind.get("type") in ("boolean", "null"):
            named += [True, False] if kind["type"] == "boolean" else [None]
    for value in named:
        content = file_with(path, value)
        assert not list(VALIDATOR.iter_errors(content)), value
        assert loads(tmp_path, content), value


@pytest.mark.costly
@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_the_schema_and_the_loader_refuse_alike(tmp_path: Path, path: Path_) -> None:
    odd = ["", "no such word", -1, 17, 4.5, True, None, [], ["x"], {}, {"x": 1}, "${UNSET}", "${NAME}"]
    for value in odd:
        content = file_with(path, value)
        if loads(tmp_path, content):
            assert not list(VALIDATOR.iter_errors(content)), f"the loader accepts {value!r}"
        elif not isinstance(value, str) and not (path[-1] in ("descendants", "exclude") and value == ["x"]):
            # what is wrong in a text, only the loader knows
            assert list(VALIDATOR.iter_errors(content)), f"the loader refuses {value!r}"


def test_the_schema_accepts_the_example_and_no_unknown_key() -> None:
    assert not list(VALIDATOR.iter_errors(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))))
    for content in (
        {"pipeline": "s", "path": "x"},
        {"pipeline": "s", "source": {"rout": "sql"}},
        {"pipeline": "s", "source": {"protocol": {"written": []}}},
        {"pipeline": "s", "tables": [{"source": "a.b", "misfit": "text"}]},
    ):
        assert list(VALIDATOR.iter_errors(content))


def test_help_needs_no_pydantic() -> None:
    code = "import sys, pipeline.cli.main; print('pydantic' in sys.modules, 'yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
