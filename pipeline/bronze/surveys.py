"""Survey bronze: what each table has between two offsets, by relation version.

The SQL is the same for DuckDB and Spark: `{changes}` is replaced by the changes to survey, `{key}` by their
sequence key. Apply plans by these surveys, and so do `pgdelta plan` and `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.bronze.table_input import SequenceKey, Survey, TableSurvey
from pipeline.delta.sql import from_microseconds
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

_FACTOR = 2**63  # of the commit LSN in a sequence key that is one number
SURVEY_COLUMNS = (
    "schema_name",
    "table_name",
    "relation_version",
    "commit_lsn",
    "end_lsn",
    "ordinal",
    "op",
    "old_kind",
    "unsent",
    "commit_time",
)
RUN_COLUMNS = ("schema_name", "table_name", "relation_version", "commit_lsn", "end_lsn", "ordinal", "op")


def duckdb_key(commit_lsn: str = "commit_lsn") -> str:
    """Return the sequence key in DuckDB: one number, much faster than a struct."""
    return f"({commit_lsn})::HUGEINT * {_FACTOR}::HUGEINT + ordinal"


def spark_key(commit_lsn: str = "commit_lsn") -> str:
    """Return the sequence key in Spark."""
    return f"struct({commit_lsn} AS commit_lsn, ordinal)"


def survey_sql(condition: str = "true") -> str:
    """Return the query for surveys of the changes that satisfy a condition."""
    return f"""
        SELECT schema_name, table_name, relation_version,
            min(sequence_key), max(sequence_key), max(sequence_key) FILTER (WHERE op = 'T'),
            count_if(op = 'I'), count_if(op = 'U'), count_if(op = 'D'), count_if(op = 'T'),
            -- a partition with REPLICA IDENTITY FULL sends the key in the complete old row
            count_if(op = 'U' AND old_kind IS NOT NULL),
            count_if(op = 'U' AND coalesce(old_kind, '') <> 'O'),
            count_if(op = 'I' AND unsent IS NOT NULL),
            array_distinct(flatten(collect_set(unsent))),
            max(unix_micros(commit_time))
        FROM (SELECT *, {{key}} AS sequence_key FROM {{changes}} WHERE {condition})
        GROUP BY schema_name, table_name, relation_version
        ORDER BY min(sequence_key)
    """


def is_after(default_offset: LSN, offsets: Mapping[TableName, LSN]) -> str:
    """Return SQL that is true for changes after the offset of their table; most have the default one."""
    tables: dict[LSN, list[TableName]] = {}
    for name, offset in sorted(offsets.items()):
        tables.setdefault(offset, []).append(name)
    special = " ".join(f"WHEN {_is_one_of(names)} THEN {int(offset)}" for offset, names in tables.items())
    return f"end_lsn > CASE {special} ELSE {int(default_offset)} END" if special else "true"


def runs_sql(condition: str, signatures: Mapping[int, int]) -> str:
    """Return the query for (versions, first, last) of each run of changes with one signature, in order.

    `signatures` are those of the relation versions, whose changes interleave.
    """
    number = " ".join(f"WHEN {version} THEN {number}" for version, number in signatures.items())
    return f"""
        WITH numbered AS (
            SELECT {{key}} AS sequence_key, relation_version, CASE relation_version {number} END AS signature
            FROM {{changes}} WHERE {condition}
        ), begun AS (
            SELECT *, coalesce(signature <> lag(signature) OVER (ORDER BY sequence_key), true) AS begins
            FROM numbered
        ), runs AS (
            SELECT *, sum(CAST(begins AS INT)) OVER (ORDER BY sequence_key) AS run FROM begun
        )
        SELECT sort_array(collect_set(relation_version)), min(sequence_key), max(sequence_key)
        FROM runs GROUP BY run ORDER BY run
    """


def is_table(name: TableName) -> str:
    """Return SQL that is true for changes that were recorded under a name."""
    return f"(schema_name = {text_literal(name.schema)} AND table_name = {text_literal(name.table)})"


def number_of_interval(bounds: Sequence[LSN]) -> str:
    """Return SQL for the number of the (bound, next] that `end_lsn` lies in, -1 outside of all.

    The comparisons are a balanced tree: their number for a row is logarithmic.
    """

    def search(first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        low, high = search(first, middle), search(middle + 1, last)
        return f"IF(end_lsn <= {int(bounds[middle + 1])}, {low}, {high})"

    inside = search(0, len(bounds) - 2)
    return f"IF(end_lsn > {int(bounds[0])} AND end_lsn <= {int(bounds[-1])}, {inside}, -1)"


def text_literal(text: str) -> str:
    """Return a text as a string literal of both engines, also in a template with placeholders.

    Quotes and backslashes are escaped in different ways, and Spark replaces `${…}`.
    """
    special = set("'\\{}$")
    if not special & set(text):
        return f"'{text}'"
    parts = (f"chr({ord(c)})" if c in special else f"'{c}'" for c in text)
    return f"concat({', '.join(parts)})"


def sequence_key(found: Any) -> SequenceKey:
    """Return a sequence key as it comes from DuckDB or from Spark."""
    if isinstance(found, int):
        return divmod(found, _FACTOR)
    commit_lsn, ordinal = found
    return commit_lsn, ordinal


def surveys_of(rows: Iterable[Sequence[Any]]) -> dict[TableName, list[TableSurvey]]:
    """Return the surveys that a query found."""
    tables: dict[TableName, list[TableSurvey]] = {}
    for schema, table, version, first, last, truncate, *counts, unsent, micros in rows:
        inserts, updates, deletes, truncates, key_tuples, without_old_row, partial_inserts = counts
        survey = Survey(
            version=version,
            first=sequence_key(first),
            last=sequence_key(last),
            last_truncate=None if truncate is None else sequence_key(truncate),
            inserts=inserts,
            updates=updates,
            deletes=deletes,
            key_tuples=key_tuples,
            without_old_row=without_old_row,
            partial_inserts=partial_inserts,
            unchanged_toast=frozenset(unsent or ()),
        )
        by_op = {"I": inserts, "U": updates, "D": deletes, "T": truncates}
        found = TableSurvey(survey, by_op, from_microseconds(micros))
        tables.setdefault(TableName(schema, table), []).append(found)
    return tables


def runs_of(rows: Iterable[Sequence[Any]]) -> list[tuple[tuple[int, ...], SequenceKey, SequenceKey]]:
    """Return the runs that a query found."""
    return [(tuple(found), sequence_key(first), sequence_key(last)) for found, first, last in rows]


def _is_one_of(names: Sequence[TableName]) -> str:
    if len(names) == 1:
        return is_table(names[0])
    pairs = ", ".join(f"({text_literal(name.schema)}, {text_literal(name.table)})" for name in names)
    return f"(schema_name, table_name) IN ({pairs})"
