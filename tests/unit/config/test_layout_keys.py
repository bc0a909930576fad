"""Properties that the pipeline or Delta's protocol depends on are refused with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    "name",
    [
        "delta.appendOnly",
        "delta.enableChangeDataFeed",
        "DELTA.x",
        "pgdelta.logRetentionCommits",
        "comment",
        "Owner",
    ],
)
def test_a_reserved_property_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"pipeline: p\ntables:\n  - source: a.b\n    properties:\n      {name}: x\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    assert str(raised.value).startswith(f"{file}:5: tables[0].properties.{name}: The pipeline or Delta sets")


def test_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "pipeline: p\ntables:\n  - source: a.b\n    comment: c\n    change_feed: true\n"
        "    properties: {team: sales, delta.dataSkippingNumIndexedCols: '8'}\n"
    )
    [rule] = load_config(file, {}).tables
    assert (rule.comment, rule.change_feed) == ("c", True)
    assert rule.properties == {"team": "sales", "delta.dataSkippingNumIndexedCols": "8"}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ("cluster_by: []", "3: tables[0].cluster_by: No column is named."),
        ("cluster_by: [a, b, a]", "3: tables[0].cluster_by[2]: The column is named twice."),
        (
            "cluster_by: [a]\n    columns: {exclude: [a]}",
            "3: tables[0].cluster_by[0]: The column is not captured.",
        ),
    ],
)
def test_columns_that_files_cannot_be_sorted_by_are_refused(tmp_path: Path, keys: str, error: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"tables:\n  - source: a.b\n    {keys}\npipeline: p\n")
    with pytest.raises(ConfigError) as raised:
        load_config(file, {})
    assert str(raised.value).startswith(f"{file}:{error}")


def test_columns_to_sort_by_are_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("pipeline: p\ntables:\n  - source: a.b\n    cluster_by: [a, B]\n")
    assert load_config(file, {}).tables[0].cluster_by == ("a", "B")
