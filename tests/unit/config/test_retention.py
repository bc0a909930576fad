"""`bronze.retention` is a time with a unit, or forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.errors import ConfigError


def load(folder: Path, retention: str) -> int | None:
    file = folder / "c.yaml"
    file.write_text(f"pipeline: s\nbronze:\n  retention: {retention}\n")
    return load_config(file).bronze.retention


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("forever", None), ("30d", 2_592_000), ("12 h", 43_200), ("1min", 60), ("007s", 7)],
)
def test_a_retention_has_a_unit(tmp_path: Path, written: str, seconds: int | None) -> None:
    assert load(tmp_path, written) == seconds


@pytest.mark.parametrize("written", ["30", "0d", "1w", "-1d", "none", "[30d]"])
def test_another_form_is_refused(tmp_path: Path, written: str) -> None:
    with pytest.raises(ConfigError, match="Expected forever, or a time in whole units"):
        load(tmp_path, written)
