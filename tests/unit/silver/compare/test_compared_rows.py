"""Which versions of a silver table only Spark reads for a comparison, and why."""

from typing import Any

import pytest

from pipeline.delta.schema import TableSchema
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.silver.compare.compared_rows import why_spark
from pipeline.silver.write.writer_choice import MAX_COMPARED_BYTES, WriterSetting

VECTOR = {"deletionVector": {"storageType": "u"}}


@pytest.mark.parametrize(
    ("path", "writer", "ddl", "features", "file", "reason"),
    [
        ("/lake/t", "auto", "a MAP<STRING,STRING>", ["columnMapping", "typeWidening"], {}, None),
        ("/lake/t", "native", "a INT", [], {"size": 1, **VECTOR}, None),
        ("/lake/t", "spark", "a INT", [], {}, "silver.writer is spark"),
        ("dbfs:/t", "auto", "a INT", [], {}, "only Spark reads storage.root"),
        ("/lake/t", "auto", "a INT", ["other"], {}, "the table has the feature other"),
        ("/lake/t", "auto", "a VARIANT", [], {}, "it has columns of types that only Spark reads"),
        (
            "/lake/t",
            "auto",
            "a INT",
            [],
            {"size": MAX_COMPARED_BYTES + 1, **VECTOR},
            "it is large and has deletion vectors",
        ),
    ],
)
def test_what_only_spark_reads_has_a_reason(
    path: str, writer: WriterSetting, ddl: str, features: list[str], file: dict[str, Any], reason: str | None
) -> None:
    schema = TableSchema.of_ddl(ddl).json
    version = Snapshot(path, 1, schema_string=schema, protocol={"readerFeatures": features})
    assert why_spark(LakeTable(path), version.with_files({"f": file}), writer) == reason
