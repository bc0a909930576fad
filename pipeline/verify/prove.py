"""Prove silver by fingerprints: the tables that are named, or those that are due, proved longest ago first.

A snapshot of the source keeps VACUUM from what was deleted since, so the tables that are due are proved in
groups, each under a snapshot of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.config.scalars import parse_rate
from pipeline.delta.sql import EPOCH
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.metadata.reconciliations import PROVE
from pipeline.metadata.registry import Records
from pipeline.silver.compare.file_fingerprints import FileCounts
from pipeline.silver.fold.modes import why_not_comparable
from pipeline.silver.lake_facts import detached_tables
from pipeline.table_name import TableName, match_tables
from pipeline.verify.reconcile import run_reconcile
from pipeline.verify.reconcile_report import Reconciled

_GROUP = 20  # tables under one snapshot


def run_prove(
    config: Config,
    globs: Sequence[str] | None = None,
    *,
    due: bool = False,
    budget: str | None = None,
    wait: float,
    runs: bool = False,
    repairs: bool = False,
    stop: threading.Event | None = None,
) -> Reconciled:
    """Prove the tables that globs match, or those of them that are `due`; see `run_reconcile`.

    Raises ConfigError for a budget that is no rate, and for `due` without `verify.every`.
    """
    try:
        rate = config.verify.budget if budget is None else parse_rate(budget)
    except ValueError as error:
        raise ConfigError(f"--budget: {error}") from None
    if not due:
        return run_reconcile(
            config, globs, wait=wait, runs=runs, repairs=repairs, method=PROVE, budget=rate, stop=stop
        )
    if config.verify.every is None:
        raise ConfigError("--due needs verify.every in the configuration: how old a proof may become.")
    matches = match_tables(globs)
    names = [name for name in due_tables(config, datetime.now(timezone.utc)) if matches(name)]
    proved = Reconciled(config.pipeline, "", (), files=FileCounts(0, 0))
    for first in range(0, len(names), _GROUP):
        if stop is not None and stop.is_set():
            break
        group = names[first : first + _GROUP]
        proved += run_reconcile(
            config,
            names=group,
            wait=wait,
            runs=runs,
            repairs=repairs,
            method=PROVE,
            budget=rate,
            stop=stop,
        )
    return proved


def due_tables(config: Config, now: datetime) -> list[TableName]:
    """Return the tables whose newest comparison is older than `verify.every`, the oldest first."""
    lake = Lake(config.storage, application=f"pgdelta prove {config.pipeline}")
    bronze = Bronze(lake, config.pipeline)
    records = Records(lake)
    captured, registered = bronze.captured_offset(), records.tables.read()
    if captured is None:
        return []
    compared = records.compared()
    detached = detached_tables(config, bronze.copies.read(), registered, captured)
    ages = {}
    for name in registered.keys() - detached.keys():
        rule = config.rule_for(name)
        if rule is not None and why_not_comparable(rule) is None:
            ages[name] = compared[name].last.at if name in compared else EPOCH
    latest = now - timedelta(seconds=config.verify.every or 0)
    return sorted((name for name, at in ages.items() if at <= latest), key=lambda name: (ages[name], name))
