"""The reference page of the metrics is what the code declares."""

import re

from pipeline.report.lineage import POSITION_KEY
from tests.support.paths import DOCS
from tools.reference_metrics import PAGE, render_page

FUNCTIONS = {"pgdelta_dag"}


def test_the_page_is_generated_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run python -m tools.reference_metrics"


def test_metrics_named_in_other_pages_are_declared() -> None:
    declared = {*re.findall(r"pgdelta_\w+", PAGE.read_text(encoding="utf-8")), POSITION_KEY, *FUNCTIONS}
    for path in DOCS.rglob("*.md"):
        named = set(re.findall(r"\bpgdelta_[a-z_]+(?!\w*\.py)", path.read_text(encoding="utf-8")))
        assert {name for name in named if not name.endswith("_")} <= declared, path.name
