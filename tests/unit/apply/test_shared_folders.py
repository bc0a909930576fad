"""A silver table of many sources has a folder of its own: no other table is above or below it."""

import pytest

from pipeline.apply.table_renames import refuse_nested_folder
from pipeline.config.config import Config, Source, Storage
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.errors import LakeError
from pipeline.silver.write.shared_tables import silver_path
from pipeline.table_name import TableName

SHARED = TableRule("tenant_*.*", target="{table}")
TENANT = TableName("tenant_a", "orders")


def refuse(rule: TableRule, *names: TableName) -> None:
    config = Config("shop", Source(conninfo=""), Storage("/lake"), tables=(SHARED, rule))
    paths = {name: silver_path(Lake("/lake"), config, name) for name in names}
    for name in names:
        refuse_nested_folder(config, name, paths, paths.__getitem__)


def test_tables_of_sources_share_their_folder() -> None:
    refuse(TableRule("public.*"), TENANT, TableName("tenant_b", "orders"), TableName("public", "orders"))


def test_a_schema_with_the_name_of_a_shared_table_is_refused() -> None:
    with pytest.raises(LakeError, match=r"Table tenant_a\.orders would have the folder"):
        refuse(TableRule("orders.*"), TENANT, TableName("orders", "lines"))


def test_a_target_with_the_name_of_a_shared_table_is_refused() -> None:
    with pytest.raises(LakeError, match="Give one of them another target"):
        refuse(TableRule("public.orders", target="orders"), TENANT, TableName("public", "orders"))
