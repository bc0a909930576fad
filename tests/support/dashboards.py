"""The expressions of the Grafana dashboard and of the Prometheus rules under `deploy/`."""

import json
from typing import Any

import yaml

from tests.support.paths import ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "pgdelta.json"
RULES = ROOT / "deploy" / "prometheus" / "pgdelta.yml"


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    """Return the rules."""
    [group] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> list[tuple[str, str]]:
    """Return the title and the expression of each query of the dashboard."""
    return [
        (panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel["targets"]
    ]
