"""Open the store of a root by its scheme."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlparse

from pipeline.delta.store.hdfs_store import HdfsStore
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.store import HDFS, PATIENCE, Store


def open_store(url: str, options: Mapping[str, str] | None = None, *, patience: float = PATIENCE) -> Store:
    """Return the store of a root; raise ConfigError if the options do not fit it."""
    kind = HdfsStore if urlparse(url).scheme == HDFS else ObjectStore
    return kind(url, options, patience=patience)
