"""The mark of the lake that reads a slot, on the publication that its first run created.

A slot has one reader: of two lakes with one pipeline name, each would miss what the other one has read. A
comment on the publication names slot and lake, so that the second is refused. A publication that the pipeline
did not create has no mark, and its slot is used as it is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

import psycopg

from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, reading
from pipeline.postgres.sql_text import quote_identifier, quote_literal

_MARK = re.compile(r"; the slot (\S+) is read by pgdelta for the lake ([0-9a-f]{32}) in (.*)\.", re.DOTALL)
_READ = """
SELECT pg_catalog.obj_description(p.oid, 'pg_publication'),
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)
FROM pg_catalog.pg_publication p WHERE p.pubname = %s
"""


class SlotMark(NamedTuple):
    """A slot, and the lake that reads it: its identifier and its root."""

    slot: str
    lake_id: str
    root: str

    def write(self, connection: Connection, publication: str, comment: str) -> None:
        """Add the mark to the comment of a publication that the pipeline created, if the role owns it."""
        text = (
            f"{comment}; the slot {self.slot} is read by pgdelta for the lake {self.lake_id} in {self.root}."
        )
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                f"COMMENT ON PUBLICATION {quote_identifier(publication)} IS {quote_literal(text)}".encode()
            )


def is_mark_due(connection: Connection, publication: str, mark: SlotMark) -> bool:
    """Return whether another lake's mark is to be replaced: its slot is gone.

    Raises SourceError if that slot exists, also if the other lake was at the same root.
    """
    slot = mark.slot
    with reading("the source's publications"):
        row = connection.execute(_READ, (slot, publication)).fetchone()
    found = _MARK.search(row[0] or "") if row else None
    if row is None or found is None or found.group(1) != slot or found.group(2) == mark.lake_id:
        return False
    if not row[1]:
        return True
    if found.group(3) == mark.root:
        raise SourceError(
            f"The slot {slot} was read by the lake in {mark.root}, which has lost bronze. Restore the lake"
            " from a backup. To start over instead, remove what is left of it, run SELECT"
            f" pg_drop_replication_slot({quote_literal(slot)}), then run again."
        )
    comment = quote_literal(row[0][: found.start()])
    raise SourceError(
        f"The slot {slot} has another reader, the lake in {found.group(3)}: what one of the two reads, the"
        " other never gets. Set another pipeline, or other names in source.slot and source.publication. If"
        f" that lake is not used any more, run COMMENT ON PUBLICATION {quote_identifier(publication)} IS"
        f" {comment}, then run again."
    )
