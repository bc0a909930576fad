"""The page of guarantees names tests that exist, and says which of them are slow."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "architecture" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`( \(slow\))?", PAGE)


def test_every_promise_is_attacked() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert rows
    assert all("::test_" in row for row in rows)


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
