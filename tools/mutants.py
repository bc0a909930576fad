"""Change one condition of the code at a time, and show which tests notice: `python -m tools.mutants`.

Each mutant is one flipped comparison, `and`/`or`, `not` or truth value in a module that promises rest on. Its
tests run in a copy of the checkout until one fails. A mutant that passes all of them survives: either its
change has no effect, or a test is missing. Exit code 1 if any survives.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600  # for the tests of one mutant; one that never ends is caught
UNIT, INTEGRATION = "tests/unit", "tests/integration"
TARGETS: dict[str, tuple[str, ...]] = {
    "protocol/decode.py": (f"{UNIT}/protocol",),
    "protocol/transactions.py": (f"{UNIT}/protocol", f"{UNIT}/bronze/test_streamed_transactions.py"),
    "silver/fold/fold.py": (f"{UNIT}/silver", f"{INTEGRATION}/silver/test_native_workloads.py"),
    "silver/fold/fold_sql.py": (f"{UNIT}/silver", f"{INTEGRATION}/silver/test_native_workloads.py"),
    **dict.fromkeys(
        (
            "silver/fold/merge.py",
            "silver/fold/row_changes.py",
            "silver/write/file_committer.py",
            "silver/write/native_target.py",
        ),
        (f"{UNIT}/silver/write", f"{UNIT}/silver/fold", f"{INTEGRATION}/silver/test_native_workloads.py"),
    ),
    "silver/decision.py": (f"{UNIT}/silver/test_decision.py", f"{UNIT}/apply"),
    "silver/schema/schema_evolution.py": (
        f"{UNIT}/silver",
        f"{INTEGRATION}/silver/test_lockstep_policies.py",
    ),
    "silver/schema/column_mapping.py": (f"{UNIT}/silver", f"{INTEGRATION}/silver/test_lockstep_policies.py"),
    "delta/txn.py": (f"{UNIT}/delta", f"{UNIT}/apply"),
    "bronze/copies.py": (f"{UNIT}/bronze", f"{UNIT}/table_copy", f"{INTEGRATION}/table_copy"),
    "table_copy/capture_state.py": (f"{UNIT}/table_copy", f"{INTEGRATION}/table_copy/test_table_copies.py"),
    "delta/native_commit.py": (f"{UNIT}/delta",),
    "verify/commit_chain.py": (f"{UNIT}/verify",),
}  # fmt: skip

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


class Mutant(NamedTuple):
    """One change of a module; `line` is its first changed line, `new` the text of the changed expression."""

    module: str
    line: int
    old: str
    new: str
    source: str


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module; what decorators say of classes changes no behaviour."""
    tree = ast.parse(source)
    decorators = [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", ())]
    skipped = {node for each in decorators for node in ast.walk(each)}
    for node in ast.walk(tree):
        if node in skipped or not isinstance(node, ast.expr) or (new := _changed(node, source)) is None:
            continue
        old = ast.get_source_segment(source, node)
        assert old is not None
        lines = source.splitlines(keepends=True)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        before = (
            "".join(lines[: node.lineno - 1]).encode() + lines[node.lineno - 1].encode()[: node.col_offset]
        )
        after = lines[node.end_lineno - 1].encode()[node.end_col_offset :] + "".join(
            lines[node.end_lineno :]
        ).encode()  # fmt: skip
        yield Mutant(module, node.lineno, old, new, (before + f"({new})".encode() + after).decode())


def _changed(node: ast.AST, source: str) -> str | None:
    """Return the other text of an expression, None if it is not one that is changed."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = (ast.get_source_segment(source, each) for each in (node.left, node.comparators[0]))
        return f"({left}) {_COMPARED[type(node.ops[0])]} ({right})"
    if isinstance(node, ast.BoolOp):
        texts = [ast.get_source_segment(source, value) for value in node.values]
        return (" or " if isinstance(node.op, ast.And) else " and ").join(f"({text})" for text in texts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ast.get_source_segment(source, node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return str(not node.value)
    return None


def is_caught(mutant: Mutant, checkout: Path, python: str) -> bool:
    """Return whether a test of the module fails with a mutant, which is undone afterwards."""
    file = checkout / "pipeline" / mutant.module
    before = file.read_text(encoding="utf-8")
    file.write_text(mutant.source, encoding="utf-8")
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TARGETS[mutant.module]]
    try:
        done = subprocess.run(command, cwd=checkout, capture_output=True, timeout=SECONDS, check=False)
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(before, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Try mutants that are drawn from all modules alike; print those that survive."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many mutants to try (60)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--module", choices=sorted(TARGETS), help="of this module alone")
    options = parser.parse_args(arguments)
    draw, modules = Random(options.seed), [options.module] if options.module else list(TARGETS)
    drawn: list[Mutant] = []
    for number, module in enumerate(modules):
        found = list(mutants_of(module, (ROOT / "pipeline" / module).read_text(encoding="utf-8")))
        share = options.count // len(modules) + (number < options.count % len(modules))
        drawn += draw.sample(found, min(share, len(found)))
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        checkout = Path(folder) / "pgdelta"
        ignored = shutil.ignore_patterns(
            ".venv", ".git", "build", "__pycache__", ".*_cache", "spark-warehouse"
        )
        shutil.copytree(ROOT, checkout, ignore=ignored)
        (checkout / ".venv").symlink_to(ROOT / ".venv")
        for number, mutant in enumerate(drawn, 1):
            caught = is_caught(mutant, checkout, sys.executable)
            place = f"pipeline/{mutant.module}:{mutant.line}"
            change = f"{' '.join(mutant.old.split())} → {' '.join(mutant.new.split())}"
            print(
                f"{number:3}/{len(drawn)} {'caught' if caught else 'SURVIVED':8} {place}  {change}",
                flush=True,
            )
            survivors += [] if caught else [mutant]
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
