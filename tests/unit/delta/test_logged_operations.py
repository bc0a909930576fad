"""Which commits of other writers change rows: their actions show it, whatever they are called."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from pipeline.delta.table import LakeTable


@pytest.mark.promise("foreign commits in manifests")
def test_what_delta_rs_does_to_columns_and_files_changes_no_row(tmp_path: Path) -> None:
    for first in (1, 2):
        write_deltalake(tmp_path, pa.table({"id": [first]}), mode="append")
    table = DeltaTable(tmp_path)
    table.alter.add_columns(Field("analyst", PrimitiveType("string")))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 20 days"})
    table.optimize.compact()
    table.delete("id = 1")
    operations = LakeTable(str(tmp_path)).operations_after(-1)
    assert [(each.operation, each.changes_rows) for each in operations] == [
        ("WRITE", True),
        ("WRITE", True),
        ("ADD COLUMN", False),
        ("SET TBLPROPERTIES", False),
        ("OPTIMIZE", False),
        ("DELETE", True),
    ]
