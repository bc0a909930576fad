"""Schemas of the bronze tables, once as Arrow (for staged Parquet files) and once as Spark DDL (for Delta).

`changes` holds one row per change in commit order `(commit_lsn, ordinal)`; `relations` every relation
version that a change names. LSNs are 64-bit integers, times are UTC timestamps in microseconds, tuples are
arrays of PostgreSQL's text in the order of the columns of their relation version.
"""

import re

import pyarrow as pa

CELLS = pa.list_(pa.field("element", pa.string()))
RAW_CELLS = pa.list_(pa.field("element", pa.binary()))
POSITIONS = pa.list_(pa.field("element", pa.int32()))
TIMESTAMP = pa.timestamp("us", tz="UTC")

CHANGES = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("end_lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("commit_time", TIMESTAMP),
        pa.field("op", pa.string()),
        pa.field("relation_id", pa.int64()),
        pa.field("relation_version", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("old_kind", pa.string()),
        pa.field("old", CELLS),
        pa.field("new", CELLS),
        # 0-based positions of `new` that were not sent (unchanged TOAST); NULL if all were.
        pa.field("unsent", POSITIONS),
        # The tuple's raw bytes, only if a value is not UTF-8 (a SQL_ASCII database).
        pa.field("raw_old", RAW_CELLS),
        pa.field("raw_new", RAW_CELLS),
        pa.field("truncate_options", pa.int32()),
        pa.field("origin", pa.string()),
        pa.field("origin_lsn", pa.string()),
        pa.field("gid", pa.string()),
        pa.field("prefix", pa.string()),
        pa.field("content", pa.binary()),
        pa.field("transactional", pa.bool_()),
        pa.field("message_lsn", pa.int64()),
        # The copy to which a copied row belongs.
        pa.field("copy_id", pa.int64()),
    ]
)

_NOT_UTF8 = re.compile(r"[\udc80-\udcff]")  # bytes as Python decodes them with surrogateescape

# Rows of open streams also have the subtransaction that wrote them, which may yet be rolled back.
STREAMED = CHANGES.append(pa.field("subxid", pa.int64()))

# What readers select by: every file has statistics of these, in Parquet and in Delta's log.
STATISTICS = ("commit_lsn", "end_lsn", "ordinal", "xid", "schema_name", "table_name")
STATISTICS_PROPERTY = {"delta.dataSkippingStatsColumns": ",".join(STATISTICS)}

COLUMN = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("type_oid", pa.int64()),
        pa.field("type_modifier", pa.int32()),
        pa.field("is_key", pa.bool_()),
        # What the stream does not carry, as in the catalog at `looked_up_at`; NULL if unknown.
        pa.field("attribute_number", pa.int32()),
        pa.field("type_schema", pa.string()),
        pa.field("type_name", pa.string()),
        pa.field("type_kind", pa.string()),
        pa.field("base_oid", pa.int64()),
        pa.field("base_modifier", pa.int32()),
        pa.field("element_oid", pa.int64()),
        pa.field("element_kind", pa.string()),
        pa.field("element_base_oid", pa.int64()),
        pa.field("output", pa.string()),
        pa.field("delimiter", pa.string()),
        pa.field("missing_value", pa.string()),
        pa.field("not_null", pa.bool_()),
        pa.field("has_default", pa.bool_()),
    ]
)

PROTECTED_COLUMN = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("configured_name", pa.string()),
        pa.field("attribute_number", pa.int32()),
        pa.field("rule", pa.string()),
        pa.field("type_oid", pa.int64()),
        pa.field("type_modifier", pa.int32()),
    ]
)

RELATIONS = pa.schema(
    [
        pa.field("relation_version", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("relation_id", pa.int64()),
        pa.field("schema_name", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("replica_identity", pa.string()),
        pa.field("columns", pa.list_(pa.field("element", COLUMN))),
        pa.field("primary_key", pa.list_(pa.field("element", pa.string()))),
        pa.field("looked_up_at", TIMESTAMP),
        # The columns that are left out, hashed or masked; NULL if no rule concerns the table.
        pa.field("protected", pa.list_(pa.field("element", PROTECTED_COLUMN))),
        pa.field("at_rest", pa.bool_()),  # the catalog had the version, and no message did
    ]
)

_SCALARS = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.bool_(): "BOOLEAN",
    TIMESTAMP: "TIMESTAMP",
}


def spark_type(kind: pa.DataType) -> str:
    """Return the Spark DDL of an Arrow type of these schemas."""
    if pa.types.is_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "STRUCT<" + ", ".join(f"{f.name}: {spark_type(f.type)}" for f in kind) + ">"
    return _SCALARS[kind]


def spark_ddl(schema: pa.Schema) -> str:
    """Return `name TYPE, …` for a complete schema."""
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)


def storable(text: str) -> str:
    r"""Return a text as Parquet can hold it: bytes that are not UTF-8 (lone surrogates) read `\xE9`."""
    if text.isascii():
        return text
    return _NOT_UTF8.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02X}", text)
