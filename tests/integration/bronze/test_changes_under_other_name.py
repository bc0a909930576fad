"""What came under another name counts where the table came under its own again, in one transaction too."""

from pathlib import Path

from pipeline.apply.table_renames import ChangesUnderOtherName, last_changes_under_other_name
from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

A, X = TableName("public", "a"), TableName("public", "x")
DDL = (
    "op STRING, relation_version BIGINT, schema_name STRING, table_name STRING, commit_lsn BIGINT, "
    "end_lsn BIGINT, ordinal BIGINT"
)


def test_only_what_lies_between_changes_under_its_own_name_is_missing(tmp_path: Path) -> None:
    bronze = Bronze(Lake(str(tmp_path)), "p")
    changes = bronze.changes
    changes.ensure(DDL)

    def find(
        *names: tuple[str, int], after: int = 0, end_lsn: int = 99, has_rows: bool = False
    ) -> tuple[int, str] | None:
        """Return what is found of table 1 where it came under these names, each with its transaction."""
        rows = [
            {
                "op": "U",
                "relation_version": 2 if name == "other" else 1,
                "schema_name": "public",
                "table_name": "x" if name == "other" else name,
                "commit_lsn": lsn,
                "end_lsn": lsn + 1,
                "ordinal": ordinal,
            }
            for ordinal, (name, lsn) in enumerate(names)
        ]
        changes.overwrite_rows(rows, DDL)
        found = last_changes_under_other_name(bronze, [1], A, LSN(after), LSN(end_lsn), has_rows=has_rows)
        return (int(found.lsn), found.name[1]) if found else None

    assert find(("a", 10), ("x", 20), ("x", 30), ("a", 40)) == (30, "x")
    assert find(("a", 10), ("x", 20), ("a", 30), ("y", 40), ("a", 50), ("x", 60)) == (40, "y")
    assert find(("a", 10), ("x", 10), ("a", 10)) == (10, "x"), "in one transaction"
    assert find(("a", 10), ("x", 20)) is None, "it has the other name still"
    assert find(("a", 10), ("other", 20), ("a", 30)) is None
    assert find(("a", 10), ("x", 20), ("a", 30), end_lsn=25) is None
    assert find(("a", 10), ("x", 20), ("a", 30), after=25) is None
    assert find(("x", 20), ("a", 30)) is None, "it came to the name it has"
    assert find(("x", 20), ("a", 30), has_rows=True) == (20, "x")
    assert last_changes_under_other_name(bronze, [1], X, LSN(0), LSN(99), has_rows=False) is None
    assert ChangesUnderOtherName(LSN(20), X) == last_changes_under_other_name(
        bronze, [1], A, LSN(0), LSN(99), has_rows=True
    )
