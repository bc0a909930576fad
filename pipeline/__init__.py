"""pgdelta: PostgreSQL logical replication into Delta Lake.

Data flows one way: `protocol` (bytes to complete transactions), `postgres` (the server), `bronze` (an
append-only log of every change), `silver` (tables that equal the source). `ingest` and `apply` are the two
jobs, `table_copy` copies the rows that are there already, `metadata` is what the pipeline records of its
tables, and `delta` is Delta Lake itself, which is independent of bronze and silver. The table of allowed
imports is in `tests/unit/test_imports.py`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"


def as_of(spark: Any, root: str, *, lsn: Any = None, timestamp: Any = None) -> Any:
    """Return all silver tables as of one commit of the source, as described in `pipeline.silver.read.as_of`.

    What it needs is imported when it is called: the package itself needs no Spark.
    """
    return import_module("pipeline.silver.read.as_of").as_of(spark, root, lsn=lsn, timestamp=timestamp)


def live(spark: Any = None, config: str | None = None) -> Any:
    """Return all silver tables as of the last commit of bronze, as described in `pipeline.reading.live`.

    With a session the tables are its frames; without one they are Arrow datasets, and no JVM starts.
    """
    return import_module("pipeline.reading.live").live(spark, config)
