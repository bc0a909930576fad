"""Read what of a pipeline needs a person, from its lake and its source. Nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timezone

from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.delta.store.looks import one_look
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifests
from pipeline.protocol.lsn import INVALID
from pipeline.report.alert_rules import AlertFacts, awaited_tables
from pipeline.report.status import read_status
from pipeline.table_name import TableName


@one_look()
def read_facts(
    config: Config,
    *,
    is_offline: bool = False,
    copy_failures: Mapping[TableName | None, str] | None = None,
    known: Collection[str] = (),
) -> AlertFacts:
    """Read what the rules of alerts need; the source is not read if `is_offline`.

    `copy_failures` are those of an ingest of this process, `known` the keys of the alerts that began before.
    """
    status = read_status(config, is_offline=is_offline)
    lake = Lake(config.storage, application=f"pgdelta status {config.pipeline}")
    bronze, now = Bronze(lake, config.pipeline), datetime.now(timezone.utc)
    source_now = status.source.now if status.source else now
    offsets = {
        table.name: table.applied
        for table in awaited_tables(status.tables)
        if INVALID < table.applied < status.captured
    }
    has_bronze = status.captured != INVALID
    pending = bronze.oldest_pending(offsets, status.captured) if has_bronze else {}
    return AlertFacts(
        status,
        config.alerts,
        now,
        captured_at=bronze.captured_at() if has_bronze else None,
        applied_at=max((written for _, written in Manifests(lake).written()), default=None),
        pending={
            name: max(0.0, (source_now - committed).total_seconds()) for name, committed in pending.items()
        },
        copy_failures=copy_failures,
        known=known,
    )
