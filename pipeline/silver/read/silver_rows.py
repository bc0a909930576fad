"""The rows of one version of a silver table, with an overlay, as an Arrow dataset: what needs no Spark.

DuckDB, Polars and Arrow read it as they read any dataset. Files without changes are scanned by Arrow, which
skips row groups by its filter. Of the others all rows are read but those at places that are gone, and the new
rows follow. A read needs the memory of a few row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pipeline.delta.partitions import has_plain_files
from pipeline.delta.rows import arrow_schema, file_rows, read_rows
from pipeline.delta.store.mirror import fetch_all
from pipeline.delta.table_log import Snapshot, data_path
from pipeline.errors import DataFileError, LakeError
from pipeline.silver.fold.row_changes import Numbers
from pipeline.silver.write.native_files import damaged_sentence
from pipeline.silver.write.overlay import Overlay

_BATCH_ROWS, _BATCH_BYTES = 32_768, 16 << 20
_FORMAT = ds.ParquetFileFormat(
    coerce_int96_timestamp_unit="us",
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True),
)


class SilverRows(ds.Dataset):  # type: ignore[misc]
    """A version of a silver table on this machine.

    The overlay may be a function, which is called when rows are first read. `failures` has what has gone
    wrong in a scan, because a program that reads it may raise an error of its own.
    """

    def __init__(
        self, path: str, snapshot: Snapshot, overlay: Overlay | Callable[[], Overlay] | None = None
    ) -> None:
        # no call of the constructor of Arrow's class, which has none
        self.path = path
        self.snapshot = snapshot
        self.failures: list[Exception] = []
        self._found = overlay
        fields = [pa.field(field.name, field.type) for field in arrow_schema(snapshot)]
        self._schema = pa.schema(fields)

    @property
    def schema(self) -> pa.Schema:
        """The columns, in the order of the table."""
        return self._schema

    @property
    def _overlay(self) -> Overlay:
        if self._found is None:
            self._found = Overlay.of(self.snapshot)
        elif not isinstance(self._found, Overlay):
            self._found = self._found()
        return self._found

    @property
    def has_changes(self) -> bool:
        """Whether rows differ from those of the version."""
        return not self._overlay.is_empty

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> ds.Scanner:
        """Return a scan of some columns, of the rows that satisfy a filter; it can be read once."""
        names = self._schema.names
        plain = names if columns is None or isinstance(columns, Mapping) else list(columns)
        batches = self._batches(plain, filter)
        schema = pa.schema([self._schema.field(name) for name in plain])
        if isinstance(columns, Mapping):
            return ds.Scanner.from_batches(batches, schema=schema, columns=dict(columns))
        return ds.Scanner.from_batches(batches, schema=schema)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return how many rows satisfy a filter."""
        overlay = self._overlay
        if filter is None and not _has_vectors(overlay.files):
            count = self.snapshot.with_files(overlay.files).row_count
            if count is not None:
                gone = sum(len(places) for places in overlay.gone.values())
                return count - gone + int(overlay.rows.num_rows)
        first = self._schema.names[:1]
        return sum(int(batch.num_rows) for batch in self._batches(first, filter))

    def _batches(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        with self._reading():
            for rows in self._tables(columns, filter):
                most = rows.num_rows * _BATCH_BYTES // max(rows.nbytes, 1)
                size = max(1, min(_BATCH_ROWS, most))
                yield from rows.to_batches(size) if columns else _without_columns(rows.num_rows)

    def _tables(self, columns: list[str], filter: pc.Expression | None) -> Iterator[pa.Table]:
        """Yield rows that satisfy the filter, with some columns."""
        overlay = self._overlay
        needed = self._schema.names if filter is not None else columns

        def chosen(rows: pa.Table) -> pa.Table:
            return (rows if filter is None else rows.filter(filter)).select(columns)

        snapshot = self.snapshot.with_files(overlay.files)
        if _has_vectors(overlay.files):
            yield chosen(read_rows(self.path, snapshot, needed))
            yield chosen(self._conformed(overlay.rows, needed))
            return
        whole = [key for key in overlay.files if key not in overlay.gone]
        if columns and has_plain_files(self.snapshot):
            paths = fetch_all(data_path(self.path, overlay.files[key]["path"]) for key in whole)
            if paths:
                scan = ds.dataset(paths, schema=self._schema, format=_FORMAT).scanner(
                    columns=columns,
                    filter=filter,
                    batch_size=_BATCH_ROWS,
                    batch_readahead=2,
                    fragment_readahead=1,
                )
                for batch in scan.to_batches():
                    yield pa.Table.from_batches([batch])
            whole = []
        for key in (*whole, *overlay.gone):
            begin = 0
            for rows in file_rows(self.path, snapshot, key, needed):
                count = rows.num_rows
                yield chosen(_without(rows, overlay.gone.get(key), begin))
                begin += count
        yield chosen(self._conformed(overlay.rows, needed))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep what goes wrong; raise LakeError for a file that is missing or damaged."""
        try:
            yield
        except FileNotFoundError as error:
            self.failures.append(
                LakeError(
                    f"A file of the table in {self.path} is missing: VACUUM removes what is older than "
                    "delta.deletedFileRetentionDuration. Read the table again."
                )
            )
            raise self.failures[-1] from error
        except Exception as error:
            if _is_of_damage(error):
                error = LakeError(damaged_sentence(f"A file of the table in {self.path}"))
            self.failures.append(error)
            raise error

    def _conformed(self, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
        return rows.select(columns).cast(pa.schema([self._schema.field(name) for name in columns]))

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise NotImplementedError("Read the rows first: to_table, to_batches or scanner.")

    # what Arrow's class computes in C++, of a dataset that it has not made
    get_fragments = replace_schema = join = join_asof = filter = sort_by = __reduce__ = _refuse

    def __repr__(self) -> str:
        return f"<rows of {self.path}, version {self.snapshot.version}>"


def _is_of_damage(error: Exception) -> bool:
    """Return whether a file cannot be read because it is not as it was written."""
    if isinstance(error, pa.ArrowInvalid):
        return "Parquet" in str(error)
    return isinstance(error, (OSError, DataFileError)) and not isinstance(error, PermissionError)


def _has_vectors(files: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(add.get("deletionVector") for add in files.values())


def _without(rows: pa.Table, gone: Numbers | None, begin: int) -> pa.Table:
    """Return the rows of a file from a place on, without those at places that are gone."""
    if gone is None:
        return rows
    first, last = np.searchsorted(gone, (begin, begin + rows.num_rows))
    if first == last:
        return rows
    kept = np.delete(np.arange(rows.num_rows), gone[first:last] - begin)
    return rows.take(pa.array(kept))


def _without_columns(count: int) -> list[pa.RecordBatch]:
    """Return rows without columns, whose number counts."""
    rows = pa.RecordBatch.from_arrays([pa.nulls(count)], ["all"])
    return [rows.select([])]
