"""Describe a write that a rule of another writer refuses, such as a constraint or a table feature.

Delta's messages have values of rows after what is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.errors import LakeError

_AGAIN = "then run again"
_REBUILD = "or remove the table's folder to rebuild it from bronze"
_NOT_NULL = (
    "Rows of the source have NULL, or no value, in column {} of the silver table, which another writer made "
    f"NOT NULL. Run ALTER TABLE … ALTER COLUMN … DROP NOT NULL, {_AGAIN}."
)
# what Delta says → the sentence, in which \1 and \2 are groups of the pattern
_RULES = (
    (
        r"\[DELTA_VIOLATE_CONSTRAINT\w*\] CHECK constraint Generated Column \(*`?(.+?)`? <=> ",
        r"Column \1 of the silver table is generated from other columns, and rows of the source have other "
        rf"values. Drop the column, {_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_VIOLATE_CONSTRAINT\w*\] CHECK constraint EXPRESSION\(",
        "Rows of the source violate an invariant (delta.invariants) that another writer gave a column of the "
        f"silver table. Remove it from the column, {_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_VIOLATE_CONSTRAINT\w*\] CHECK constraint (\S+)",
        r"Rows of the source violate the constraint \1 that another writer gave the silver table. Drop the "
        f"constraint, {_AGAIN}.",
    ),
    (
        r"\[DELTA_EXCEED_CHAR_VARCHAR_LIMIT\][\s\S]*Failed check: \(\((.+?) IS NULL\)",
        r"The source has texts that are too long for column \1 of the silver table, which another writer "
        rf"made CHAR or VARCHAR. Drop the column, {_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_CANNOT_MODIFY_APPEND_ONLY\]",
        "The silver table has the property delta.appendOnly, and the source has updated or deleted rows. "
        f"Unset the property, {_AGAIN}.",
    ),
    (
        r"\[DELTA_NOT_NULL_CONSTRAINT_VIOLATED\] NOT NULL constraint violated for column: (.+?)\.?\s*$",
        _NOT_NULL.format(r"\1"),
    ),
    (
        r"\[DELTA_IDENTITY_COLUMNS_\w+\] .*?IDENTITY column (.+?) is not supported",
        r"Column \1 of the silver table is an IDENTITY column, which apply cannot write. Drop the column, "
        f"{_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_(?:CONSTRAINT|GENERATED_COLUMNS)_(?:DEPENDENT_COLUMN_CHANGE|DATA_TYPE_MISMATCH)\]"
        r".*?[Cc]olumn (.+?) (?:because|has data type)",
        r"The source changed column \1, and a constraint or generated column that another writer gave the "
        f"silver table refers to it. Drop that, {_AGAIN}.",
    ),
    (
        r"\[DELTA_UNSUPPORTED_DROP_CLUSTERING_COLUMN\] Dropping clustering columns \((.+?)\)",
        r"The source dropped column \1, by which another writer clusters the silver table. Run ALTER TABLE … "
        f"CLUSTER BY NONE, {_AGAIN}.",
    ),
    (
        r"\[DELTA_UNSUPPORTED_FEATURES_FOR_\w+\].*? unsupported by Delta Lake \"([^\"]+)\": ([\w\-, ]+)",
        r"The silver table needs the table feature \2, which Delta Lake \1 does not have. Run ALTER TABLE … "
        f"DROP FEATURE, {_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH\].*? not listed in protocol: ([\w\-, ]+)",
        r"The silver table uses \1, which its protocol does not list: another writer left it incomplete. "
        rf"RESTORE the table to the version before, {_AGAIN}; {_REBUILD}.",
    ),
    (
        r"\[DELTA_ICEBERG_COMPAT_VIOLATION\b.*?IcebergCompatV(\d)",
        r"The silver table has delta.enableIcebergCompatV\1, which does not allow this write. Set the "
        f"property to false, {_AGAIN}.",
    ),
    (
        r"\[DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION\]",
        "The silver table has delta.enableChangeDataFeed, which does not allow this write after columns were "
        f"renamed or dropped. Set the property to false, {_AGAIN}.",
    ),
    (
        r"\[DELTA_UNIVERSAL_FORMAT_VIOLATION\]",
        "The silver table has delta.universalFormat.enabledFormats, which does not allow this write. Unset "
        f"the property, {_AGAIN}.",
    ),
)


def describe_foreign_rule(error: BaseException) -> str | None:
    """Return the text for a write that a rule of another writer refuses, None for any other error."""
    text = str(error)
    if "[DELTA_" not in text:
        return None
    found = ((re.search(pattern, text, re.MULTILINE), sentence) for pattern, sentence in _RULES)
    return next((match.expand(sentence) for match, sentence in found if match), None)


def not_null_error(columns: Iterable[str]) -> LakeError:
    """Return what to raise for NULL in columns that another writer made NOT NULL."""
    return LakeError(_NOT_NULL.format(", ".join(columns)))
