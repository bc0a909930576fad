"""What tests replace is there, also in the slow tests, which few runs have."""

import ast
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.support.paths import ROOT

ROOMS = ("pipeline", "tools", "tests")


def patches(text: str) -> Iterator[tuple[Any, str]]:
    """Yield object and attribute of each `setattr` of a fixture for something of the project."""
    tree = ast.parse(text)
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOMS):
            imported |= {name.asname or name.name: (str(node.module), name.name) for name in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Name(id=found), ast.Constant(value=str(name)), *_],
            ) if found in imported:
                module, attribute = imported[found]
                owner = import_module(module)
                has_it = hasattr(owner, attribute)
                yield getattr(owner, attribute) if has_it else import_module(f"{module}.{attribute}"), name


@pytest.mark.costly
def test_every_name_that_a_test_replaces_exists() -> None:
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    found = [(path, *patch) for path, text in texts.items() if "setattr(" in text for patch in patches(text)]
    assert len(found) > 100
    assert not [f"{path}: {name}" for path, owner, name in found if not hasattr(owner, name)]
