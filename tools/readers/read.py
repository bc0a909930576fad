"""Read tables as one reader does: `python read.py READER REQUESTS RESULTS`, in the reader's environment.

REQUESTS is a file of JSON: a list of tables, each with `path`, `columns`, those of `texts`, `version` (None
is the newest) and `is_feed`. RESULTS gets one line of JSON for the reader's version, and one for each table:
`rows`, as texts that are the same from every reader, or `error`, or `lacks` if the reader offers nothing of
the kind. Nothing of pgdelta is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

Request = Mapping[str, Any]
Read = Callable[[Request], Iterable[Iterable[Any]]]

_SPARK_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Python's datetime does not convert moments of the year 1
_SPARK_SELECTED = {
    "timestamp": "unix_micros(`{}`)",
    "array<timestamp>": "transform(`{}`, each -> unix_micros(each))",
}


class NotOffered(Exception):
    """The reader has no way to read this."""


def plain(value: Any) -> Any:
    """Return a value as JSON that shows its type; a map is a list of pairs, in order."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "toJson"):  # a variant of Spark
        return plain(json.loads(value.toJson()))
    if type(value).__module__ == "numpy":
        value = value.tolist()
    match value:
        case bool() | int() | str():
            return value
        case float():
            return f"float {value!r}"
        case Decimal():
            digits = format(value, "f")
            return f"decimal {digits.rstrip('0').rstrip('.') if '.' in digits else digits}"
        case bytes() | bytearray() | memoryview():
            return f"bytes {bytes(value).hex()}"
        case datetime() if value.tzinfo is not None:
            return f"instant {value.astimezone(timezone.utc).replace(tzinfo=None).isoformat()}"
        case datetime():
            return f"time {value.isoformat()}"
        case date():
            return f"date {value.isoformat()}"
        case dict():
            return sorted([key, plain(each)] for key, each in value.items())
    found = list(value)
    if found and all(isinstance(each, dict) and each.keys() == {"key", "value"} for each in found):
        return sorted([each["key"], plain(each["value"])] for each in found)
    if found and all(isinstance(each, tuple) for each in found):
        return sorted([key, plain(each)] for key, each in found)
    return [plain(each) for each in found]


def plain_rows(rows: Iterable[Iterable[Any]]) -> list[str]:
    """Return rows as texts, in order."""
    return sorted(json.dumps([plain(value) for value in row], ensure_ascii=False) for row in rows)


def _arrow_rows(table: Any, columns: list[str]) -> Iterable[Iterable[Any]]:
    return zip(*(table.column(name).to_pylist() for name in columns), strict=True)


def _quoted(columns: list[str], quote: str = '"') -> str:
    return ", ".join(f"{quote}{name}{quote}" for name in columns)


def _decoded(value: Any) -> Any:
    """Return a value with texts in place of bytes."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_decoded, value))
    return value.decode() if isinstance(value, bytes) else value


def _instant(microseconds: Any) -> Any:
    """Return the moment so long after 1970, of each element of a list."""
    if isinstance(microseconds, list):
        return [_instant(each) for each in microseconds]
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def spark() -> tuple[str, Read]:
    """Return Spark with Delta, whose JARs come from Maven Central unless they are beside Spark's."""
    import pyspark
    from delta import configure_spark_with_delta_pip
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    for key, value in _SPARK_SETTINGS.items():
        builder = builder.config(key, value)
    if not any(Path(pyspark.__file__).parent.glob("jars/delta-spark*.jar")):
        builder = configure_spark_with_delta_pip(builder)
    session = builder.getOrCreate()

    def read(request: Request) -> Iterable[Iterable[Any]]:
        reader = session.read.format("delta")
        if request["is_feed"]:
            reader = reader.option("readChangeFeed", "true").option("startingVersion", request["version"])
        elif request["version"] is not None:
            reader = reader.option("versionAsOf", request["version"])
        frame = reader.load(request["path"])
        types = {each.name: each.dataType.simpleString() for each in frame.schema}
        selected = [_SPARK_SELECTED.get(types[name], "`{}`").format(name) for name in request["columns"]]
        instants = [types[name] in _SPARK_SELECTED for name in request["columns"]]
        for row in frame.selectExpr(*selected).collect():
            yield [
                _instant(value) if is_instant else value
                for value, is_instant in zip(row, instants, strict=True)
            ]

    return f"{session.version}, Delta {version('delta-spark')}", read


def _delta_table(request: Request) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(request["path"], version=None if request["is_feed"] else request["version"])


def delta_rs() -> tuple[str, Read]:
    """Return `deltalake`, into Arrow."""
    import pyarrow as pa

    def read(request: Request) -> Iterable[Iterable[Any]]:
        table = _delta_table(request)
        if request["is_feed"]:
            rows = pa.table(table.load_cdf(starting_version=request["version"]).read_all())
        else:
            rows = table.to_pyarrow_table(columns=request["columns"])
        return _arrow_rows(rows, request["columns"])

    return version("deltalake"), read


def pandas() -> tuple[str, Read]:
    """Return pandas, by `deltalake`, with columns of Arrow's types."""
    pd: Any = import_module("pandas")

    def read(request: Request) -> Iterable[Iterable[Any]]:
        if request["is_feed"]:
            raise NotOffered
        frame = _delta_table(request).to_pandas(columns=request["columns"], types_mapper=pd.ArrowDtype)
        for row in frame.itertuples(index=False, name=None):
            yield [each.to_pydatetime() if isinstance(each, pd.Timestamp) else each for each in row]

    return version("pandas"), read


def polars() -> tuple[str, Read]:
    """Return Polars."""
    import polars as pl

    def read(request: Request) -> Iterable[Iterable[Any]]:
        if request["is_feed"]:
            raise NotOffered
        frame = pl.read_delta(request["path"], version=request["version"])
        rows: Iterable[Iterable[Any]] = frame.select(request["columns"]).rows()
        return rows

    return version("polars"), read


def duckdb() -> tuple[str, Read]:
    """Return DuckDB, with its own extension `delta`, which a package brings."""
    import duckdb

    connection = duckdb.connect()
    for name in ("delta", "icu"):
        import_module("duckdb_extensions").import_extension(name, con=connection)
        connection.execute(f"LOAD {name}")
    connection.execute("SET timezone = 'UTC'")

    def read(request: Request) -> Iterable[Iterable[Any]]:
        if request["is_feed"]:
            raise NotOffered
        as_of = "" if request["version"] is None else f", version := {request['version']}"
        sql = f"SELECT {_quoted(request['columns'])} FROM delta_scan('{request['path']}'{as_of})"
        rows: Iterable[Iterable[Any]] = connection.execute(sql).fetchall()
        return rows

    return version("duckdb"), read


def datafusion() -> tuple[str, Read]:
    """Return DataFusion, with the table of `deltalake`."""
    engine: Any = import_module("datafusion")

    def read(request: Request) -> Iterable[Iterable[Any]]:
        if request["is_feed"]:
            raise NotOffered
        context = engine.SessionContext()
        context.register_table("t", _delta_table(request))
        rows = context.sql(f"SELECT {_quoted(request['columns'])} FROM t").to_arrow_table()
        return _arrow_rows(rows, request["columns"])

    return version("datafusion"), read


def clickhouse() -> tuple[str, Read]:
    """Return ClickHouse in this process (`chdb`)."""
    import pyarrow as pa

    chdb: Any = import_module("chdb")

    def read(request: Request) -> Iterable[Iterable[Any]]:
        if request["is_feed"]:
            raise NotOffered
        settings = "output_format_arrow_string_as_string = 0"  # its texts are bytes
        if request["version"] is not None:
            settings += f", delta_lake_snapshot_version = {request['version']}"
        table = f"deltaLakeLocal('{request['path']}')"
        sql = f"SELECT {_quoted(request['columns'], '`')} FROM {table} SETTINGS {settings}"
        found = pa.ipc.open_file(pa.py_buffer(chdb.query(sql, "Arrow").bytes())).read_all()
        for row in _arrow_rows(found, request["columns"]):
            yield [
                _decoded(value) if name in request["texts"] else value
                for name, value in zip(request["columns"], row, strict=True)
            ]

    engine = str(chdb.query("SELECT version()", "TabSeparated")).strip()
    return engine, read


READERS: dict[str, Callable[[], tuple[str, Read]]] = {
    "Spark 3.5": spark,
    "Spark 4": spark,
    "delta-rs": delta_rs,
    "pandas": pandas,
    "Polars": polars,
    "DuckDB": duckdb,
    "DataFusion": datafusion,
    "ClickHouse": clickhouse,
}
"""Readers by name, each with its version and what reads."""


def result_of(read: Read, request: Request) -> dict[str, Any]:
    """Return the rows of a table, or why there are none."""
    try:
        return {"rows": plain_rows(read(request))}
    except NotOffered:
        return {"lacks": True}
    except Exception as error:
        return {"error": str(error).strip() or type(error).__name__}


def main(name: str, requests: str, results: str) -> None:
    """Write the results of a reader."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    found, read = READERS[name]()
    with open(results, "w", encoding="utf-8") as file:
        print(json.dumps({"version": found}), file=file, flush=True)
        for request in json.loads(Path(requests).read_text(encoding="utf-8")):
            print(json.dumps(result_of(read, request)), file=file, flush=True)
    if not name.startswith("Spark"):  # whose JVM ends with it
        os._exit(0)  # threads of delta-rs may never end, or abort the process


if __name__ == "__main__":
    main(*sys.argv[1:])
