"""Read `bronze/changes` on a file system of this machine without Spark, and ask DuckDB about its rows.

Only files, row groups and columns that can matter are read, a batch of rows at a time. `op` and `end_lsn` are
read first, of a whole row group: a copy's millions of rows cost no more than that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.bronze.schema import CHANGES
from pipeline.delta.parquet_files import named_if_damaged, open_data_file
from pipeline.delta.rows import read_rows
from pipeline.delta.store.mirror import fetched
from pipeline.delta.table_log import Snapshot, data_path
from pipeline.errors import DataFileError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    import duckdb
    from pyarrow.parquet import RowGroupMetaData

    from pipeline.bronze.files_by_table import FilesByTable

ROW_OPS = ("I", "U", "D", "T")
MAX_LSN = LSN(2**63 - 1)
_HEAD = ("op", "end_lsn")
_KEPT_STATISTICS = 16_384  # files
_BATCH_ROWS = 65_536  # that are read at a time
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",  # what is more is in temporary files
    "preserve_insertion_order": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_MACROS = (
    "collect_set(x) AS list(DISTINCT x) FILTER (x IS NOT NULL)",
    "sort_array(x) AS list_sort(x)",
    "unix_micros(x) AS epoch_us(x)",
)
# strings that repeat in most rows
_REPEATED = frozenset({"op", "schema_name", "table_name", "old_kind"})
_lock = threading.Lock()
_databases: list[duckdb.DuckDBPyConnection] = []  # one at most, for the process: to open one takes 50 ms


def _database() -> duckdb.DuckDBPyConnection:
    """Return a database in memory with the macros; each query has a cursor of its own."""
    import duckdb

    with _lock:
        if not _databases:
            database = duckdb.connect(config=_SETTINGS)
            for macro in _MACROS:
                database.execute(f"CREATE MACRO {macro}")
            _databases.append(database)
        return _databases[0]


@dataclass(frozen=True, slots=True)
class ChangesScan:
    """The rows of one version of `changes` that have some operations and end in (start_lsn, end_lsn].

    With `name` the files of other tables may be left out, but rows of others may be given; with the `index`
    of the snapshot they are not looked at. `offsets` does so for several tables, each after an LSN of its
    own. With `xids` the files without these transactions may be left out, and so may those whose commits are
    all after `max_commit_lsn`. With `paths` only these files are read, and none of those that are `skipped`.
    """

    path: str
    snapshot: Snapshot
    ops: tuple[str, ...] = ROW_OPS
    start_lsn: LSN = INVALID
    end_lsn: LSN = MAX_LSN
    name: TableName | None = None
    paths: tuple[str, ...] | None = None
    offsets: Mapping[TableName, LSN] | None = None
    xids: frozenset[int] | None = None
    max_commit_lsn: LSN = MAX_LSN
    skipped: Collection[str] = ()
    index: FilesByTable | None = None

    def files(self) -> list[str]:
        """Return the paths of the files that may have such rows, by their statistics."""
        paths: Iterable[str] | None = self.paths
        if paths is None:
            paths = (data_path(self.path, add["path"]) for add in self._adds() if self._may_have(add))
        return [path for path in paths if path not in self.skipped]

    def _adds(self) -> Collection[Mapping[str, Any]]:
        """Return the files to look at: of one table, or that have several and changes after `start_lsn`."""
        if self.index is None or self.name is None or self.index.has_vectors:
            return self.snapshot.files.values()
        return self.index.that_may_have(self.name, self.start_lsn)

    def counted_rows(self, lsns: Collection[LSN]) -> tuple[int, list[str]]:
        """Return how many rows copies of the table `name` have at these LSNs, and files that are not counted.

        Counted are the rows of files whose statistics prove that they have nothing else.
        """
        assert self.name is not None
        count, others = 0, []
        for add in self._adds():
            if not self._may_have(add):
                continue
            low, high = bounds_of(add)
            is_one = low.get("commit_lsn") in lsns and has_only_copied_rows(low, high)
            if is_one and has_only_table(add, self.name) and not add.get("deletionVector"):
                count += json.loads(add["stats"])["numRecords"]
            else:
                others.append(data_path(self.path, add["path"]))
        return count, others

    def files_of_snapshots(self, lsns: Collection[LSN]) -> list[str]:
        """Return a file with copied rows of each snapshot, or all that may have some if none is known to."""
        found: dict[int, str] = {}
        others: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = []
        for add in self.snapshot.files.values():
            low, high = bounds_of(add)
            path = data_path(self.path, add["path"])
            if low.get("commit_lsn") in lsns and has_only_copied_rows(low, high):
                found.setdefault(low["commit_lsn"], path)
            else:
                others.append((low, high, path))
        missing = [lsn for lsn in lsns if lsn not in found]
        paths = [p for low, high, p in others if any(_may_have_lsn(low, high, lsn) for lsn in missing)]
        return [*found.values(), *paths]

    def is_empty(self) -> bool:
        """Return whether there is no file to read."""
        return not self.files()

    def reader(
        self, columns: Sequence[str], failures: list[BaseException] | None = None
    ) -> pa.RecordBatchReader:
        """Return a reader of the rows, with these columns; why it failed is added to `failures`."""

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from self._batches(schema)
            except Exception as error:
                if failures is not None:
                    failures.append(error)
                raise

        schema = _schema(columns)
        return pa.RecordBatchReader.from_batches(schema, batches())

    def chunks(self, columns: Sequence[str], max_rows: int, max_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows, with these columns, in chunks that one batch makes larger than a limit, if any."""
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._batches(_schema(columns)):
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= max_rows or size >= max_bytes:
                yield pa.Table.from_batches(batches)
                batches, rows, size = [], 0, 0
        if batches:
            yield pa.Table.from_batches(batches)

    def query(self, sql: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the result of SQL about `changes`, the rows with these columns.

        The SQL may call some functions of Spark by Spark's names. Raises LakeError if a file is missing or
        damaged.
        """
        import duckdb

        failures: list[BaseException] = []
        with closing(_database().cursor()) as connection:
            connection.register("changes", self.reader(columns, failures))
            try:
                found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
            except duckdb.Error:
                if failures:  # DuckDB raises an error of its own
                    raise failures[0] from None
                raise
            return found

    def _may_have(self, add: Mapping[str, Any]) -> bool:
        if add.get("deletionVector"):
            return True
        low, high = bounds_of(add)
        newest = high.get("end_lsn", MAX_LSN)
        if low.get("end_lsn", 0) > self.end_lsn or newest <= self.start_lsn:
            return False
        if "R" not in self.ops and has_only_copied_rows(low, high):
            return False
        if low.get("commit_lsn", 0) > self.max_commit_lsn:
            return False
        if self.xids is not None and not _may_have_one(low, high, self.xids):
            return False
        if self.name is not None:
            return may_have_table(low, high, self.name)
        if self.offsets is None:
            return True
        if (only := only_table(low, high)) is not None:
            return bool(newest > self.offsets.get(only, MAX_LSN))
        names = (name for name, offset in self.offsets.items() if newest > offset)
        return any(may_have_table(low, high, name) for name in names)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self.paths is None and any(add.get("deletionVector") for add in self.snapshot.files.values()):
            yield from self._batches_by_rows(schema)
            return
        paths = self.files()
        downloads = fetched(paths)
        for path in paths:
            try:
                next(downloads)
            except FileNotFoundError:
                raise missing_file(path) from None
            yield from self._batches_of(path, schema)

    def _batches_of(self, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        repeated = [name for name in schema.names if name in _REPEATED]
        try:
            file = open_data_file(path, read_dictionary=repeated)
        except FileNotFoundError:
            raise missing_file(path) from None
        with file, named_if_damaged(path):
            present = set(file.schema_arrow.names)
            wanted = [name for name in schema.names if name in present]
            for number in range(file.num_row_groups):
                if not may_end_between(file.metadata.row_group(number), self.start_lsn, self.end_lsn):
                    continue
                mask = self._mask(file.read_row_group(number, columns=list(_HEAD)))
                if not mask.true_count:
                    continue
                start = 0
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[number], columns=wanted):
                    rows = batch.filter(mask.slice(start, batch.num_rows))
                    start += batch.num_rows
                    if not rows.num_rows:
                        continue
                    columns = [
                        rows.column(f.name).cast(f.type) if f.name in present else pa.nulls(len(rows), f.type)
                        for f in schema
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _mask(self, rows: pa.Table) -> pa.BooleanArray:
        import pyarrow.compute as pc

        ops = rows.column("op")
        found = pc.is_in(
            ops.cast(pa.string()) if pa.types.is_dictionary(ops.type) else ops,
            value_set=pa.array(self.ops, pa.string()),
        )
        if self.start_lsn > INVALID:
            found = pc.and_(found, pc.greater(rows.column("end_lsn"), int(self.start_lsn)))
        if self.end_lsn < MAX_LSN:
            found = pc.and_(found, pc.less_equal(rows.column("end_lsn"), int(self.end_lsn)))
        return pc.fill_null(found, False).combine_chunks()

    def _batches_by_rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table with deletion vectors."""
        rows = read_rows(self.path, self.snapshot, list(dict.fromkeys([*schema.names, *_HEAD])))
        rows = rows.filter(self._mask(rows))
        columns = [rows.column(f.name).cast(f.type) for f in schema]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches()


def may_end_between(group: RowGroupMetaData, start_lsn: LSN, end_lsn: LSN) -> bool:
    """Return whether a row group may have rows that end in (start_lsn, end_lsn], by its statistics."""
    least, greatest = bounds_in_group(group, "end_lsn")
    return least <= end_lsn and greatest > start_lsn


def bounds_in_group(group: RowGroupMetaData, name: str) -> tuple[LSN, LSN]:
    """Return the least and the greatest LSN that a column may have in a row group."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == name:
            found = column.statistics
            if found is not None and found.has_min_max:
                return LSN(found.min), LSN(found.max)
    return INVALID, MAX_LSN


def bounds_of(add: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the least and the greatest values in a file by column, as its `add` action has them."""
    return _bounds(add.get("stats") or "{}")


@lru_cache(maxsize=_KEPT_STATISTICS)
def _bounds(statistics: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    found = json.loads(statistics)
    return found.get("minValues") or {}, found.get("maxValues") or {}


def has_only_copied_rows(low: Mapping[str, Any], high: Mapping[str, Any]) -> bool:
    """Return whether statistics prove that a file has no change of a transaction.

    The end of a transaction is after its commit LSN; copied rows have one LSN.
    """
    lsn = low.get("commit_lsn")
    return lsn is not None and lsn == high.get("end_lsn")


def has_only_table(add: Mapping[str, Any], name: TableName) -> bool:
    """Return whether statistics prove that all rows of a file name this table."""
    low, high = bounds_of(add)
    nulls = json.loads(add["stats"]).get("nullCount") or {}  # ingest does not mix messages with copied rows
    names = (("schema_name", name.schema), ("table_name", name.table))
    return all(low.get(key) == high.get(key) == value and not nulls.get(key) for key, value in names)


def _may_have_lsn(low: Mapping[str, Any], high: Mapping[str, Any], lsn: LSN) -> bool:
    return bool(low.get("commit_lsn", lsn) <= lsn <= high.get("commit_lsn", lsn))


def _may_have_one(low: Mapping[str, Any], high: Mapping[str, Any], xids: Collection[int]) -> bool:
    if "xid" not in low or "xid" not in high:
        return True
    return any(low["xid"] <= xid <= high["xid"] for xid in xids)


def missing_file(path: str) -> DataFileError:
    """Return the error for a file that bronze's log names and that is not there."""
    return DataFileError(
        f"The file {path} of bronze is missing: no other program may change bronze's folders. Restore it "
        "from a backup.",
        path,
    )


def advised(error: DataFileError) -> DataFileError:
    """Return the error for a table that needs the file."""
    return DataFileError(f"{error} Or run pgdelta resync for the table.", error.path)


def may_have_table(low: Mapping[str, Any], high: Mapping[str, Any], name: TableName) -> bool:
    """Return whether a file with these statistics may have rows of a table."""
    for column, value in (("schema_name", name.schema), ("table_name", name.table)):
        # a shortened minimum is a prefix of the value, a shortened maximum is above it
        if low.get(column, "") > value or ((top := high.get(column)) is not None and top < value):
            return False
    return True


def only_table(low: Mapping[str, Any], high: Mapping[str, Any]) -> TableName | None:
    """Return the table that all rows with a name have, None if there may be several."""
    schema, table = low.get("schema_name"), low.get("table_name")
    if (
        schema is None
        or table is None
        or schema != high.get("schema_name")
        or table != high.get("table_name")
    ):
        return None  # the bounds of a long name are shortened and differ
    return TableName(schema, table)


def _schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of the rows that are read, with these columns."""
    fields = []
    for name in columns:
        kind = CHANGES.field(name).type
        fields.append(pa.field(name, pa.dictionary(pa.int32(), kind) if name in _REPEATED else kind))
    return pa.schema(fields)
