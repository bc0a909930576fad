"""The columns by which files of silver tables are sorted: those of the configuration, else the key's."""

from __future__ import annotations

from functools import cached_property

from pipeline.bronze.source_relations import SourceRelation, source_relation
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.metadata.registry import Records
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
        relations = self._lake.table("bronze", "relations")
        rows = relations.rows().to_pylist() if relations.exists() else []
        newest: dict[int, SourceRelation] = {}
        for relation in sorted(map(source_relation, rows), key=lambda each: each.lsn):
            newest[relation.oid] = relation
        orders = {}
        for name, registered in Records(self._lake).tables.read().items():
            shown = newest.get(registered.relation_id)
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
