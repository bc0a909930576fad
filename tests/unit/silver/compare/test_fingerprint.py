"""The examples of the page about fingerprints, as SQL computes them; sums of parts are those of the whole."""

import hashlib
import re

import duckdb
import pytest

from pipeline.engine import DUCKDB
from pipeline.fingerprint import Fingerprint, total
from pipeline.silver.compare.row_hashes import SilverColumn, fingerprint_sql
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "fingerprint.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| `(\(.*\))` \| `(.*)` \| `([0-9a-f]{30})` \|$", PAGE, re.MULTILINE)
COLUMNS = [SilverColumn("a", "INT"), SilverColumn("b", "STRING"), SilverColumn("c", "DECIMAL(4,2)")]


def computed(values: str) -> tuple[int, str]:
    """Return the fingerprint of rows of three columns."""
    typed = "CAST(a AS INT) AS a, b, CAST(c AS DECIMAL(4,2)) AS c"
    rows = f"(SELECT {typed} FROM (VALUES {values}) AS v (a, b, c)) AS t"
    with duckdb.connect() as session:
        found = session.execute(fingerprint_sql(DUCKDB, rows, COLUMNS)).fetchone()
    assert found is not None
    return found


@pytest.mark.parametrize(("rows", "text", "fingerprint"), EXAMPLES)
def test_the_examples_of_the_page_are_right(rows: str, text: str, fingerprint: str) -> None:
    assert computed(rows)[1] == fingerprint
    digits = hashlib.md5(text.encode()).hexdigest()
    first = Fingerprint(1, int(digits[:15], 16), int(digits[16:31], 16))
    assert computed(rows.partition("), (")[0].rstrip(")") + ")")[1] == str(first)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 4


def test_sums_of_parts_are_those_of_the_whole_modulo_a_power_of_two() -> None:
    large = Fingerprint(1, (1 << 60) - 1, 5)
    assert total([large, large, Fingerprint()]) == Fingerprint(2, (1 << 60) - 2, 10)
    assert str(Fingerprint(3, 1, 15)) == f"{1:015x}{15:015x}"


def test_an_added_column_without_values_changes_no_hash() -> None:
    with duckdb.connect() as session:
        session.execute("CREATE TABLE t AS SELECT 1 AS a, ',' AS b, NULL::DECIMAL(4,2) AS c")
        both = [session.execute(fingerprint_sql(DUCKDB, "t", COLUMNS[:n])).fetchone() for n in (2, 3)]
    assert both[0] == both[1]
