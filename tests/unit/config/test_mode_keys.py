"""The keys of modes: which tables have intermediate versions, and where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.errors import ConfigError


def load(folder: Path, text: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(f"pipeline: s\n{text}", encoding="utf-8")
    return load_config(file, {})


def test_intermediate_versions_are_those_of_tables_in_history(tmp_path: Path) -> None:
    text = (
        "silver: {mode: history, history: {intermediate: true}}\n"
        "tables:\n"
        "  - source: a.b\n"
        "  - {source: a.c, history: {intermediate: false}}\n"
        "  - {source: a.d, mode: mirror}\n"
        "  - {source: a.e, mode: history, history: {intermediate: true}}\n"
    )
    assert [rule.has_intermediate for rule in load(tmp_path, text).tables] == [True, False, False, True]
    text = text.replace("history: {intermediate: true}}\ntables", "history: {}}\ntables")
    assert [rule.has_intermediate for rule in load(tmp_path, text).tables] == [False, False, False, True]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tables:\n  - source: a.b\n    history:\n      intermediate: true\n", "5: tables[0]."),
        (
            "silver: {mode: history}\ntables:\n  - source: a.b\n    mode: append\n"
            "    history: {intermediate: false}\n",
            "6: tables[0].",
        ),
        ("silver:\n  history: {intermediate: true}\n", "3: silver."),
    ],
)
def test_only_history_has_intermediate_versions(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert str(caught.value).endswith(
        f"c.yaml:{place}history.intermediate: Only the mode history has versions. Leave the key out, or "
        "write mode: history."
    )
