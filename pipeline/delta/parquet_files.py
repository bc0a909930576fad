"""Open data files for reading. Their pages have checksums; one that is damaged is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.errors import DataFileError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def open_data_file(path: str, **options: Any) -> pq.ParquetFile:
    """Return an open file, whose pages are verified; raise OSError, or DataFileError if it is damaged.

    What is read of it is to be read in `named_if_damaged`.
    """
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path, page_checksum_verification=True, **options)
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, ValueError) as error:
        raise damaged_file(path) from error


@contextmanager
def named_if_damaged(path: str) -> Iterator[None]:
    """Raise DataFileError for a file whose pages cannot be read or have other checksums."""
    try:
        yield
    except OSError as error:
        raise damaged_file(path) from error


def damaged_file(path: str) -> DataFileError:
    """Return the error for a file that is not as it was written."""
    return DataFileError(f"The file {path} is damaged. Restore it from a backup, and check the disk.", path)
