"""The page of readers: its rows and columns are those of the tool, and a reader that does worse is named."""

import json
import re

import pytest

from tests.support.paths import DOCS
from tools.readers.features import FEATURES
from tools.readers.page import LACKS, READS, REFUSES, WRONG, Cell, compared, page, shortened, stated, worse
from tools.readers.read import READERS, plain_rows

PAGE = (DOCS / "reference" / "readers.md").read_text(encoding="utf-8")


@pytest.mark.promise("other readers")
def test_the_page_has_every_feature_and_reader_of_the_tool() -> None:
    found = list(stated(PAGE))
    titles, readers = [each.title for each in FEATURES], list(READERS)
    assert [(title, reader) for title, reader, _ in found] == [(t, r) for t in titles for r in readers]
    assert {state for _, _, state in found} <= {READS, REFUSES, WRONG, LACKS}
    assert all(state == READS for title, _, state in found if "readers: widest" in title)


def test_the_page_has_every_silver_type() -> None:
    types = (DOCS / "reference" / "types.md").read_text(encoding="utf-8")
    named = {re.split(r"[(<]", ddl)[0] for ddl in re.findall(r"\| `([A-Z_]+[^`]*)` \|$", types, re.MULTILINE)}
    titles = " ".join(each.title for each in FEATURES)
    assert named
    assert {name for name in named if f"`{name}`" not in titles} == set()


def test_a_reader_that_shows_other_rows_is_wrong() -> None:
    rows = plain_rows([(1, "a", None), (2, "b", b"x")])
    assert compared(rows, plain_rows([(2, "b", b"x"), (1, "a", None)])) == Cell(READS)
    assert compared(rows, rows[:1]) == Cell(WRONG, "It reads 1 rows for 2.")
    other = [rows[0], json.dumps([2, "b", None])]
    assert compared(rows, other) == Cell(WRONG, 'It reads null for "bytes 78".')


def test_what_gets_worse_is_named() -> None:
    before = page({"A (1)": [Cell(READS), Cell(REFUSES, "no"), Cell(LACKS)]}, ["x", "y", "z"])
    assert worse(before, before) == []
    after = page({"A (2)": [Cell(REFUSES, "no"), Cell(WRONG, "It reads 1."), Cell(REFUSES, "no")]}, [*"xyz"])
    assert worse(before, after) == ["A, x: refuses (stated: reads)", "A, y: **WRONG** (stated: refuses)"]
    assert worse(after, before) == []


def test_an_error_is_one_line_without_paths_of_the_run() -> None:
    error = "calling o7.load. : java.lang.X: [DELTA_NO] Table \"file:/tmp/a b/c/d\" has\n 'x' SQLSTATE: 1"
    assert shortened(error).startswith("[DELTA_NO] Table")
    assert "tmp" not in shortened("cannot read /tmp/pgdelta-1/lake/t: no")
