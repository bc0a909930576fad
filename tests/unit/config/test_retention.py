"""`bronze.retention` is a time with a unit, or forever."""

import pytest

from pipeline.errors import ConfigError
from tests.support.config_texts import load


def retention_of(retention: str) -> int | None:
    return load(f"pipeline: s\nbronze:\n  retention: {retention}\n").bronze.retention


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("forever", None), ("30d", 2_592_000), ("12 h", 43_200), ("1min", 60), ("007s", 7)],
)
def test_a_retention_has_a_unit(written: str, seconds: int | None) -> None:
    assert retention_of(written) == seconds


@pytest.mark.parametrize("written", ["30", "0d", "1w", "-1d", "none", "[30d]"])
def test_another_form_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="Expected forever, or a time in whole units"):
        retention_of(written)
