"""Relation versions as ingest records them: a Relation message and the catalog's look-up, under one id.

The id is a hash of the content: the same shape has the same id in any session, by any route and on any host,
and a version that is recorded without any change that names it is harmless.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

import pyarrow as pa

from pipeline.bronze.schema import RELATIONS, storable
from pipeline.postgres.catalog import CatalogRelation
from pipeline.protocol.binary.converters import Types
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Relation


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """One relation from an LSN of the stream on; `catalog` is None if the catalog did not agree with it.

    `types` convert its values in binary format; they are no part of the version.
    """

    id: int
    lsn: LSN
    relation: Relation
    catalog: CatalogRelation | None
    types: Types | None = field(default=None, compare=False, repr=False)

    @property
    def schema_name(self) -> str:
        """Return the name of the schema; the stream has none for pg_catalog."""
        return storable(self.relation.namespace) or "pg_catalog"

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names of the key's columns, and the oids of their types beneath domains."""
        relation = self.relation
        if relation.replica_identity == "f":
            return (), ()
        catalog = self.catalog.columns if self.catalog else ()
        found = [
            (column.name, catalog[i].base_oid if catalog else column.type_oid)
            for i, column in enumerate(relation.columns)
            if column.is_key
        ]
        return tuple(name for name, _ in found), tuple(oid for _, oid in found)

    @property
    def table_name(self) -> str:
        """Return the name of the table."""
        return storable(self.relation.name)


def relation_version(
    relation: Relation, catalog: CatalogRelation | None, lsn: LSN, types: Types | None = None
) -> RelationVersion:
    """Return the relation under its version id: 63 bits of SHA-256 over its shape and the catalog's."""
    columns = [astuple(column) for column in catalog.columns] if catalog else None
    key = catalog.primary_key if catalog else None
    shape = (relation.oid, relation.namespace, relation.name, relation.replica_identity)
    described = tuple(astuple(column) for column in relation.columns)
    digest = hashlib.sha256(repr((shape, described, columns, key)).encode("utf-8", "surrogatepass")).digest()
    return RelationVersion(int.from_bytes(digest[:8], "big") >> 1, lsn, relation, catalog, types)


def relations_table(versions: Sequence[RelationVersion]) -> pa.Table:
    """Return the rows of `bronze/relations` for these versions."""
    return pa.Table.from_pylist([_row(version) for version in versions], RELATIONS)


def _row(version: RelationVersion) -> dict[str, object]:
    relation, catalog = version.relation, version.catalog
    columns = []
    for position, column in enumerate(relation.columns):
        found = catalog.columns[position] if catalog else None
        columns.append(
            {
                "name": storable(column.name),
                "type_oid": column.type_oid,
                "type_modifier": column.type_modifier,
                "is_key": column.is_key,
                "attribute_number": found and found.attribute_number,
                "type_schema": found and storable(found.type_schema),
                "type_name": found and storable(found.type_name),
                "type_kind": found and found.type_kind,
                "base_oid": found and found.base_oid,
                "base_modifier": found and found.base_modifier,
                "element_oid": found and found.element_oid,
                "element_kind": found and found.element_kind,
                "element_base_oid": found and found.element_base_oid,
                "output": found and found.output,
                "missing_value": found and found.missing_value and storable(found.missing_value),
                "not_null": found and found.not_null,
                "has_default": found and found.has_default,
            }
        )
    return {
        "relation_version": version.id,
        "lsn": version.lsn,
        "relation_id": relation.oid,
        "schema_name": version.schema_name,
        "table_name": version.table_name,
        "replica_identity": relation.replica_identity,
        "columns": columns,
        "primary_key": [storable(name) for name in catalog.primary_key] if catalog else None,
        "looked_up_at": catalog.read_at if catalog else None,
    }
