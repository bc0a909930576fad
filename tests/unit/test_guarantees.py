"""The page of guarantees names tests that exist, and says which of them are slow."""

from __future__ import annotations

import ast
import re

import pytest

from pipeline.config.load import field_schema
from tests.support.paths import ROOT

COMMANDS = {path.stem.replace("_", "-") for path in (ROOT / "pipeline" / "cli" / "commands").glob("*.py")}
PAGE = (ROOT / "docs" / "architecture" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(slow\))?", PAGE)


def test_every_promise_is_attacked() -> None:
    headings = ("| promise", "| capability")
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(headings)]
    assert rows
    assert all("::test_" in row for row in rows)


def test_capabilities_have_keys_and_commands_that_exist() -> None:
    section = PAGE.split("## What you can configure of silver\n", 1)[1].split("\n## ", 1)[0]
    named = {name for row in section.splitlines()[4:] for name in re.findall("`([^`]+)`", row.split("|")[2])}
    commands = {name for name in named if name.startswith("pgdelta ")}
    keys = {tuple(name.replace("[]", ".[]").split(".")) for name in named - commands}
    for key in keys:
        assert field_schema([0 if part == "[]" else part for part in key]), key
    # each key of a rule that says how silver is kept
    of_rules = {key[2] for key in keys if key[:2] == ("tables", "[]")}
    assert of_rules >= {"mode", "detached_tables", "columns", "comment", "properties", "change_feed"}
    assert {name.split()[1] for name in commands} <= set(COMMANDS)


@pytest.mark.parametrize(("file", "test", "slow"), NAMED, ids=[test for _, test, _ in NAMED])
def test_a_named_test_exists(file: str, test: str, slow: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]
    marks = [ast.unparse(mark) for mark in found.decorator_list]
    marks += [
        ast.unparse(n.value)
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
    ]
    is_slow = any(
        re.search(r"mark\.slow\b(?!.*for m in)", mark) for mark in marks if "parametrize" not in mark
    )
    assert is_slow == bool(slow)
