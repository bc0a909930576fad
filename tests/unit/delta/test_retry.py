"""Writes that conflict with a foreign commit are repeated, others are not."""

from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    MetadataChangedException,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.delta.retry import ATTEMPTS, describe_conflict, is_conflict, retry_conflicts
from pipeline.delta.spark.log import delta_log
from pipeline.delta.table import Lake

CONFLICT = ConcurrentAppendException("[DELTA_CONCURRENT_APPEND] files were added")
SAME_WRITE = ConcurrentTransactionException("[DELTA_CONCURRENT_TRANSACTION] another query")


class Writer:
    """Raises the given errors, then writes."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return "written"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CONFLICT, True),
        (MetadataChangedException("[DELTA_METADATA_CHANGED] metadata"), True),
        (PySparkException("Job aborted: [DELTA_CONCURRENT_DELETE_READ.NO_DETAILS] files"), True),
        (SAME_WRITE, False),
        (PySparkException("Job aborted: [DELTA_CONCURRENT_TRANSACTION] another query"), False),
        (PySparkException("[DELTA_SCHEMA_CHANGED] schema"), False),
        (OSError("no space"), False),
    ],
)
def test_two_writers_of_one_offset_are_no_conflict(error: Exception, expected: bool) -> None:
    assert is_conflict(error) == expected


@pytest.mark.parametrize("failures", range(ATTEMPTS))
def test_a_write_is_repeated_after_a_conflict(failures: int) -> None:
    writer = Writer(*[CONFLICT] * failures)
    assert retry_conflicts(writer) == "written"
    assert writer.count == failures + 1


def test_the_last_attempt_raises_its_conflict() -> None:
    writer = Writer(*[CONFLICT] * ATTEMPTS)
    with pytest.raises(ConcurrentAppendException):
        retry_conflicts(writer)
    assert writer.count == ATTEMPTS


@pytest.mark.parametrize("error", [SAME_WRITE, ValueError("other")])
def test_any_other_error_is_raised_at_once(error: Exception) -> None:
    writer = Writer(error)
    with pytest.raises(type(error)):
        retry_conflicts(writer)
    assert writer.count == 1


def test_a_conflict_has_a_sentence() -> None:
    assert "each of 4 attempts" in str(describe_conflict(CONFLICT))
    assert "Another apply" in str(describe_conflict(SAME_WRITE))
    assert describe_conflict(ValueError("other")) is None


@pytest.mark.promise("foreign changes")
def test_a_rule_of_another_writer_is_named_without_values() -> None:
    check = PySparkException(
        "org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: "
        "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small (last < 100) violated by row with "
        "values:\n - last : 300"
    )
    assert describe_conflict(check) == (
        "Rows of the source violate the constraint small that another writer gave the silver table. Drop the "
        "constraint, then run again."
    )
    append = PySparkException(
        "[DELTA_CANNOT_MODIFY_APPEND_ONLY] This table is configured to only allow appends."
    )
    assert str(describe_conflict(append)).startswith("The silver table has the property delta.appendOnly")


CHECK = "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint"
ROW = "violated by row with values:\n - id : 300"
# what Delta says → how the sentence begins
RULES = {
    f"{CHECK} Generated Column (twice <=> (id * 2)) {ROW}": "Column twice of the silver table is generated",
    f"{CHECK} EXPRESSION(NOT (v = 'x')) (NOT (v = 'x')) {ROW}": "Rows of the source violate an invariant",
    "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: last name. \n": (
        "Rows of the source have NULL, or no value, in column last name of the silver table"
    ),
    '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "of\nFailed check: ((x IS NULL)" exceeds char/varchar type '
    "length limitation. Failed check: ((w IS NULL) OR (length(w) <= 3)).": (
        "The source has texts that are too long for column w of the silver table, which another writer made"
    ),
    '[DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION] Operation "WRITE" is not allowed when': (
        "The silver table has delta.enableChangeDataFeed, which does not allow this write after columns were"
    ),
    "[DELTA_IDENTITY_COLUMNS_UPDATE_NOT_SUPPORTED] UPDATE on IDENTITY column nr is not supported.": (
        "Column nr of the silver table is an IDENTITY column"
    ),
    "[DELTA_CONSTRAINT_DEPENDENT_COLUMN_CHANGE] Cannot alter column last name because this column is "
    "referenced by the following check constraint(s):\n\tgood -> v > 300": (
        "The source changed column last name, and a constraint or generated column that another writer gave"
    ),
    "[DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN] Dropping clustering columns (day) is not allowed.": (
        "The source dropped column day, by which another writer clusters the silver table."
    ),
    '[DELTA_UNSUPPORTED_FEATURES_FOR_WRITE] Unsupported Delta write feature: table "file:/300" requires '
    'writer table feature(s) that are unsupported by Delta Lake "4.4.0": one, two. Please refer to it.': (
        "The silver table needs the table feature one, two, which Delta Lake 4.4.0 does not have."
    ),
    "[DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH] Unable to operate on this table because the following table "
    "features are enabled in metadata but not listed in protocol: one, two.": (
        "The silver table uses one, two, which its protocol does not list"
    ),
    "[DELTA_ICEBERG_COMPAT_VIOLATION.UNSUPPORTED_DATA_TYPE] The validation of IcebergCompatV2 has failed.": (
        "The silver table has delta.enableIcebergCompatV2, which does not allow this write."
    ),
}


@pytest.mark.parametrize("text", RULES)
def test_each_rule_has_a_sentence_without_values(text: str) -> None:
    described = str(describe_conflict(PySparkException(f"org.apache.spark.SparkException: {text}")))
    assert described.startswith(RULES[text])
    assert "then run again" in described
    assert "300" not in described
    assert "--debug" not in described


def test_what_delta_refuses_is_a_conflict(spark: SparkSession, tmp_path: Path) -> None:
    table = Lake(str(tmp_path), spark).table("t")
    table.ensure("id INT")
    table.append(spark.range(2).selectExpr("CAST(id AS INT) AS id"))
    jvm: Any = spark._jvm
    transaction = delta_log(spark, table.path).startTransaction()
    files = transaction.filterFiles()
    spark.sql(f"DELETE FROM {table.identifier}").collect()
    operation = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
    removes = jvm.scala.jdk.javaapi.CollectionConverters.asJava(files)
    actions = jvm.java.util.ArrayList()
    for file in removes:
        actions.add(file.remove())
    with pytest.raises(ConcurrentDeleteReadException) as refused:
        transaction.commit(
            jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq(), getattr(operation, "MODULE$")
        )
    assert is_conflict(refused.value)
