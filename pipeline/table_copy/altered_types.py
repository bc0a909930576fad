"""Find the tables whose stored values have another text, because a type of their columns was altered.

A transaction that wrote to such a table before its type was altered, and is still open, brings texts from
before once it commits. So the table is settled at once, and again when those transactions have ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config.config import Config
from pipeline.metadata.catalog import CatalogState
from pipeline.postgres.connection import Connection
from pipeline.postgres.open_transactions import read_writers, write_wal_past_now
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import list_altered_types
from pipeline.table_name import TableName

_STILL_OPEN = (
    " Transactions that were writing to the table are still open and may bring earlier texts: the same"
    " follows once they have ended."
)
_ENDED = "The transactions have ended that were writing to the table when a type of its columns was altered."


@dataclass(frozen=True, slots=True)
class OtherTexts:
    """The tables whose values have another text since before an LSN, each with a sentence.

    `writers` has by OID the tables to settle again, with the xid before which their transactions began.
    """

    sentences: dict[TableName, str]
    writers: dict[int, int]
    lsn: LSN


def find_altered(
    connection: Connection, config: Config, state: CaptureState, before: CatalogState, now: CatalogState
) -> OtherTexts:
    """Return what altered types changed between two states of the catalog.

    The tables are to be settled at an LSN that capture is required to reach.
    """
    altered = list_altered_types(before, now)
    if config.source.copy != "never":  # a table that joins is copied
        altered = {oid: types for oid, types in altered.items() if oid in before.tables}
    awaited = {oid: each.writers_xid for oid, each in before.tables.items() if each.writers_xid}
    ended = {oid for oid, xid in awaited.items() if xid <= now.oldest_xid and oid in now.tables}
    writers = {oid: xid for oid, xid in awaited.items() if oid not in ended | altered.keys()}
    if not altered and not ended:
        return OtherTexts({}, writers, now.lsn)
    open_transactions = read_writers(connection, list(altered))
    open_tables = {oid for oid in altered if open_transactions.writers_of(oid)}
    writers |= dict.fromkeys(open_tables, now.next_xid)
    sentences = {now.tables[oid].name: _ENDED for oid in ended} | {
        now.tables[oid].name: _describe(types) + (_STILL_OPEN if oid in open_tables else "")
        for oid, types in altered.items()
    }
    # The state's LSN may be before the commit of a transaction that has ended.
    lsn = max(now.lsn, write_wal_past_now(connection, state.stop_copies.is_set))
    state.require(lsn)
    return OtherTexts(sentences, writers, lsn)


def _describe(types: list[TableName]) -> str:
    names = ", ".join(map(str, types))
    plural = "s" if len(types) > 1 else ""
    return (
        f"Stored values of the type{plural} {names} have another text at the source, as after ALTER TYPE, and"
        " no message carries that."
    )
