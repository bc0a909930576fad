"""The mutants of a module: one change each, in place, and Python that compiles."""

from tests.support.paths import ROOT
from tools.mutants import TARGETS, mutants_of

SOURCE = """\
def f(a, b):
    # é
    if a == b and not a:
        return True
    return a in b or (
        a < 3
    )
"""


def test_each_mutant_changes_one_expression_in_place() -> None:
    found = list(mutants_of("m.py", SOURCE))
    changes = {(each.line, each.old.split()[0], each.new) for each in found}
    assert (3, "a", "(a) != (b)") in changes
    assert (3, "not", "a") in changes
    assert (4, "True", "False") in changes
    assert (6, "a", "(a) <= (3)") in changes
    assert len(found) == 7
    for each in found:
        compile(each.source, "m.py", "exec")
        changed = [a for a, b in zip(SOURCE.splitlines(), each.source.splitlines(), strict=False) if a != b]
        assert changed


def test_modules_of_mutants_and_their_tests_exist() -> None:
    for module, tests in TARGETS.items():
        assert (ROOT / "pipeline" / module).is_file()
        assert all((ROOT / path).exists() for path in tests)
