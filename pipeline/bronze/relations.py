"""Relation versions as ingest records them: a Relation message and the catalog's facts, under one id.

They are rows of `bronze/relations`, which apply reads (`source_relations.py`). The id is a hash of the
content, so the same columns have the same id in every session, by either route and on any host. A version to
which no change refers is harmless.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.bronze.changes_scan import MAX_LSN
from pipeline.bronze.protection import Protection, digest_of
from pipeline.bronze.schema import RELATIONS, storable
from pipeline.bronze.table_input import TableSurvey, merged, survey_at_rest
from pipeline.delta.new_rows import NewRows
from pipeline.delta.table import LakeTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.postgres.catalog import CatalogRelation
    from pipeline.protocol.binary.converters import Types
    from pipeline.protocol.messages import Relation


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """One relation from an LSN of the stream on; `catalog` is None if the catalog did not agree with it.

    `types` convert its values in binary format; they are no part of the version. If some of its columns are
    left out, hashed or masked, `relation` and `catalog` are without their values, and `sent` is the relation
    as the server has it. A pending one is of an open stream, and is replaced when the stream ends. One
    `at_rest` is that of the catalog: every change that commits after its LSN has it, or a later version.
    """

    id: int
    lsn: LSN
    relation: Relation
    catalog: CatalogRelation | None
    types: Types | None = field(default=None, compare=False, repr=False)
    protection: Protection | None = None
    original: Relation | None = field(default=None, compare=False, repr=False)
    at_rest: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether the rules of its columns are not known before its transaction ends."""
        return self.id < 0

    @property
    def sent(self) -> Relation:
        """The relation as the server sends its rows."""
        return self.original or self.relation

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
    sent: Relation,
    catalog: CatalogRelation | None,
    lsn: LSN,
    types: Types | None = None,
    protection: Protection | None = None,
) -> RelationVersion:
    """Return the relation under its version id: 63 bits of SHA-256 over its shape and the catalog's."""
    relation = sent
    if protection is not None:
        relation, catalog = protection.relation(sent), protection.catalog(sent, catalog)
    columns = [astuple(column) for column in catalog.columns] if catalog else None
    key = catalog.primary_key if catalog else None
    shape = (relation.oid, relation.namespace, relation.name, relation.replica_identity)
    described = tuple(astuple(column) for column in relation.columns)
    parts: tuple[object, ...] = (shape, described, columns, key)
    if protection is not None:
        parts = (*parts, digest_of(protection))
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big") >> 1
    return RelationVersion(number, lsn, relation, catalog, types, protection, sent)


_PENDING_IDS = count(-1, -1)


def pending_version(sent: Relation, lsn: LSN, types: Types) -> RelationVersion:
    """Return a version of an open stream under an id of its own, below 0."""
    return RelationVersion(next(_PENDING_IDS), lsn, sent, None, types)


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
                "delimiter": found and found.delimiter,
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
        "protected": [asdict(each) for each in version.protection.columns] if version.protection else None,
        "at_rest": version.at_rest or None,
    }


@dataclass(frozen=True, slots=True)
class RecordedLSNs:
    """Where versions are recorded under one name: the first LSN, and all of versions at rest."""

    first: LSN
    at_rest: tuple[tuple[LSN, int], ...] = ()  # with the version


class RelationLSNs:
    """The LSNs of each name in `bronze/relations`; threads may share it."""

    def __init__(self, relations: LakeTable) -> None:
        self._relations = relations
        self._lock = threading.Lock()
        columns = ["schema_name", "table_name", "lsn", "relation_version", "at_rest"]
        self._new_rows = NewRows(relations, columns)
        self._found: dict[TableName, RecordedLSNs] = {}
        self._version = -1

    def read(self) -> Mapping[TableName, RecordedLSNs]:
        """Return what is recorded now; rows are read only if the table has another version than before."""
        with self._lock:
            version = self._relations.version()
            if version != self._version:
                rows, is_more = self._new_rows.read()
                found = dict(self._found) if is_more else {}
                for row in rows:
                    name, lsn = TableName(row["schema_name"], row["table_name"]), LSN(row["lsn"])
                    known = found.get(name, RecordedLSNs(lsn))
                    rests = ((lsn, row["relation_version"]),) if row.get("at_rest") else ()
                    found[name] = RecordedLSNs(min(lsn, known.first), (*known.at_rest, *rests))
                self._found, self._version = found, version
            return self._found

    def add_rests(
        self,
        surveys: dict[TableName, list[TableSurvey]],
        end_lsn: LSN,
        starts: Mapping[TableName, LSN],
        default_start: LSN = MAX_LSN,
    ) -> dict[TableName, list[TableSurvey]]:
        """Add the versions at rest to the surveys between the start of each table and an LSN.

        A version counts from its LSN (inclusive) on, so that `end_lsn` is exclusive.
        """
        recorded = self.read()
        for name in starts if default_start >= end_lsn else recorded:
            rests = recorded[name].at_rest if name in recorded else ()
            start = starts.get(name, default_start)
            found = [survey_at_rest(*each) for each in rests if start <= each[0] < end_lsn]
            if found:
                surveys[name] = merged([*surveys.get(name, ()), *found])
        return surveys

    def before(self, name: TableName) -> LSN:
        """Return an LSN before all changes under a name, 0/0 if no version has it."""
        known = self.read().get(name)
        return INVALID if known is None else LSN(max(0, known.first - 1))
