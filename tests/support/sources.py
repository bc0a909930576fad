"""The sources of the package, parsed once for all rules about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

FILES = sorted((ROOT / "pipeline").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file consists of."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements in a node, at any depth; what they are made of is left out."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, name, ()) if not isinstance(node, ast.expr) else ():
            if isinstance(inner, ast.stmt):
                yield inner
            yield from statements(inner)
