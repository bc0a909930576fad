"""The key columns of silver tables, by which their files are sorted."""

from __future__ import annotations

from functools import cached_property

from pipeline.bronze.relations import SourceRelation, source_relation
from pipeline.delta.table import Lake
from pipeline.metadata.registry import Records


class KeyColumns:
    """The keys of all tables, read when the first one is needed."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def of(self, name: str) -> tuple[str, ...]:
        """Return the key columns of a silver table, none if its rows have no key."""
        return self._keys.get(name, ())

    @cached_property
    def _keys(self) -> dict[str, tuple[str, ...]]:
        relations = self._lake.table("bronze", "relations")
        rows = relations.rows().to_pylist() if relations.exists() else []
        newest: dict[int, SourceRelation] = {}
        for relation in sorted(map(source_relation, rows), key=lambda each: each.lsn):
            newest[relation.oid] = relation
        keys = {}
        for name, registered in Records(self._lake).tables.read().items():
            shown = newest.get(registered.relation_id)
            silver = {column.name: column.silver_name for column in registered.columns}
            keys[str(name)] = tuple(silver[key] for key in (shown.key if shown else ()) if key in silver)
        return keys
