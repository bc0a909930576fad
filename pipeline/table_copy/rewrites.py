"""Settle changes of rows that no message carries: compare tables with the source, copy them, or say so.

ALTER TABLE that rewrites a table gives it another file node and every row the xmin of its transaction. VACUUM
FULL, CLUSTER and SET TABLESPACE keep the rows' xmin, so that one older row proves them; a TRUNCATE is in the
stream. What is not proved counts as a rewrite. VACUUM FULL and CLUSTER also store the value that the default
of a new column gave to older rows, and remove it from the catalog. DROP EXPRESSION rewrites nothing, and
publishes a column whose values no message brought. `altered_types` finds values that have another text.
`silver.rewrites` says what follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pipeline.bronze.changes_scan import ChangesScan
from pipeline.bronze.copy_states import CopyRequest
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.metadata.catalog import CatalogState, SourcePartition, TableFile
from pipeline.metadata.events import Event
from pipeline.postgres.connection import Connection
from pipeline.postgres.watched_tables import (
    kept_rows,
    list_existing_columns,
    list_new_columns,
    list_with_pages,
)
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.capture_state import CaptureState
from pipeline.table_copy.catalog_changes import with_other_files, without_expressions
from pipeline.table_copy.invisible_commits import was_running
from pipeline.table_name import TableName

_FIRST_WITH_TRUNCATES = 110000  # in the stream
_REWRITTEN = (
    "The table was rewritten at the source, as ALTER TABLE does: no earlier row is left, and no message"
    " carries the new values."
)
_TRUNCATED = (
    "The table was truncated or rewritten at the source: no earlier row is left, and no message of PostgreSQL"
    " 10 says so."
)
_STORED_DEFAULT = (
    "A column was added, and the table then stored again, as VACUUM FULL does: the catalog no longer has the"
    " value that a default gave to older rows."
)
_WITHOUT_EXPRESSION = (
    "A generated column became an ordinary one (DROP EXPRESSION): no message carries its earlier values."
)
_PUBLICATION_CHANGED = (
    "The settings or the owner of the publication {} were changed, maybe for a time: operations that it left"
    " out meanwhile are missing."
)
MISSING = "No message carries this, so silver may lack rows, or keep rows that the source does not have."
_BRONZE_KEEPS = (
    "Bronze keeps earlier values until retention or pgdelta forget removes them, also if the change was to"
    " anonymise."
)


def remedy(name: TableName) -> str:
    """Return what a person does about a table that may lack rows."""
    return f"Run {name.command('resync')}."


class Rewrites:
    """Finds the rewrites between two states of the catalog, and requests what settles them."""

    def __init__(self, config: Config, bronze: Bronze, state: CaptureState) -> None:
        self._config = config
        self._bronze = bronze
        self._state = state

    def find(
        self, connection: Connection, before: CatalogState, now: CatalogState
    ) -> tuple[dict[TableName, str], set[int]]:
        """Return the tables that were rewritten, each with a sentence, and those that are not decided yet."""
        found: dict[TableName, str] = {}
        suspects = with_other_files(before.tables, now.tables)
        publishes_truncates = connection.info.server_version >= _FIRST_WITH_TRUNCATES
        if publishes_truncates and suspects:  # one without pages has no row with another value
            filled = list_with_pages(connection, suspects)
            suspects = {oid: table for oid, table in suspects.items() if oid in filled}
        undecided: set[int] = set()
        for oid, table in suspects.items():
            unproven, unknown = self.unproven(connection, table.name, {oid: table}, before, now)
            undecided |= unknown
            if unproven:
                found[table.name] = _REWRITTEN if publishes_truncates else _TRUNCATED
            elif not unknown and publishes_truncates and self._has_lost_default(connection, oid, before):
                found[table.name] = _STORED_DEFAULT
        for oid, numbers in without_expressions(before.tables, now.tables).items():
            if not numbers.isdisjoint(list_existing_columns(connection, oid)):
                found.setdefault(now.tables[oid].name, _WITHOUT_EXPRESSION)
        return found, undecided

    def _has_lost_default(self, connection: Connection, oid: int, before: CatalogState) -> bool:
        """Return whether a table whose file was replaced has a new column whose default bronze does not know.

        Fast defaults came with PostgreSQL 11.
        """
        known = {
            column.attribute_number
            for relation in self._bronze.source_relations().values()
            for column in relation.columns
            if relation.oid == oid and column.missing_value is not None
        }
        return not list_new_columns(connection, oid, before.oldest_xid) <= known

    def unproven(
        self,
        connection: Connection,
        name: TableName,
        suspects: Mapping[int, TableFile | SourcePartition],
        before: CatalogState,
        now: CatalogState,
    ) -> tuple[set[int], set[int]]:
        """Return those of a table's files that may be rewritten, and those that are not decided yet."""
        kept = {oid: kept_rows(connection, each.name, before.oldest_xid) for oid, each in suspects.items()}
        undecided = {oid for oid, is_kept in kept.items() if is_kept is None}
        unproven = {oid for oid, is_kept in kept.items() if is_kept is False}
        if not unproven:
            return unproven, undecided
        self._state.require(now.lsn)
        if not self._state.wait_past(LSN(now.lsn - 1)):
            return set(), undecided | unproven
        xids = {suspects[oid].row_xmin for oid in unproven}
        truncated = count_changes(self._bronze, name, xids, before.lsn, ("T",))
        # the transaction that truncated a table may also have altered what it wrote since
        is_proven = {
            oid: suspects[oid].row_xmin in truncated and not self._has_lost_default(connection, oid, before)
            for oid in unproven
        }
        return {oid for oid in unproven if not is_proven[oid]}, undecided

    def settle(
        self, found: Mapping[TableName, str], lsn: LSN, *, is_whole: bool
    ) -> tuple[list[Event], list[CopyRequest]]:
        """Return the events and the requests of tables that changed before an LSN, each with a sentence.

        `is_whole` is whether all operations are published.
        """
        events, requests = [], []
        for name, sentence in sorted(found.items()):
            if self._config.rule_for(name) is None:
                continue
            policy = self.policy(name, is_whole=is_whole)
            if policy == "compare":
                outcome, kind = "It is compared with the source, and what differs is copied.", "evolved"
                requests.append(CopyRequest.after_rewrite(name, lsn))
            elif policy == "resync":
                outcome, kind = "All its rows are copied.", "evolved"
                requests.append(
                    CopyRequest.of(name, f"The table was rewritten, or a type altered, before {lsn}.")
                )
            else:
                outcome, kind = remedy(name), "resync"
            events.append(Event(*name, lsn, kind, f"{sentence} {outcome} {_BRONZE_KEEPS}"))
        if requests:
            self._state.require(lsn)  # silver is compared from there on
        return events, requests

    def settle_publication(
        self, names: Iterable[TableName], lsn: LSN, *, is_whole: bool
    ) -> tuple[list[Event], list[CopyRequest]]:
        """Return the events and the requests of tables whose publication was changed before an LSN.

        Tables that are compared have no event unless they differ.
        """
        events, requests = [], []
        sentence = _PUBLICATION_CHANGED.format(self._config.source.publication)
        for name in sorted(names):
            policy = self.policy(name, is_whole=is_whole)
            if policy == "compare":
                requests.append(CopyRequest.after_publication(name, lsn))
            elif policy == "resync":
                requests.append(CopyRequest.of(name, f"The publication was changed before {lsn}."))
                events.append(Event(*name, lsn, "evolved", f"{sentence} All its rows are copied."))
            else:
                events.append(Event(*name, lsn, "resync", f"{sentence} {MISSING} {remedy(name)}"))
        if requests:
            self._state.require(lsn)
        return events, requests

    def policy(self, name: TableName, *, is_whole: bool) -> str:
        """Return what `silver.rewrites` says of a table, `event` if it cannot be compared.

        `is_whole` is whether all operations are published.
        """
        rule, policy = self._config.rule_for(name), self._config.silver.rewrites
        is_comparable = rule is not None and rule.is_comparable and self._config.source.copy != "never"
        return "event" if policy == "compare" and not (is_whole and is_comparable) else policy


def count_changes(
    bronze: Bronze, name: TableName, xids: Collection[int], lsn: LSN, ops: tuple[str, ...]
) -> dict[int, int]:
    """Return how many changes of a table transactions made that committed about an LSN or later, by xid.

    Changes with unchanged TOAST do not count: they bring no complete row.
    """
    letters = ", ".join(map(repr, ops))
    condition = (
        f"op IN ({letters}) AND unsent IS NULL AND {was_running(sorted(xids), lsn, bronze.copies.read())}"
    )
    changes = bronze.changes
    path = changes.local_path
    rows: Iterable[tuple[str, str, int, int]]
    if path is None:
        frame = changes.frame().where(condition)
        counts = frame.groupBy("schema_name", "table_name", "xid").count().collect()
        rows = [tuple(row) for row in counts]
    else:
        scan = ChangesScan(path, changes.snapshot(), ops=ops, name=name, xids=frozenset(xids))
        if scan.is_empty():
            return {}
        columns = ("schema_name", "table_name", "xid", "op", "commit_lsn", "unsent")
        rows = scan.query(
            f"SELECT schema_name, table_name, xid, count(*) FROM changes WHERE {condition} GROUP BY 1, 2, 3",
            columns,
        )
    return {xid: count for schema, table, xid, count in rows if TableName(schema, table) == name}
