"""Read a table's attributes and what they prove of its columns at an earlier point of the stream.

The catalog may be ahead of the stream, or lack what a transaction that is not visible yet has altered. An
attribute number never means another column, columns are sent in the order of their numbers, and each change
of a column leaves the id of its transaction in `pg_attribute`. `bronze/column_numbers.py` concludes from
these facts which columns a Relation message may describe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.postgres.catalog import SNAPSHOT, WRITTEN_BY, has_ended
from pipeline.postgres.connection import Connection, for_server, reading
from pipeline.protocol.lsn import LSN


class CatalogHorizon(NamedTuple):
    """All transactions with smaller ids than `xid` (64 bits) had ended before the WAL reached `lsn`.

    A row of the catalog that such a transaction wrote is as it was then, and every transaction that commits
    after `lsn` and has a lock on the table sees it.
    """

    lsn: LSN
    xid: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column that a table has or had: `name` is None if it is dropped.

    `changed_by` is the 64-bit id of the last transaction that changed it, -1 if it is not known. With
    `is_changing`, a transaction that has not ended, or did not end well, has changed or dropped it.
    """

    number: int
    name: str | None
    changed_by: int
    is_changing: bool = False
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class TableAttributes:
    """All attributes of a table in the order of their numbers, dropped ones included.

    `is_unseen` is whether they were read before the transaction was visible for which they were read, and
    `is_aborted` whether that is aborted, so that no catalog has what it altered. `lists_changed_by` is the
    last transaction that changed which tables or columns publications have, -1 if some have lists of columns
    now, 0 if the server has none.
    """

    columns: tuple[Attribute, ...]
    lists_changed_by: int = 0
    is_unseen: bool = False
    is_aborted: bool = False

    def is_unchanged(self, column: Attribute, horizon: CatalogHorizon | None) -> bool:
        """Return whether a column was as it is now when the transaction wrote to the table."""
        if self.is_unseen:  # the transaction's lock keeps others from altering the table
            return not column.is_changing
        return horizon is not None and 0 <= column.changed_by < horizon.xid

    def may_lack_columns(self, horizon: CatalogHorizon | None) -> bool:
        """Return whether a publication may have left out columns when the transaction wrote to the table."""
        return self.lists_changed_by < 0 or (horizon is not None and self.lists_changed_by >= horizon.xid)


_ATTRIBUTES = f"""
SELECT a.attnum::integer, CASE WHEN NOT a.attisdropped THEN a.attname::text END,
       {WRITTEN_BY.format(row="a", unknown=-1)}, a.xmax::text <> '0', {{generated}}
FROM pg_catalog.pg_attribute a, {SNAPSHOT}
WHERE a.attrelid = %s::bigint::oid AND a.attnum > 0
ORDER BY a.attnum
"""
_GENERATED = {12: "a.attgenerated <> ''", 10: "false"}
_LISTS = {
    15: f"""
SELECT CASE WHEN pg_catalog.bool_or(r.prattrs IS NOT NULL) THEN -1
            ELSE coalesce(pg_catalog.max({WRITTEN_BY.format(row="r", unknown="s.xmax")}), 0) END
FROM pg_catalog.pg_publication_rel r, {SNAPSHOT}
""",
    10: "SELECT 0::bigint",
}
_STATUS = f"""
SELECT pg_catalog.txid_status(s.xmax - ((s.xmax - %s::bigint) & 4294967295)) FROM {SNAPSHOT}
"""
_HORIZON = """
SELECT pg_catalog.txid_snapshot_xmin(pg_catalog.txid_current_snapshot()),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_insert_lsn() END::text
"""


def read_attributes(connection: Connection, oid: int, xid: int) -> TableAttributes | None:
    """Return the attributes of a table for rows that a transaction (32-bit id) wrote; None without a table.

    Raises SourceError if they cannot be read.
    """
    with reading("the columns of a table with protected columns", "Run again."):
        while True:
            was_visible = has_ended(connection, xid)
            columns, lists = _read(connection, oid)
            if was_visible or not has_ended(connection, xid):
                break
        is_aborted = was_visible and _read_one(connection, _STATUS, xid) == "aborted"
    return TableAttributes(columns, lists, not was_visible, is_aborted) if columns else None


def read_horizon(connection: Connection) -> CatalogHorizon:
    """Return the horizon of the catalog as it is now."""
    with reading("the server's WAL location", "Run again."):
        row = connection.execute(_HORIZON).fetchone()
    assert row is not None
    return CatalogHorizon(LSN.parse(row[1]), row[0])


def _read(connection: Connection, oid: int) -> tuple[tuple[Attribute, ...], int]:
    query = _ATTRIBUTES.format(generated=for_server(connection, _GENERATED))
    rows = connection.execute(query, (oid,)).fetchall()
    return tuple(Attribute(*row) for row in rows), _read_one(connection, for_server(connection, _LISTS))


def _read_one(connection: Connection, query: str, *parameters: int) -> Any:
    row = connection.execute(query, parameters or None).fetchone()
    assert row is not None
    return row[0]
