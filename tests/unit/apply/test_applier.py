"""When apply tries again while bronze does not change."""

import time
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pipeline.apply.applier import RETRY_SECONDS, Applier
from pipeline.config.config import Config, Silver, Source, Storage
from pipeline.delta.table import LakeTable

CONFIG = Config("shop", Source("", "shop", "shop"), Storage("file:/nowhere"), Silver(), (), "pipeline.yaml")


def test_no_log_is_read_before_the_next_attempt_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def version(table: LakeTable) -> int:
        asked.append(table.path)
        return -1

    monkeypatch.setattr(LakeTable, "version", version)
    # there is no Spark
    monkeypatch.setattr("pipeline.delta.spark.log_store.require_log_store", lambda spark, scheme: None)
    applier = Applier(cast(SparkSession, object()), CONFIG)
    applier._batch_at = time.monotonic()
    applier.retry_when_due()
    assert asked == []
    applier._batch_at -= RETRY_SECONDS
    applier.retry_when_due()
    assert asked == ["file:/nowhere/bronze/copies", "file:/nowhere/_pgdelta/comments"]
