"""The SQL of schema operations is planned for the table as it is, and run as planned."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from pipeline.config.tables import TableRule
from pipeline.delta.table import Feature, LakeTable
from pipeline.delta.txn import TxnId
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.schema_operations import (
    AddColumn,
    CreateTable,
    DropColumn,
    RenameColumn,
    SchemaOperation,
    WidenColumn,
)
from pipeline.silver.types.text_parsers import STRING
from pipeline.silver.types.types import stored
from pipeline.silver.write.range_plan import PlannedOperation
from pipeline.silver.write.schema_writer import SchemaWriter
from pipeline.table_name import TableName

INT, BIGINT, LOCAL = stored("INT"), stored("BIGINT"), stored("TIMESTAMP_NTZ")
TXN = TxnId("shop")


class Table:
    """A silver table without Spark: its columns, features and offsets."""

    def __init__(self, *names: str, features: Iterable[Feature] = (), exists: bool = True) -> None:
        self.identifier = "delta.`/t`"
        self.names = names
        self.features = {*features}
        self.recorded: dict[str, LSN] = {}
        self._exists = exists

    def exists(self) -> bool:
        return self._exists

    def schema(self) -> Any:
        assert self._exists
        return SimpleNamespace(names=[*self.names])

    def missing_features(self, features: Iterable[Feature]) -> list[Feature]:
        return [feature for feature in features if feature not in self.features]

    def offset(self, txn: TxnId) -> LSN | None:
        assert self._exists
        return self.recorded.get(str(txn))

    enable_statement = LakeTable.enable_statement


def plan(table: Table, *operations: SchemaOperation) -> list[PlannedOperation]:
    writer = SchemaWriter(
        cast(LakeTable, table),
        cast(Any, None),
        TableName("s", "t"),
        TableRule("*.*"),
        TXN,
        metadata_columns=True,
    )
    found = writer._with_statements([(LSN(1), operation) for operation in operations], 42)
    assert [each.operation for each in found] == [*operations]
    return found


def planned(table: Table, *operations: SchemaOperation) -> list[tuple[str, ...]]:
    return [each.sql for each in plan(table, *operations)]


def properties(feature: Feature) -> str:
    key, value = feature.value
    return f"ALTER TABLE delta.`/t` SET TBLPROPERTIES ('{key}' = '{value}')"


MAPPING = properties(Feature.COLUMN_MAPPING)


def test_a_feature_is_enabled_once_and_before_what_needs_it() -> None:
    assert planned(Table("a", "b"), RenameColumn("a", "x"), RenameColumn("b", "y")) == [
        (MAPPING, "ALTER TABLE delta.`/t` RENAME COLUMN `a` TO `x`"),
        ("ALTER TABLE delta.`/t` RENAME COLUMN `b` TO `y`",),
    ]
    assert planned(Table("a", features=[Feature.COLUMN_MAPPING]), DropColumn("a")) == [
        ("ALTER TABLE delta.`/t` DROP COLUMN `a`",)
    ]
    assert planned(Table("a"), WidenColumn("a", BIGINT, "INT"))[0][0] == properties(Feature.TYPE_WIDENING)


def test_a_new_table_has_its_features_from_its_definition() -> None:
    create, rename = planned(
        Table(exists=False),
        CreateTable((("a b", INT),)),
        RenameColumn("a b", "c d"),
    )
    assert [sql.split()[0] for sql in create] == ["CREATE"]
    assert "'delta.columnMapping.mode' = 'name'" in create[0]
    assert rename == ("ALTER TABLE delta.`/t` RENAME COLUMN `a b` TO `c d`",)


def test_a_default_is_set_in_existing_rows_once() -> None:
    table, add = Table("a"), AddColumn("n", INT, backfill="7", number=3)
    [found] = plan(table, add)
    assert [statement.split()[0] for statement in found.sql] == ["ALTER", "UPDATE"]
    assert found.backfill is not None
    table.recorded[str(found.backfill[0].txn)] = LSN(1)
    [sql] = planned(table, add)
    assert [statement.split()[0] for statement in sql] == ["ALTER"]


def test_a_column_that_an_earlier_run_added_is_not_added_again() -> None:
    add = AddColumn("n", LOCAL)
    assert planned(Table("a"), add)[0] == (
        properties(Feature.TIMESTAMP_NTZ),
        "ALTER TABLE delta.`/t` ADD COLUMNS (`n` TIMESTAMP_NTZ)",
    )
    assert planned(Table("a", "n"), add) == [()]
    assert planned(Table("a", "n"), AddColumn("n", INT, backfill="7", number=3))[0][0].startswith("UPDATE")


def test_names_follow_the_operations_before() -> None:
    renamed, added = planned(Table("n"), RenameColumn("n", "m"), AddColumn("n", STRING))
    assert len(renamed) == 2
    assert added == ("ALTER TABLE delta.`/t` ADD COLUMNS (`n` STRING)",)
    _, added = planned(Table("n"), DropColumn("n"), AddColumn("n", STRING))
    assert len(added) == 1
    _, repeated = planned(Table("n"), RenameColumn("n", "m"), AddColumn("m", STRING))
    assert repeated == ()
