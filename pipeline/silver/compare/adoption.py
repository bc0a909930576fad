"""Adopt a Delta table that another program wrote: its rows that are equal to the source need no copy.

The Delta table is compared with the source under a snapshot, in the texts that PostgreSQL sends in the
stream. What has the same text on both sides is written to bronze as rows of a table copy, as if they had been
read from the source; only the other rows are read there, found by the hashes of their keys. So bronze and
silver are those of a complete copy, and no type needs to be right in the Delta table. It is only read, at the
version that the request names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.bronze.copy_states import Adoption, adopts_no_protected
from pipeline.bronze.schema import CELLS
from pipeline.config.config import Config
from pipeline.delta.spark.frames import local_frame
from pipeline.delta.sql import quoted
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.postgres.catalog import CatalogRelation, read_relation
from pipeline.postgres.connection import Connection
from pipeline.postgres.key_conditions import KeyCondition
from pipeline.postgres.publication import PublishedTable
from pipeline.postgres.snapshot.comparable_forms import TEXT
from pipeline.postgres.snapshot.export import SnapshotKeeper, SourceSnapshot
from pipeline.postgres.snapshot.hashed_rows import HashedColumns, HashedTable, SourceRows, key_hash_condition
from pipeline.protocol.messages import Relation
from pipeline.silver.compare.clone import CloneFolder
from pipeline.silver.compare.comparable_columns import source_columns
from pipeline.silver.compare.compared_rows import FrameRows
from pipeline.silver.compare.differing_rows import Differences, find_differences
from pipeline.silver.compare.row_hashes import SilverColumn, SilverHashes
from pipeline.silver.types.stream_text import stream_text
from pipeline.table_copy.gap_verdicts import AdoptedRows, all_equal
from pipeline.table_name import TableName
from pipeline.units import format_count

_PART_ROWS, _PART_BYTES = 262_144, 64 << 20  # of a part, which is read into memory; bytes of texts
_WORK = TableName("adopted", "rows")
# that are divided to find the rows that differ; a server before 14 searches each one for every row
_MAX_RANGES, _MAX_RANGES_OF_OLD = 16_384, 1024


@dataclass(frozen=True, slots=True)
class AdoptionComparison:
    """What differs between a Delta table and the source, and both sides' rows."""

    found: Differences
    shape: HashedColumns
    rows: SilverHashes
    is_utf8: bool

    @property
    def copied(self) -> int:
        """The number of rows of the source that the Delta table lacks, or has with other values."""
        return self.found.count("missing") + self.found.count("changed")

    @property
    def sentence(self) -> str:
        """What was found."""
        found = self.found
        if found.is_equal:
            return all_equal(found.source_rows)
        if not found.is_whole:
            return "Too many of its rows differ: all are copied."
        left_out = found.count("surplus")
        more = f"; {format_count(left_out, 'row')} that the source does not have left out" if left_out else ""
        return f"Rows that differ and are copied: {self.copied:,} of {found.source_rows:,}{more}."


@contextmanager
def compare_adoption(
    config: Config,
    lake: Lake,
    connection: Connection,
    snapshot: SourceSnapshot,
    name: TableName,
    named: Adoption,
) -> Iterator[AdoptionComparison]:
    """Compare a Delta table with the source under a snapshot, which `connection` keeps.

    Raises LakeError if its columns are not those of the source's table.
    """
    source, rule = config.source, config.rule_for(name)
    if rule is not None and rule.columns:
        raise LakeError(adopts_no_protected(name))
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        raise LakeError(
            "The database has no encoding of its texts (SQL_ASCII), so they cannot be compared. Let the table"
            " be copied."
        )
    frame = lake.table_at(named.path).frame(named.version)
    fields = _fields(frame)
    most = _MAX_RANGES if connection.info.server_version >= 140000 else _MAX_RANGES_OF_OLD
    with HashedTable(source.snapshot_conninfo, snapshot, source.publication, name) as table:
        relation = table.table.relation
        texts = plan_texts(name, relation, table.read_catalog(), fields, named.ignored)
        key = [i for i, c in enumerate(relation.columns) if c.is_key and relation.replica_identity != "f"]
        shape = HashedColumns(tuple((column.name, TEXT) for column in relation.columns), tuple(key))
        rows = SilverHashes(
            FrameRows(frame.select(*(F.expr(text).alias(f"t{i}") for i, text in enumerate(texts)))),
            [SilverColumn(f"t{i}", "STRING") for i in range(len(texts))],
            key,
        )
        found = find_differences(SourceRows(table, shape), rows, max_ranges=most)
        yield AdoptionComparison(found, shape, rows, table.is_utf8)


def adopt_rows(
    config: Config, lake: Lake, keeper: SnapshotKeeper, name: TableName, named: Adoption
) -> tuple[str, AdoptedRows | None]:
    """Return what a comparison found, and the rows that are equal, None if all are to be copied."""
    with compare_adoption(config, lake, keeper.connection, keeper.snapshot, name, named) as compared:
        found = compared.found
        if not found.is_whole:
            return compared.sentence, None
        hashes = sorted({row.key_hash for row in found.rows})
        folder = CloneFolder(lake)
        try:
            path = folder.table(_WORK).path
            keys = local_frame(lake.spark, [{"k": each} for each in hashes], "k STRING")
            equal = compared.rows.texts_without(keys)
            max_rows = _part_rows(found.silver_rows, compared.rows.text_bytes)
            equal.write.option("maxRecordsPerFile", max_rows).parquet(path)
            written = lake.spark.read.schema("new ARRAY<STRING>").parquet(path)
            files = tuple(sorted(map(unquote, written.inputFiles())))  # they are URIs
        except BaseException:
            folder.close()
            raise
        rest = key_hash_condition(compared.shape, hashes, is_utf8=compared.is_utf8) if hashes else None
        rows = _EqualRows(named.path, named.version, len(files), found.source_rows, rest, lake, files, folder)
        return compared.sentence, rows


def _part_rows(rows: int, text_bytes: int) -> int:
    """Return how many rows a part may have, given the number and the size in bytes of all rows."""
    return max(1, min(_PART_ROWS, _PART_BYTES * rows // max(1, text_bytes)))


@dataclass(slots=True)
class _EqualRows(AdoptedRows):
    """The equal rows in files of their texts, under the folder of the run."""

    path: str
    version: int
    part_count: int
    source_rows: int
    rest: KeyCondition | None
    lake: Lake
    files: Sequence[str]
    folder: CloneFolder

    def read(self, part: int) -> pa.Array:
        if part >= len(self.files):
            return pa.array([], CELLS)
        frame: DataFrame = self.lake.spark.read.schema("new ARRAY<STRING>").parquet(self.files[part])
        return frame.toArrow().column("new").combine_chunks().cast(CELLS)

    def close(self) -> None:
        self.folder.close()


def check_columns(connection: Connection, lake: Lake, published: PublishedTable, named: Adoption) -> None:
    """Raise LakeError if the columns of a Delta table are not those of a published table as it is now."""
    catalog = read_relation(connection, published.relation)
    if catalog is not None:  # else it is being altered, and the comparison reads it again
        fields = _fields(lake.table_at(named.path).frame(named.version))
        plan_texts(published.name, published.relation, catalog, fields, named.ignored)


def _fields(frame: DataFrame) -> dict[str, str]:
    """Return the type of each column."""
    return {field.name: field.dataType.simpleString().upper() for field in frame.schema.fields}


def plan_texts(
    name: TableName,
    relation: Relation,
    catalog: CatalogRelation,
    fields: Mapping[str, str],
    ignored: Sequence[str],
) -> list[str]:
    """Return Spark SQL for the text of each published column, from columns of a Delta table with their types.

    Names may differ in case. Raises LakeError, with all reasons, if the columns do not match.
    """
    texts: list[str] = []
    faults: list[str] = []
    used = {_find(each, fields) or each for each in ignored}
    faults += [f"it has no column {each} to ignore" for each in sorted(used - fields.keys())]
    for column in source_columns(relation, catalog):
        field = _find(column.name, fields)
        if field is None or field in used:
            faults.append(f"it lacks the column {column.name}")
            continue
        used.add(field)
        text = stream_text(column, fields[field], quoted(field))
        if text is None:
            kind = next(c for c in catalog.columns if c.attribute_number == column.attribute_number)
            faults.append(f"no value of {kind.type_name} can be read from its column {field} {fields[field]}")
        else:
            texts.append(text)
    if extra := sorted(fields.keys() - used):
        faults.append(f"{name} lacks its columns {', '.join(extra)} (--ignore-column leaves them out)")
    if faults:
        raise LakeError(
            f"The Delta table cannot be adopted for {name}: {'; '.join(faults)}. Change its columns, or let "
            "the table be copied."
        )
    return texts


def _find(name: str, fields: Mapping[str, str]) -> str | None:
    """Return the column of a name, or the only one whose name differs in case."""
    if name in fields:
        return name
    similar = [field for field in fields if field.casefold() == name.casefold()]
    return similar[0] if len(similar) == 1 else None


def read_version(lake: Lake, path: str) -> int:
    """Return the newest version of the Delta table at a path; raise LakeError if there is none."""
    version = lake.table_at(path).version()
    if version < 0:
        raise LakeError(
            f"There is no Delta table at {path}. Name the folder that has _delta_log; Parquet files become a "
            "Delta table by CONVERT TO DELTA."
        )
    return version
