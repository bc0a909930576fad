"""What real servers sent for the values of `tests/support/captures/typed.py`, in both formats."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.protocol.binary.converters import CatalogType, Types

FOLDER = Path(__file__).resolve().parents[1] / "captures"


@dataclass(frozen=True)
class Value:
    """One value: the oid of its type, its bytes, and its text."""

    oid: int
    binary: bytes
    text: bytes


@dataclass(frozen=True)
class TypedValues:
    """All values of one server, and what its catalog says of the types that are not built in."""

    name: str
    server_version: int
    facts: dict[int, CatalogType]
    values: tuple[Value, ...]

    def types(self) -> Types:
        """Return the types of this server."""
        return Types(self.server_version, self.facts.get)

    def __str__(self) -> str:
        """Name the server in the output of a test."""
        return self.name


def load_typed_values() -> list[TypedValues]:
    """Read the values of every server."""
    found = []
    for path in sorted(FOLDER.glob("values-*.json")):
        document = json.loads(path.read_text())
        facts = {
            oid: CatalogType(oid, name, kind, send, output, delimiter, tuple(parts))
            for oid, name, kind, send, output, delimiter, parts in document["types"]
        }
        values = [Value(oid, bytes.fromhex(b), bytes.fromhex(t)) for oid, b, t in document["values"]]
        found.append(TypedValues(path.stem, document["server_version"], facts, tuple(values)))
    return found
