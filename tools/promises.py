"""Which tests hold each promise of docs/architecture/guarantees.md: `python -m tools.promises` prints them.

A test names its promises with `@pytest.mark.promise("…")`; the page has one sentence for each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = Path("docs", "architecture", "guarantees.md")


class PromiseTest(NamedTuple):
    """A test with the promises that it names."""

    file: str
    name: str
    is_slow: bool
    promises: tuple[str, ...]


def read_promises(text: str) -> dict[str, str]:
    """Return the sentence of each promise by its name, in the page's order."""
    return dict(re.findall(r"^- \*\*(.+?)\*\*: (.+)$", text, re.MULTILINE))


@cache
def read_tests(root: Path = ROOT) -> list[PromiseTest]:
    """Return all tests that name a promise, by file."""
    return [test for file in sorted(root.glob("tests/**/test_*.py")) for test in _tests_of(file, root)]


def _tests_of(file: Path, root: Path) -> Iterator[PromiseTest]:
    text = file.read_text(encoding="utf-8")
    if "mark.promise(" not in text:
        return
    tree = ast.parse(text)
    of_module = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        promises = [
            ast.literal_eval(argument)
            for mark in node.decorator_list
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise"
            for argument in mark.args
        ]
        if not promises:
            continue
        marks = [ast.unparse(mark) for mark in node.decorator_list]
        # a mark of some parameters leaves the others in the default tier
        is_slow = any(
            re.search(r"mark\.slow\b(?!.*for m in)", mark)
            for mark in [*marks, *of_module]
            if "parametrize" not in mark
        )
        yield PromiseTest(str(file.relative_to(root)), node.name, is_slow, tuple(promises))


def table(text: str, tests: list[PromiseTest]) -> str:
    """Return a Markdown table: each promise of a page with its tests and their tier."""
    lines = ["| promise | tests |", "|---|---|"]
    for promise in read_promises(text):
        named = [test for test in tests if promise in test.promises]
        cells = [f"`{test.file}::{test.name}`{' (slow)' * test.is_slow}" for test in named]
        lines.append(f"| {promise} | {'<br>'.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table((ROOT / PAGE).read_text(encoding="utf-8"), read_tests()))
