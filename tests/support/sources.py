"""The sources of the package, parsed once for all rules about them."""

import ast
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

FILES = sorted((ROOT / "pipeline").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file consists of."""
    return ast.parse(path.read_text(encoding="utf-8"))
