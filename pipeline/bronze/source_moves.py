"""Tables whose source moved to another server, where they may have other oids and attribute numbers. Pure.

Silver follows a table by its oid, and a column by its attribute number. A move therefore records both for
each table, on the new server and in the lake, and every relation version of the new server is read with those
of the lake. What a later table or column of the new server gets cannot be that of another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.protected_columns import EXCLUDE
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.bronze.source_relations import SourceRelation
    from pipeline.postgres.catalog import CatalogRelation
    from pipeline.protocol.messages import Relation

_TABLES = 2**32  # above all oids
_COLUMNS = 10_000  # above all attribute numbers


@dataclass(frozen=True, slots=True)
class MovedTable:
    """One table of a move that ended at an LSN of the new server: its oid there and in the lake.

    `numbers` has the attribute numbers of the lake by those of the new server.
    """

    name: TableName
    lsn: LSN
    relation_id: int
    lake_id: int
    numbers: Mapping[int, int]

    @property
    def is_same(self) -> bool:
        """Whether the server has the oid and the attribute numbers that the lake has."""
        return self.relation_id == self.lake_id and all(a == b for a, b in self.numbers.items())


@dataclass(frozen=True, slots=True)
class SourceMoves:
    """All moves of a lake, in order."""

    tables: Sequence[MovedTable] = ()

    def translate(self, relation: SourceRelation) -> SourceRelation:
        """Return a relation version with the oid and the attribute numbers of the lake."""
        number, tables = self._at(LSN(relation.lsn))
        if not tables:
            return relation
        oid, numbers = _in_lake(relation.oid, number, tables)

        def in_lake(number: int | None) -> int | None:
            return None if number is None else numbers(number)

        columns = (replace(c, attribute_number=in_lake(c.attribute_number)) for c in relation.columns)
        protected = (replace(c, attribute_number=in_lake(c.attribute_number)) for c in relation.protected)
        return replace(
            relation,
            oid=oid,
            columns=tuple(columns),
            protected=tuple(protected),
            server_number=numbers.of_server,
        )

    def translate_now(self, relation: Relation, catalog: CatalogRelation) -> tuple[Relation, CatalogRelation]:
        """Return a relation as the server has it now with the oid and attribute numbers of the lake."""
        number, tables = self._at(None)
        if not tables:
            return relation, catalog
        oid, numbers = _in_lake(relation.oid, number, tables)
        columns = (replace(each, attribute_number=numbers(each.attribute_number)) for each in catalog.columns)
        return replace(relation, oid=oid), replace(catalog, columns=tuple(columns))

    def lake_id(self, oid: int) -> int:
        """Return the oid of the lake for a table that the server has now."""
        return self.lake_number(oid, 0)[0]

    def lake_number(self, oid: int, number: int) -> tuple[int, int]:
        """Return the oid and the attribute number of the lake for a column that the server has now.

        Number 0 is the table itself.
        """
        move, tables = self._at(None)
        if not tables:
            return oid, number
        lake_id, numbers = _in_lake(oid, move, tables)
        return lake_id, numbers(number) if number else 0

    def begun(self, name: TableName, lsn: LSN, relation_id: int) -> MovedTable:
        """Return the table of a server to which the source moves at an LSN, as one that the lake has not."""
        number = len({*(table.lsn for table in self.tables), lsn})
        return MovedTable(name, lsn, relation_id, relation_id + number * _TABLES, {})

    def _at(self, lsn: LSN | None) -> tuple[int, list[MovedTable]]:
        """Return the number of the move that ended before an LSN, or of the last one, and its tables."""
        ends = sorted({table.lsn for table in self.tables if lsn is None or table.lsn <= lsn})
        return len(ends), [table for table in self.tables if ends and table.lsn == ends[-1]]


class _Numbers:
    """Attribute numbers of the lake by those of the server."""

    def __init__(self, known: Mapping[int, int], offset: int) -> None:
        self._known, self._offset = known, offset
        self._servers = {lake: server for server, lake in known.items()}

    def __call__(self, number: int) -> int:
        return self._known.get(number, number + self._offset)

    def of_server(self, number: int) -> int:
        """Return the server's number of a lake's, below 1 if the server never had the column."""
        return self._servers.get(number, number - self._offset)


def _in_lake(oid: int, number: int, tables: Sequence[MovedTable]) -> tuple[int, _Numbers]:
    table = next((table for table in tables if table.relation_id == oid), None)
    if table is None:
        is_same = all(each.is_same for each in tables)
        return oid if is_same else oid + number * _TABLES, _Numbers({}, 0)
    return table.lake_id, _Numbers(table.numbers, 0 if table.is_same else number * _COLUMNS)


def match_columns(lake: SourceRelation, catalog: CatalogRelation, sent: Relation) -> dict[int, int] | None:
    """Return the lake's attribute numbers by the new server's; None if the columns have other names.

    Columns that are left out of the lake count too.
    """
    known = _numbers_of(lake)
    names = [column.name for column in sent.columns]
    if known.keys() != set(names):
        return None
    pairs = [(each.attribute_number, known[n]) for n, each in zip(names, catalog.columns, strict=True)]
    return {new: old for new, old in pairs if old is not None} if all(o for _, o in pairs) else None


def has_numbers_of(lake: SourceRelation, catalog: CatalogRelation, sent: Relation) -> bool:
    """Return whether a table with other columns has the oid and, for known names, the numbers of the lake."""
    known = _numbers_of(lake)
    pairs = zip(sent.columns, catalog.columns, strict=True)
    return lake.oid == sent.oid and all(
        known.get(column.name, found.attribute_number) == found.attribute_number for column, found in pairs
    )


def _numbers_of(lake: SourceRelation) -> dict[str, int | None]:
    known = {column.name: column.attribute_number for column in lake.columns}
    return known | {str(c.name): c.attribute_number for c in lake.protected if c.rule == EXCLUDE}
