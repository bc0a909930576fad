"""A silver table with an overlay as a frame of Spark.

Files without changes are read by Delta. Of the others Spark reads the rows with their places, without those
that are gone, and the new rows are sent to it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.delta.sql import quoted
from pipeline.delta.table import LakeTable
from pipeline.silver.write.overlay import Overlay

_METADATA = "_metadata"


def can_show(table: LakeTable, overlay: Overlay) -> bool:
    """Return whether the files of an overlay are told apart by their names, and have all columns."""
    snapshot = table.snapshot()
    if overlay.gone and snapshot.partition_columns:
        return False
    counts = Counter(_name(add["path"]) for add in snapshot.files.values())
    has_one_each = all(counts[_name(overlay.files[key]["path"])] == 1 for key in overlay.gone)
    return has_one_each and _METADATA not in {name.lower() for name in table.schema().names}


def frame_of(table: LakeTable, overlay: Overlay) -> DataFrame:
    """Return the rows of a table, whose newest version the overlay is of, with the overlay."""
    spark, base = table.spark, table.frame()
    schema = base.schema
    # of the rows after a chunk without rows Spark makes none
    rows = spark.createDataFrame(overlay.rows.combine_chunks(), schema)
    if not overlay.files:
        return rows
    if overlay.gone:
        file = F.col(f"{_METADATA}.file_name")
        base = base.where(~file.isin([_name(overlay.files[key]["path"]) for key in overlay.gone]))
        paths = [f"{table.path}/{unquote(overlay.files[key]['path'])}" for key in overlay.gone]
        # names of lakes may have what Spark would expand as a glob
        files = spark.read.schema(schema).option("__globPaths__", "false").parquet(*paths)
        gone = F.broadcast(spark.createDataFrame(_places(overlay), "file string, place bigint"))
        is_gone = (file == gone["file"]) & (F.col(f"{_METADATA}.row_index") == gone["place"])
        columns = [F.col(quoted(name)) for name in schema.names]
        base = base.unionAll(files.join(gone, is_gone, "left_anti").select(*columns))
    return base.unionAll(rows) if overlay.rows.num_rows else base


def _name(path: str) -> str:
    return PurePosixPath(unquote(path)).name


def _places(overlay: Overlay) -> pa.Table:
    names = [np.repeat(_name(overlay.files[key]["path"]), len(each)) for key, each in overlay.gone.items()]
    places = np.concatenate(list(overlay.gone.values()))
    return pa.table({"file": pa.array(np.concatenate(names)), "place": pa.array(places, pa.int64())})
