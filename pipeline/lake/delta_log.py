"""The log of a Delta table: Delta's own object for it, and what its commits say of themselves."""

import json
from typing import Any

from pyspark.sql import SparkSession

# Commits of these operations leave every row as it was.
HARMLESS = frozenset(
    {
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CLUSTER BY",
        "CREATE TABLE",
        "DROP COLUMNS",
        "FSCK",
        "OPTIMIZE",
        "RENAME COLUMN",
        "REORG",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "VACUUM END",
        "VACUUM START",
    }
)


def delta_log(spark: SparkSession, path: str) -> Any:
    """Return the `DeltaLog` of the table at a path, be it there or not.

    It is an object of the JVM: for what Delta's API for Python does not reach.
    """
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a commit's user metadata, empty for anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
