"""Relation versions: what a Relation message said, with what the catalog added, under a deterministic id.

The id is a hash of the content, so that the same shape seen by another session, route or host has the same
id, and a version recorded without any change that names it is harmless.
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
    """One relation as of one point of the stream; `facts` is None where the catalog did not agree with it.

    `types` read its values where they come in binary format; that is no part of what a version is.
    """

    id: int
    lsn: LSN
    relation: Relation
    catalog: CatalogRelation | None
    types: Types | None = field(default=None, compare=False, repr=False)

    @property
    def schema_name(self) -> str:
        """Return the name of the schema; the stream leaves out that of the system's own."""
        return storable(self.relation.namespace) or "pg_catalog"

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the names of the key's columns, and the oids of their types beneath domains."""
        relation = self.relation
        if relation.replica_identity == "f":
            return (), ()
        facts = self.catalog.columns if self.catalog else ()
        found = [
            (column.name, facts[i].base_oid if facts else column.type_oid)
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
    """Give the relation its version id: 63 bits of SHA-256 over its shape and the catalog's facts."""
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
    relation, facts = version.relation, version.catalog
    columns = []
    for position, column in enumerate(relation.columns):
        fact = facts.columns[position] if facts else None
        columns.append(
            {
                "name": storable(column.name),
                "type_oid": column.type_oid,
                "type_modifier": column.type_modifier,
                "is_key": column.is_key,
                "attribute_number": fact and fact.attribute_number,
                "type_schema": fact and storable(fact.type_schema),
                "type_name": fact and storable(fact.type_name),
                "type_kind": fact and fact.type_kind,
                "base_oid": fact and fact.base_oid,
                "base_modifier": fact and fact.base_modifier,
                "element_oid": fact and fact.element_oid,
                "element_kind": fact and fact.element_kind,
                "element_base_oid": fact and fact.element_base_oid,
                "output": fact and fact.output,
                "missing_value": fact and fact.missing_value and storable(fact.missing_value),
                "not_null": fact and fact.not_null,
                "has_default": fact and fact.has_default,
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
        "primary_key": [storable(name) for name in facts.primary_key] if facts else None,
        "looked_up_at": facts.read_at if facts else None,
    }
