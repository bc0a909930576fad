"""The Grafana dashboard and the Prometheus rules name metrics and labels that pgdelta has."""

import json
import re
from itertools import chain
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from pipeline.report.metric import PREFIX
from pipeline.report.metrics import METRICS
from tests.support.dashboards import dashboard, queries, rules

METRIC = re.compile(r"\bpgdelta_\w+")
LABELS_OF = {
    f"{PREFIX}{metric.name}{suffix}": {"pipeline", *metric.labels}
    for metric in chain.from_iterable(METRICS.values())
    for suffix in (("_count", "_sum") if metric.kind == "summary" else ("",))
}
EXPRESSIONS = [*queries(), *((rule["alert"], rule["expr"]) for rule in rules())]
#: Metrics that no panel and no rule needs.
UNUSED = {
    "pgdelta_bronze_commits_total",
    "pgdelta_maintenance_merged_files_total",
    "pgdelta_maintenance_removed_files_total",
    "pgdelta_slot_held_since_timestamp_seconds",
    "pgdelta_stream_batch_id",
    "pgdelta_stream_input_rows",
    "pgdelta_stream_input_rows_per_second",
    "pgdelta_stream_processed_rows_per_second",
    "pgdelta_table_verified_lsn",
}


@pytest.mark.promise("dashboards")
@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_each_metric_is_one_that_pgdelta_exports(title: str, expression: str) -> None:
    named = set(METRIC.findall(expression))
    assert named or expression.startswith("up{"), title
    assert named <= LABELS_OF.keys()
    grouped = set(
        chain.from_iterable(re.findall(r"\w+", by) for by in re.findall(r"by \(([^)]*)\)", expression))
    )
    assert grouped <= set().union(*(LABELS_OF[name] for name in named)) if named else not grouped


def test_what_is_exported_is_shown_or_left_out_on_purpose() -> None:
    named = set(chain.from_iterable(METRIC.findall(expression) for _, expression in EXPRESSIONS))
    variables = METRIC.findall(str(dashboard()["templating"]))
    assert LABELS_OF.keys() - named - set(variables) == UNUSED


def test_panels_do_not_overlap_and_have_what_grafana_needs() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        assert {"title", "type", "targets", "fieldConfig", "options"} <= panel.keys()
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert METRIC.search(target["expr"])
            assert '{pipeline=~"$pipeline"}' in target["expr"]
    assert {each["name"] for each in dashboard()["templating"]["list"]} == {"datasource", "pipeline"}


def test_grafana_s_own_model_has_every_field_of_the_dashboard() -> None:
    """Its model is made of Grafana's schema, and leaves out what that does not have."""
    plugins.register_default_plugins()  # the options of each type of panel
    model = Dashboard.from_json(dashboard())
    assert lost(dashboard(), json.loads(JSONEncoder().encode(model))) == []


def lost(given: Any, kept: Any, place: str = "") -> list[str]:
    """Return the places of values that are not kept."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [each for key in given for each in lost(given[key], kept.get(key), f"{place}/{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [each for number, (a, b) in pairs for each in lost(a, b, f"{place}/{number}")]
    return [] if given == kept else [place]


def test_each_rule_has_a_summary_sentence_and_a_duration() -> None:
    for rule in rules():
        assert rule["annotations"]["summary"].endswith(".")
        assert re.fullmatch(r"\d+[mh]", rule["for"])
