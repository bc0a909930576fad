"""The columns by which files of silver tables are sorted: those of the configuration, else the key's."""

from __future__ import annotations

from functools import cached_property

from pipeline.bronze.log import Bronze
from pipeline.bronze.source_relations import versions_by_oid
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.metadata.registry import Records
from pipeline.silver.compare.comparable_columns import shown_relation
from pipeline.silver.write.clustering import SortOrder


class SortOrders:
    """The orders of all tables, read when the first one is needed."""

    def __init__(self, lake: Lake, config: Config) -> None:
        self._lake = lake
        self._config = config

    def of(self, name: str) -> SortOrder:
        """Return the order of a silver table, without columns if its rows have no key."""
        return self._orders.get(name, SortOrder())

    @cached_property
    def _orders(self) -> dict[str, SortOrder]:
        bronze = Bronze(self._lake, self._config.pipeline)
        relations = bronze.source_relations().values() if bronze.relations.exists() else ()
        versions = versions_by_oid(relations)
        orders = {}
        for name, registered in Records(self._lake).tables.read().items():
            shown = shown_relation(registered, versions.get(registered.relation_id, ()))
            silver = {column.name: column.silver_name for column in registered.columns}
            rule = self._config.rule_for(name)
            if rule is not None and rule.cluster_by:
                # A column that silver does not have stays, and is reported.
                columns = tuple(silver.get(column, column) for column in rule.cluster_by)
                orders[str(name)] = SortOrder(columns, is_configured=True)
            else:
                key = shown.key if shown else ()
                orders[str(name)] = SortOrder(tuple(silver[column] for column in key if column in silver))
        return orders
