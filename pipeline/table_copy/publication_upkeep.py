"""Keep the pipeline's own publication in line with the configuration, and report tables that it lacks.

Each poll adds the tables that match and are not published, if ingest may add them. The others are in the
summary of the run, and an event is recorded once for each change: `published`, `unpublished`, or `detached`
for an unpublished table that is gone, and `partial` or `whole` for one that silver shows in part. A
run that dies between the addition and its event records none; the table is copied all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.errors import NOTICES
from pipeline.metadata.events import DETACHED, PARTIAL, PUBLISHED, UNPUBLISHED, WHOLE, Event
from pipeline.metadata.registry import Records
from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.postgres.idle_rules import read_idle_rules
from pipeline.postgres.matched_relations import read_relations
from pipeline.postgres.partition_names import find_unfollowed
from pipeline.postgres.publication import list_existing, read_publication
from pipeline.postgres.relation_kinds import Reason
from pipeline.postgres.unpublished_tables import (
    add_schemas,
    add_tables,
    find_unpublished,
    unfollowed_sentence,
    unpublished_sentence,
)
from pipeline.progress import IngestSummary
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName

# source.copy → what becomes of the rows of a table that joins
EARLIER_ROWS = {
    "initial": "Its existing rows are copied.",
    "never": "Its existing rows are not copied (source.copy is never).",
}
_WHOLE = "SELECT on the source and silver show the same rows of the table again."


class PublicationUpkeep:
    """Adds tables to the publication, for one run of ingest."""

    def __init__(self, config: Config, lake: Lake, summary: IngestSummary) -> None:
        self._config = config
        self._records = Records(lake)
        self._summary = summary
        self._sentences: Mapping[TableName, str] | None = None  # that events have
        self._partial: Mapping[TableName, str] | None = None  # likewise
        self.refused: Mapping[TableName, Reason] = {}  # that are no tables to follow, published or not

    def poll(self, connection: Connection) -> None:
        """Add what is to be added, and record what changed since the last poll."""
        name = self._config.source.publication
        publication = read_publication(connection, name)
        relations = read_relations(connection, self._config)
        found = find_unpublished(connection, self._config, publication, relations)
        schemas = add_schemas(connection, self._config, publication, found)
        by_schema = [table for table in found if table.schema in schemas]
        missing = [table for table, why in found.items() if why is None and table.schema not in schemas]
        by_name, failed = add_tables(connection, name, missing)
        added = sorted(by_schema + by_name)
        unpublished = {table: why for table, why in found.items() if why is not None} | failed
        self._summary.published += [table for table in added if table not in self._summary.published]
        listed = frozenset({*(publication.tables if publication else ()), *added})
        now = replace(publication, tables=listed) if publication else None
        unfollowed = find_unfollowed(connection, self._config, now, relations, unpublished)
        self.refused = {**unfollowed.refused, **unfollowed.unusable}
        self._summary.unpublished = {table: str(why) for table, why in unpublished.items()}
        self._summary.unfollowed = {table: str(why) for table, why in self.refused.items()}
        self._summary.passed_over = {table: str(why) for table, why in unfollowed.passed_over.items()}
        if added or self._sentences is None:
            self._name_idle_rules(read_idle_rules(connection, self._config, relations, listed))
        self._record_partial(connection, relations.notes(listed - self.refused.keys()))
        sentences = {table: unpublished_sentence(why) for table, why in unpublished.items()}
        sentences |= {table: unfollowed_sentence(why) for table, why in self.refused.items()}
        before = self._records.events.newest().unpublished if self._sentences is None else self._sentences
        if added or sentences != before:
            gone = before.keys() - sentences.keys() - set(added)
            events = self._events(
                read_flush_lsn(connection),
                added,
                {table: text for table, text in sentences.items() if before.get(table) != text},
                gone,
                list_existing(connection, gone),
            )
            self._records.ensure()
            self._records.events.record(list(events))
        self._sentences = sentences

    def _name_idle_rules(self, sentences: tuple[str, ...]) -> None:
        """Send a notice of each rule that no table follows and that had one before, or was not read yet."""
        for sentence in sentences:
            if sentence not in self._summary.idle_rules:
                NOTICES.info("%s", sentence)
        self._summary.idle_rules = sentences

    def _record_partial(self, connection: Connection, partial: Mapping[TableName, str]) -> None:
        """Record which tables silver shows in part, and which it shows whole again."""
        before = self._records.events.newest().partial if self._partial is None else self._partial
        changed = {table: text for table, text in partial.items() if before.get(table) != text}
        whole = sorted(before.keys() - partial.keys())
        if changed or whole:
            lsn = read_flush_lsn(connection)
            self._records.ensure()
            self._records.events.record(
                [Event(*table, lsn, PARTIAL, text) for table, text in changed.items()]
                + [Event(*table, lsn, WHOLE, _WHOLE) for table in whole]
            )
        self._summary.partial = self._partial = partial

    def _events(
        self,
        lsn: LSN,
        added: Collection[TableName],
        unpublished: Mapping[TableName, str],
        gone: Collection[TableName],
        existing: Collection[TableName],
    ) -> Iterator[Event]:
        """Yield the events; `gone` were unpublished before, and those of them that exist are `existing`."""
        publication = self._config.source.publication
        takes_all = self._config.source.create.publication == "all"
        rows = EARLIER_ROWS[self._config.source.copy]
        for table in added:
            sentence = f"Ingest added the table to the publication {publication}. {rows}"
            yield Event(*table, lsn, PUBLISHED, sentence)
        for table, sentence in unpublished.items():
            yield Event(*table, lsn, UNPUBLISHED, sentence)
        for table in sorted(gone):
            if table not in existing:
                yield Event(*table, lsn, DETACHED, "The table does not exist at the source any more.")
            elif not takes_all and self._config.rule_for(table) is None:
                sentence = "No rule of the configuration matches the table any more."
                yield Event(*table, lsn, DETACHED, sentence)
            else:
                yield Event(
                    *table, lsn, PUBLISHED, f"The publication {publication} has the table now. {rows}"
                )
