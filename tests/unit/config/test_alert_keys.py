"""The section `alerts`: its conditions and limits, and what is refused."""

from __future__ import annotations

import pytest

from pipeline.config.alerts import Alerting
from pipeline.config.config import Config
from pipeline.config.load import load_text
from pipeline.errors import ConfigError

HEAD = 'pipeline: shop\nsource: {conninfo: "dbname=shop"}\nstorage: {root: ./lake}\n'


def load(section: str, **environ: str) -> Config:
    return load_text(HEAD + section, "shop.yaml", environ)


def test_without_the_section_there_are_alerts_of_the_usual_conditions() -> None:
    alerts = load("").alerts
    assert alerts == Alerting()
    assert (alerts.lag_limit, alerts.wal_limit) == (3600, None)


@pytest.mark.parametrize(
    ("written", "lag", "wal"),
    [
        ('[held, "lag > 5 min"]', 300, None),
        ('["lag>90s", "wal > 10 GB"]', 90, 10 << 30),
        ('["lag > 2 d", failed, "wal>500MB"]', 172_800, 500 << 20),
        ("[held, failed, unpublished, slot]", None, None),
    ],
)
def test_limits_are_read(written: str, lag: int | None, wal: int | None) -> None:
    found = load(f"alerts: {{on: {written}}}\n").alerts
    assert (found.lag_limit, found.wal_limit) == (lag, wal)


@pytest.mark.parametrize(
    ("section", "place", "sentence"),
    [
        ("alerts:\n  on: [held, lagging]\n", "5: alerts.on[1]", "Unknown condition. Write held, failed"),
        ('alerts:\n  on: ["lag > 5 GB"]\n', "5: alerts.on[0]", "Unknown condition."),
        ('alerts:\n  on: ["lag > 0 s"]\n', "5: alerts.on[0]", "Unknown condition."),
        ('alerts:\n  on: ["wal > 5 min"]\n', "5: alerts.on[0]", "Unknown condition."),
        ("alerts:\n  on: []\n", "5: alerts.on", "No condition is named."),
        ("alerts:\n  on: [held, held]\n", "5: alerts.on[1]", "The condition is named twice."),
        ('alerts:\n  on:\n  - "lag > 1 s"\n  - "lag > 2 s"\n', "7: alerts.on[1]", "named twice"),
    ],
)
def test_a_mistake_is_named_with_its_place(section: str, place: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(section)
    assert str(error.value).startswith(f"shop.yaml:{place}: ")
    assert sentence in str(error.value)
