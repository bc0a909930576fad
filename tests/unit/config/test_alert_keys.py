"""The section `alerts`: its conditions and limits, the webhook, and what is refused without showing it."""

import pytest

from pipeline.config.alerts import Alerting
from pipeline.config.config import Config
from pipeline.config.load import load_text
from pipeline.errors import ConfigError

HEAD = 'pipeline: shop\nsource: {conninfo: "dbname=shop"}\nstorage: {root: ./lake}\n'
SECRET = "https://hooks.example.com/services/T000/planted-secret"


def load(section: str, **environ: str) -> Config:
    return load_text(HEAD + section, "shop.yaml", environ)


def test_without_the_section_there_are_alerts_and_nothing_is_sent() -> None:
    alerts = load("").alerts
    assert alerts == Alerting()
    assert alerts.webhook is None
    assert (alerts.lag_limit, alerts.wal_limit) == (3600, None)


def test_the_address_comes_from_the_environment() -> None:
    found = load('alerts: {webhook: "${HOOK}", format: slack}\n', HOOK=SECRET).alerts
    assert (found.webhook, found.format) == (SECRET, "slack")


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
        ("alerts:\n  format: xml\n", "5: alerts.format", "Unknown value."),
        ("alerts:\n  webhok: a\n", "5: alerts.webhok", "Did you mean webhook?"),
        ("alerts:\n  webhook: planted-secret\n", "5: alerts.webhook", "Not an address of the form"),
        ("alerts:\n  webhook: ftp://planted-secret/x\n", "5: alerts.webhook", "Not an address of the form"),
        ("alerts:\n  webhook: https:///planted-secret\n", "5: alerts.webhook", "Not an address"),
        ("alerts:\n  webhook: http://h:x/planted-secret\n", "5: alerts.webhook", "Not an address"),
        ("alerts:\n  webhook: https://u:planted-secret@h/x\n", "5: alerts.webhook", "has a user before"),
        ('alerts:\n  webhook: "${NO_HOOK}"\n', "5: alerts.webhook", "Variable NO_HOOK is not set."),
    ],
)
def test_a_mistake_is_named_with_its_place_and_without_its_value(
    section: str, place: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(section)
    assert str(error.value).startswith(f"shop.yaml:{place}: ")
    assert sentence in str(error.value)
    assert "planted-secret" not in str(error.value)
