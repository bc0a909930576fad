"""The rows of a publication in the catalogs, and what they prove of an edit between two snapshots.

A snapshot that is held shows which transaction has removed a row since, and by which of its commands. An
entry that one transaction removed and added again, without another command in between, was there at each
commit, so the server sent all changes (measured on 13 to 18). So it is with a row that one command wrote
again with the same values, as OWNER TO and SET do. Rows that were written twice prove nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.postgres.connection import Connection, for_server, reading

_FACTS = "{0}.xmin::text::bigint, {0}.xmax::text::bigint, {0}.cmin::text::bigint, {0}.cmax::text::bigint"
_ROW = """
SELECT '', p.oid::bigint, {p}, (pg_catalog.to_jsonb(p) - 'oid' - 'pubowner')::text
FROM pg_catalog.pg_publication p WHERE p.pubname = %(publication)s
UNION ALL
SELECT 'table', r.oid::bigint, {r}, (pg_catalog.to_jsonb(r) - 'oid')::text
FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = %(publication)s
""".format(p=_FACTS.format("p"), r=_FACTS.format("r"))
_SCHEMA = """
UNION ALL
SELECT 'schema', s.oid::bigint, {s}, (pg_catalog.to_jsonb(s) - 'oid')::text
FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid
WHERE p.pubname = %(publication)s
""".format(s=_FACTS.format("s"))
_ROWS = {15: f"{_ROW}{_SCHEMA}", 10: _ROW}


class PublicationRow(NamedTuple):
    """A row of a publication; `kind` is empty for the publication itself, else that of an entry.

    `facts` has all of its values but its OID and its owner. `xmax` and `cmax` are of the transaction that
    removed it, 0 if none has.
    """

    kind: str
    oid: int
    xmin: int
    xmax: int
    cmin: int
    cmax: int
    facts: str


def read_publication_rows(connection: Connection, publication: str) -> list[PublicationRow]:
    """Return the rows of a publication in the session's snapshot, none if it does not exist."""
    with reading("the source's publications"):
        rows = connection.execute(for_server(connection, _ROWS), {"publication": publication}).fetchall()
    return [PublicationRow(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class HarmlessEdits:
    """Edits that let no change be missed: the publication's xmin, or an entry's OID → the one since."""

    xmins: dict[int, int] = field(default_factory=dict)
    entries: dict[int, int] = field(default_factory=dict)

    def add(self, before: Sequence[PublicationRow], now: Sequence[PublicationRow]) -> None:
        """Add what the same rows prove, as two snapshots show them; the earlier one was read last before."""
        old, new = ({(row.kind, row.oid): row for row in rows} for rows in (before, now))
        for key in old.keys() & new.keys():
            one, other = old[key], new[key]
            is_one_command = (one.xmax, one.cmax) == (other.xmin, other.cmin)
            if one.xmin != other.xmin and one.facts == other.facts and is_one_command:
                self.xmins[one.xmin] = other.xmin
        removed = [old[key] for key in old.keys() - new.keys()]
        added = [new[key] for key in new.keys() - old.keys()]
        commands: dict[int, set[int]] = defaultdict(set)
        for row in removed:
            commands[row.xmax].add(row.cmax)
        for row in added:
            commands[row.xmin].add(row.cmin)
        for row in added:
            for former in removed:
                if (
                    (former.kind, former.facts, former.xmax) == (row.kind, row.facts, row.xmin)
                    and former.cmax < row.cmin
                    and commands[row.xmin].issuperset(range(former.cmax, row.cmin))
                ):
                    self.entries[former.oid] = row.oid

    def is_harmless(self, before: int, now: int) -> bool:
        """Return whether harmless edits lead from one xmin of the publication to another."""
        return _leads(self.xmins, before, now)

    def keeps_entry(self, before: int | None, now: int) -> bool:
        """Return whether harmless edits lead from one entry to another."""
        return before is not None and _leads(self.entries, before, now)


def _leads(steps: dict[int, int], before: int, now: int) -> bool:
    seen = set()
    while before != now and before in steps and before not in seen:
        seen.add(before)
        before = steps[before]
    return before == now
