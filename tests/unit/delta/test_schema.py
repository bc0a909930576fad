"""Schemas: Spark's DDL, Delta's JSON and Arrow, one into the other."""

import re

import pyarrow as pa
import pytest

from pipeline.bronze.copies import COPIES, REQUESTS
from pipeline.bronze.schema import CHANGES, RELATIONS, spark_ddl
from pipeline.delta.schema import TableSchema, type_ddl
from pipeline.metadata.events import EVENTS
from pipeline.metadata.manifests import MANIFESTS
from pipeline.metadata.misfits import MISFITS
from pipeline.metadata.reconciliations import DIFFERENCES, RECONCILIATIONS
from pipeline.metadata.registry import TABLES
from pipeline.metadata.status import STATUS


@pytest.mark.parametrize("schema", [CHANGES, RELATIONS], ids=["changes", "relations"])
def test_arrow_schemas_of_bronze_come_back(schema: pa.Schema) -> None:
    assert TableSchema.of_ddl(spark_ddl(schema)).arrow == schema


@pytest.mark.parametrize(
    "ddl",
    [COPIES, REQUESTS, EVENTS, MANIFESTS, MISFITS, RECONCILIATIONS, DIFFERENCES, TABLES, STATUS],
)
def test_the_pipelines_own_tables_are_read(ddl: str) -> None:
    schema = TableSchema.of_ddl(ddl)
    assert TableSchema.of_json(schema.json) == schema
    assert schema.arrow.names == schema.names


def test_every_type_has_its_name() -> None:
    types = {
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "SMALLINT": pa.int16(),
        "TINYINT": pa.int8(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "DECIMAL(38,10)": pa.decimal128(38, 10),
        "ARRAY<STRING>": pa.list_(pa.field("element", pa.string())),
        "MAP<STRING,STRING>": pa.map_(pa.string(), pa.string()),
        "STRUCT<A:INT,B:ARRAY<DATE>>": pa.struct(
            [pa.field("A", pa.int32()), pa.field("B", pa.list_(pa.field("element", pa.date32())))]
        ),
    }
    schema = TableSchema.of_ddl(", ".join(f"c{n} {ddl}" for n, ddl in enumerate(types)))
    assert [field.ddl for field in schema.fields] == [*types]
    assert schema.arrow.types == [*types.values()]


@pytest.mark.parametrize("name", ["a b", "a`b", "a,b", "ä", "", "struct<x: int>"])
def test_quoted_names_are_read(name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    assert TableSchema.of_ddl(f"{quoted} INT, s STRUCT<{quoted}: STRING>").names == [name, "s"]


@pytest.mark.parametrize("ddl", ["a", "a INT b", "a INT,", "a ARRAY<INT", "a STRUCT<b>", "a DECIMAL(3"])
def test_other_texts_are_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match=rf"^Invalid DDL '{re.escape(ddl)}' at character \d+$"):
        TableSchema.of_ddl(ddl)


def test_metadata_of_columns_is_kept() -> None:
    text = (
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":false,"metadata":'
        '{"delta.columnMapping.id":1,"delta.columnMapping.physicalName":"col-1"}}]}'
    )
    schema = TableSchema.of_json(text)
    assert schema.json == text
    assert (schema.fields[0].physical_name, type_ddl("variant")) == ("col-1", "VARIANT")
