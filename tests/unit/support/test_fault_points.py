"""The fault matrix has every named step, and a fault strikes at its step only."""

import re
from collections import Counter
from itertools import product

import pytest

from pipeline.crash_steps import CrashStep, crash_step
from tests.support.fault_points import CELLS, FAULTS, WHEN, Cell, crash_at, observed, struck
from tests.support.paths import ROOT
from tests.support.pipelines import Crash


def run_steps() -> None:
    for step in CrashStep:
        with crash_step(step):
            pass


def test_every_step_is_in_the_matrix_with_every_fault() -> None:
    assert Counter(CELLS) == Counter(Cell(*cell) for cell in product(CrashStep, WHEN, FAULTS))
    assert {cell.step for cell in CELLS} == set(CrashStep)


def test_every_step_is_taken_at_one_place() -> None:
    places = Counter(
        name
        for path in (ROOT / "pipeline").rglob("*.py")
        for name in re.findall(r"with crash_step\(CrashStep\.(\w+)\)", path.read_text(encoding="utf-8"))
    )
    assert places == Counter(step.name for step in CrashStep)


def test_no_test_crashes_at_a_step_by_the_name_of_its_method() -> None:
    """Only the steps' names reach a step, so that the code may move."""
    methods = (
        "Spool.seal|StagingFolder.move|BronzeWriter.(record_relations|commit)|Capture._acknowledge|"
        "CopySpool.finish|Copies.record|TableRegistry.register|StepWriter.write|Manifests.record|"
        "LakeTable.replace_with"
    )
    named = re.compile(rf"(?:{methods})\b".replace(".", r"(?:\.|, \")"))
    patched = re.compile(r"setattr\(\s*[^)]*\)")
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for path in (ROOT / "tests").rglob("*.py")
        for call in patched.findall(path.read_text(encoding="utf-8"))
        if named.search(call)
    ]
    assert not found


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.fault == "storage error"], ids=str)
def test_a_fault_strikes_once_at_its_step(cell: Cell) -> None:
    seen: list[CrashStep] = []
    with struck(cell) as has_struck:
        with pytest.raises(RuntimeError, match="Slow Down"), crash_step(cell.step):
            seen.append(cell.step)
        assert has_struck.is_set()
        run_steps()
    assert seen == ([] if cell.when == "before" else [cell.step])


def test_a_crash_comes_at_its_step_each_time_but_the_first() -> None:
    with crash_at(CrashStep.WRITE_TABLE, passing=1):
        run_steps()
        for _ in range(2):
            with pytest.raises(Crash):
                run_steps()
    run_steps()


def test_steps_are_observed_in_their_order() -> None:
    seen: list[tuple[CrashStep, str]] = []
    with observed(lambda step, when: seen.append((step, when))):
        run_steps()
    assert seen == list(product(CrashStep, WHEN))
