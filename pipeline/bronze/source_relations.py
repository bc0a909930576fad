"""Relation versions as apply reads them: the shape and identity of a source table from an LSN on.

Pure. A row of `bronze/relations` has a Relation message and what the catalog had of its columns
(`relations.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pipeline.protected_columns import ProtectedColumn
from pipeline.table_name import TableName

PostgresType = tuple[int, int]  # oid and modifier, of the type beneath domains
_BOX, _BOXES = 603, 1020
FIRST_USER_OID = 10_000  # FirstGenbkiObjectId: from here on an oid means nothing by itself


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of one relation version; what the catalog does not have is as in the message."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool
    attribute_number: int | None = None
    base_oid: int = 0
    base_modifier: int = -1
    element_base_oid: int | None = None
    output: str | None = None  # the server's function that writes a value, or an array's element, as text
    delimiter: str | None = None  # between an array's elements in its text
    missing_value: str | None = None
    has_default: bool = False
    is_not_null: bool = False

    @property
    def type(self) -> PostgresType:
        """Return the type beneath the column's domains, if it is known."""
        return self.base_oid, self.base_modifier

    @property
    def array_delimiter(self) -> str:
        """Return the character between an array's elements; of the built-in types, only box has its own."""
        return self.delimiter or (";" if self.element_base_oid == _BOX or self.base_oid == _BOXES else ",")

    @property
    def is_type_known(self) -> bool:
        """Return whether the type beneath the column's domains is known."""
        return self.attribute_number is not None or self.type_oid < FIRST_USER_OID


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """One relation version: the shape and identity of a source table from an LSN of the stream on."""

    version: int
    oid: int
    schema_name: str
    table_name: str
    replica_identity: str
    columns: tuple[SourceColumn, ...]
    lsn: int = 0  # of the first transaction or snapshot that has it
    protected: tuple[ProtectedColumn, ...] = ()
    # the server's attribute number of one of the lake's: messages have columns in the order of the server's
    server_number: Callable[[int], int] = field(default=int, repr=False, compare=False)

    @property
    def is_in_catalog(self) -> bool:
        """Return whether the catalog agreed with the Relation message."""
        return all(column.attribute_number is not None for column in self.columns)

    @property
    def name(self) -> TableName:
        """Return schema and table."""
        return TableName(self.schema_name, self.table_name)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that identify a row; empty if all columns do (full) or nothing does."""
        if self.replica_identity == "f":
            return ()
        return tuple(column.name for column in self.columns if column.is_key)

    @property
    def key_types(self) -> tuple[int, ...]:
        """Return the OIDs of the key's types, for domains of their base types."""
        return tuple(column.type[0] for column in self.columns if column.name in self.key)

    def index_of(self, name: str) -> int | None:
        """Return the 0-based position of a column in this version's tuples, None if it has none."""
        return next((i for i, column in enumerate(self.columns) if column.name == name), None)


Relations: TypeAlias = Mapping[int, SourceRelation]
"""Relation versions by their number."""


def versions_by_oid(relations: Iterable[SourceRelation]) -> Mapping[int, Sequence[SourceRelation]]:
    """Return the relation versions of each source table."""
    found: dict[int, list[SourceRelation]] = defaultdict(list)
    for relation in relations:
        found[relation.oid].append(relation)
    return found


def source_relation(row: Mapping[str, Any]) -> SourceRelation:
    """Read one row of `bronze/relations`."""
    return SourceRelation(
        version=row["relation_version"],
        oid=row["relation_id"],
        schema_name=row["schema_name"],
        table_name=row["table_name"],
        replica_identity=row["replica_identity"],
        lsn=row["lsn"],
        protected=tuple(ProtectedColumn(**each) for each in row.get("protected") or ()),
        columns=tuple(
            SourceColumn(
                name=column["name"],
                type_oid=column["type_oid"],
                type_modifier=column["type_modifier"],
                is_key=column["is_key"],
                attribute_number=column["attribute_number"],
                base_oid=column["type_oid"] if column["base_oid"] is None else column["base_oid"],
                base_modifier=column["type_modifier"]
                if column["base_modifier"] is None
                else column["base_modifier"],
                element_base_oid=column["element_base_oid"],
                output=column["output"],
                delimiter=column.get("delimiter"),
                missing_value=column["missing_value"],
                has_default=bool(column["has_default"]),
                is_not_null=bool(column["not_null"]),
            )
            for column in row["columns"]
        ),
    )
