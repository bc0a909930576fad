"""Each promise of the page of guarantees has a test that runs by default."""

import re

from pipeline.config.load import field_schema
from tests.support.paths import ROOT
from tools.promises import PAGE, read_promises, read_tests, table

COMMANDS = {path.stem.replace("_", "-") for path in (ROOT / "pipeline" / "cli" / "commands").glob("*.py")}
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
PROMISES = read_promises(TEXT)


def test_each_promise_has_a_test_that_runs_by_default() -> None:
    held = {name for test in read_tests() if not test.is_slow for name in test.promises}
    assert len(PROMISES) > 100
    assert set(PROMISES) - held == set()


def test_tests_name_promises_of_the_page() -> None:
    named = {name for test in read_tests() for name in test.promises}
    assert named - set(PROMISES) == set()


def test_each_line_of_the_page_is_a_promise_once() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("- ")]
    assert len(lines) == len(PROMISES)


def test_the_table_names_the_tests_of_each_promise() -> None:
    rows = table(TEXT, read_tests()).splitlines()
    assert len(rows) == 2 + len(PROMISES)
    assert all("::test_" in row for row in rows[2:])


def test_capabilities_have_keys_and_commands_that_exist() -> None:
    section = TEXT.split("## What you can configure of silver\n", 1)[1].split("\n## ", 1)[0]
    named = {
        name
        for sentence in read_promises(section).values()
        for name in re.findall("`([^`]+)`", sentence.rpartition(": ")[2])
    }
    commands = {name for name in named if name.startswith("pgdelta ")}
    keys = {tuple(name.replace("[]", ".[]").split(".")) for name in named - commands}
    for key in keys:
        assert field_schema([0 if part == "[]" else part for part in key]), key
    # each key of a rule that says how silver is kept
    of_rules = {key[2] for key in keys if key[:2] == ("tables", "[]")}
    assert of_rules >= {"mode", "detached_tables", "columns", "comment", "properties", "change_feed"}
    assert {name.split()[1] for name in commands} <= set(COMMANDS)
