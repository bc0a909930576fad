"""pgdelta: PostgreSQL logical replication into Delta Lake.

Changes flow one way, room by room: `protocol` (bytes to whole transactions) → `postgres` (the server) →
`bronze` (an append-only log of every change) → `silver` (plans that turn the log into tables) → `lake` (Spark
and Delta) → `report` (what people and machines are told) → `ingest` and `apply` (the two jobs) → `operate`
(what an operator asks for) → `prove`, `tail`, `demo` → `cli`. A room imports only rooms to its left; `errors`
and `config` are left of them all.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def as_of(spark: Any, root: str, *, lsn: Any = None, timestamp: Any = None) -> Any:
    """Return all silver tables as of one commit of the source, as `pipeline.lake.silver.as_of` has it.

    What it needs is imported when it is called: the package itself needs no Spark.
    """
    return import_module("pipeline.lake.silver.as_of").as_of(spark, root, lsn=lsn, timestamp=timestamp)
