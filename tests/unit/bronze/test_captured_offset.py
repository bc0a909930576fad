"""The offset that bronze records, or the sentence for a lake that has none."""

import re
from pathlib import Path

import pytest

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from tests.support.native_lakes import NativeLake


def test_a_lake_without_changes_has_no_offset(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    bronze = Bronze(lake, "p")
    assert bronze.captured_offset() is None
    sentence = f"The lake {lake.root} has no changes yet. Run pgdelta ingest first."
    with pytest.raises(LakeError, match=f"^{re.escape(sentence)}$"):
        bronze.require_offset()
    assert not (tmp_path / "lake").exists()


def test_the_offset_is_that_of_the_newest_commit(tmp_path: Path) -> None:
    lake = NativeLake(tmp_path / "lake", 1)
    assert lake.bronze.require_offset() == lake.bronze.captured_offset()
    assert lake.bronze.require_offset().lsn == lake.offset
