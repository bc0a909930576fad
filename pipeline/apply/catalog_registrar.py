"""Register silver tables in one catalog, next to the batches.

What has to change follows from the configuration, the registered tables and `_pgdelta/catalog_entries`, so a
batch that creates no table, and changes no columns, calls no catalog. A thread of its own makes the changes:
a catalog that is slow or fails delays no table. Spark is started for a change, but not to compare entries
that are recorded: that is done in a run that has Spark anyway, at the start of a continuous one, and once an
hour by scheduled ones. Catalogs that need no Spark are compared at the start and once an hour.

An entry is created, replaced or dropped only if it is pgdelta's: marked as such, or recorded in a catalog
that has no marks, and pointing to the path that is recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple, ParamSpec, TypeVar

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.delta.catalogs.entry import HeldColumns, MetastoreEntry, TableCatalog, catalog_error
from pipeline.delta.sql import now
from pipeline.errors import LakeError, report_error
from pipeline.metadata.catalog_entries import (
    DONE_STATES,
    FAILED,
    FOUND,
    OWN_STATES,
    PENDING,
    REFUSED,
    REGISTERED,
    CatalogEntries,
    CatalogEntry,
    CatalogName,
)
from pipeline.metadata.events import CATALOG, Event
from pipeline.metadata.registry import RegisteredTable
from pipeline.metadata.silver_paths import resolve_path
from pipeline.progress import CatalogProgress
from pipeline.protocol.lsn import INVALID
from pipeline.silver.read.catalog_names import catalog_names
from pipeline.table_name import TableName

FIRST_PAUSE = 10.0  # seconds until the second attempt; each later pause is twice as long
MAX_PAUSE = 300.0
COMPARED_EVERY = timedelta(hours=1)
"""How long scheduled runs rely on recorded entries, and start no Spark only because others have failed."""
WAIT_SECONDS = 60.0  # at the end of a run, for each call of the catalog
_STOP_SECONDS = 5.0  # the same after a signal
_MAX_FAILURES = 3  # in a row, after which the catalog is not called again for a while
_WHOLE = TableName("_pgdelta", "catalog_entries")  # the name of events about the catalog as a whole

P = ParamSpec("P")
T = TypeVar("T")


class SilverPlace(NamedTuple):
    """The path of a silver table, and a digest of its registered columns, None if no catalog holds them."""

    path: str
    columns: str | None = None


@dataclass(frozen=True, slots=True)
class CatalogTarget:
    """How a silver table is to be in the catalog of a type, None for Spark's."""

    catalog_name: CatalogName
    path: str
    columns: str | None = None
    catalog: str | None = None

    def entry(self, name: TableName, state: str, sentence: str | None = None) -> CatalogEntry:
        """Return the entry of a silver table in a state, recorded now."""
        found = CatalogEntry(*name, *self.catalog_name, self.path, state, sentence, now())
        return replace(found, target=self.catalog, columns=self.columns)

    def is_done(self, entry: CatalogEntry | None, time_now: datetime | None) -> bool:
        """Return whether nothing has to be done for a recorded entry, without comparing it.

        With a time, an entry that failed less than `COMPARED_EVERY` ago counts as done.
        """
        if entry is None or not self.is_entry(entry):
            return False
        if entry.state == REGISTERED and self.columns is not None and self.columns != entry.columns:
            return False
        is_recent = time_now is not None and time_now - entry.recorded_at < COMPARED_EVERY
        return entry.state in DONE_STATES or (entry.sentence is not None and is_recent)

    def is_entry(self, entry: CatalogEntry | None) -> bool:
        """Return whether a recorded entry has this name and path."""
        return entry is not None and entry.catalog_name == self.catalog_name and entry.path == self.path


def targets(
    config: Config,
    places: Mapping[TableName, SilverPlace],
    recorded: Mapping[TableName, CatalogEntry],
    catalog: str | None = None,
) -> dict[TableName, CatalogTarget]:
    """Return how silver tables are to be in the catalog of a type."""
    kept = {name: entry.catalog_name for name, entry in recorded.items() if name in places}
    names = catalog_names(config.catalog, config.pipeline, places, kept)
    return {name: CatalogTarget(names[name], *places[name], catalog) for name in names}


@dataclass(frozen=True, slots=True)
class Changes:
    """What may have to change: recorded entries that are out of date, and tables to register."""

    obsolete: tuple[CatalogEntry, ...]
    due: Mapping[TableName, CatalogTarget]

    @property
    def names(self) -> set[CatalogName]:
        """The names to look for in the catalog."""
        return {entry.catalog_name for entry in self.obsolete} | {t.catalog_name for t in self.due.values()}


def plan_changes(
    wanted: Mapping[TableName, CatalogTarget], recorded: Mapping[TableName, CatalogEntry], *, compares: bool
) -> Changes:
    """Return what may have to change; all wanted tables are due if the catalog `compares`."""
    obsolete = (
        entry for name, entry in recorded.items() if name not in wanted or not wanted[name].is_entry(entry)
    )
    due = {
        name: target
        for name, target in wanted.items()
        if compares or not target.is_done(recorded.get(name), None)
    }
    return Changes(tuple(obsolete), due)


def _failures(entries: Mapping[TableName, CatalogEntry]) -> dict[str, list[TableName]]:
    """Return why tables are not registered, each reason with its tables."""
    failures: dict[str, list[TableName]] = {}
    for name, entry in entries.items():
        if entry.sentence is not None:
            failures.setdefault(entry.sentence, []).append(name)
    return failures


class CatalogRegistrar:
    """Keeps a catalog in line with the silver tables of one applier; only one thread works at a time."""

    def __init__(
        self,
        config: Config,
        applier: Applier,
        catalog: TableCatalog,
        target: str | None = None,
        *,
        compares_at_start: bool = False,
    ) -> None:
        """Compare recorded entries with the catalog at the start, or if that was not done for a while.

        `target` is the type of the catalog in the records, None for Spark's.
        """
        self._config = config
        self._compares_at_start = compares_at_start
        self._applier = applier
        self._catalog = catalog
        self._target = target
        self._label = f"{catalog.label[0].upper()}{catalog.label[1:]}"
        self._progress = CatalogProgress(None if target is None else catalog.label)
        applier.summary.catalogs.append(self._progress)
        self._entries = CatalogEntries(applier.lake, target)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._recorded: dict[TableName, CatalogEntry] | None = None
        self._compared_at: float | None = None  # monotonic; the catalog with the recorded entries
        self._digests: dict[TableName, tuple[RegisteredTable, str]] = {}
        self._attempted: Mapping[TableName, SilverPlace] | None = None  # for which all was done or has failed
        self._has_failed = False  # at the last attempt
        self._pause = 0.0
        self._retry_at = 0.0  # monotonic
        self._is_over = False  # the run does not wait any longer
        self._answered_at = 0.0  # monotonic; the beginning of the attempt, or the last answer

    def update(self) -> None:
        """Begin what is due, in the background; calls no catalog if nothing has changed."""
        if self._config.catalog.schema is None:
            return
        with self._lock:
            if self._applier.manifest is None or (self._thread is not None and self._thread.is_alive()):
                return
            try:
                places = self._places()
                is_due = self._is_due(places)
            except Exception as error:  # of the lake; it delays no table
                self._end_attempt({}, {report_error(error): []})
                return
            if is_due:
                self._answered_at = time.monotonic()
                # A call that never returns must not keep the process alive.
                self._thread = threading.Thread(
                    target=self._attempt, args=(places,), name="catalog", daemon=True
                )
                self._thread.start()

    def finish(self, stop: threading.Event) -> None:
        """Wait for what is due, as long as the catalog answers; the next run continues with the rest."""
        if not stop.is_set():
            self.update()
        stopped_at: float | None = None
        while (thread := self._thread) is not None and thread.is_alive():
            if stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                self._is_over = time.monotonic() >= stopped_at + _STOP_SECONDS
            elif time.monotonic() >= self._answered_at + WAIT_SECONDS:
                self._record_failures(
                    {f"{self._label} has not answered for {WAIT_SECONDS:g} s. {self._catalog.remedy}.": []}
                )
                self._is_over = True
            if self._is_over:
                return
            thread.join(0.05)
            if not thread.is_alive() and not stop.is_set():
                self.update()

    def _places(self) -> dict[TableName, SilverPlace]:
        """Return the silver tables that are to be registered.

        These are the tables of the manifest, and those that have an entry and left it, until they are
        archived.
        """
        if self._recorded is None:
            self._recorded = self._entries.read()
        known, root = self._shown() | self._recorded.keys(), self._applier.lake.root
        places = {
            name: SilverPlace(table.path, self._digest(table))
            for name, table in self._applier.records.tables.read().items()
            if name in known
        }
        return {n: place for n, place in places.items() if not place.path.startswith(f"{root}/archive/")}

    def _digest(self, table: RegisteredTable) -> str | None:
        """Return a digest of what the columns of an entry follow, None if the catalog holds none."""
        if not self._catalog.holds_columns:
            return None
        known = self._digests.get(table.name)
        if known is None or known[0] is not table:
            text = repr((table.columns, table.metadata_columns))
            known = self._digests[table.name] = table, sha256(text.encode()).hexdigest()[:16]
        return known[1]

    def _shown(self) -> set[TableName]:
        """Return the tables of the newest manifest that have rows or columns."""
        manifest = self._applier.manifest
        return {entry.name for entry in manifest.entries if entry.version >= 0} if manifest else set()

    def _is_due(self, places: Mapping[TableName, SilverPlace]) -> bool:
        is_attempted = places == self._attempted
        if is_attempted and time.monotonic() < self._retry_at:
            return False
        is_comparable = not self._catalog.needs_spark or self._applier.lake.sessions.started is not None
        if self._has_failed or (is_comparable and self._must_compare()):
            return True
        if is_attempted:
            return False
        recorded = self._recorded or {}
        wanted = targets(self._config, places, recorded, self._target)
        is_due = bool(recorded.keys() - wanted.keys()) or any(
            not target.is_done(recorded.get(name), now()) for name, target in wanted.items()
        )
        if not is_due:
            self._attempted = places
            self._progress.failures = _failures(recorded)
        return is_due

    @property
    def _is_compared(self) -> bool:
        """Whether the catalog was compared with the recorded entries, in this run or lately."""
        if self._compared_at is None or self._catalog.needs_spark:
            return self._compared_at is not None
        return time.monotonic() < self._compared_at + COMPARED_EVERY.total_seconds()

    def _must_compare(self) -> bool:
        """Return whether recorded entries have to be compared with the catalog once it can be called."""
        if self._is_compared:
            return False
        limit = now() - COMPARED_EVERY
        entries = (self._recorded or {}).values()
        return self._compares_at_start or any(e.sentence or e.recorded_at <= limit for e in entries)

    def _attempt(self, places: Mapping[TableName, SilverPlace]) -> None:
        """Change the catalog for some silver tables, and record what became of each."""
        recorded = self._recorded or {}
        try:
            wanted = targets(self._config, self._existing(places), recorded, self._target)
            work = plan_changes(wanted, recorded, compares=not self._is_compared)
            self._call(self._catalog.check)
            found = self._find(work.names)
        except Exception as error:
            sentence = report_error(error)
            self._try_record(recorded | self._failed(places, sentence))
            self._end_attempt(places, {sentence: []})
            return
        try:
            failures = self._change(work, found)
            self._compared_at = time.monotonic()
        except Exception as error:
            failures = {report_error(error): []}
        self._end_attempt(places, failures)

    def _failed(
        self, places: Mapping[TableName, SilverPlace], sentence: str
    ) -> dict[TableName, CatalogEntry]:
        """Return the entries of the tables that are not registered, and that were not looked for."""
        recorded, entries = self._recorded or {}, {}
        for name, target in targets(self._config, places, recorded, self._target).items():
            entry = recorded.get(name)
            if not target.is_done(entry, None):
                is_own = entry is not None and target.is_entry(entry) and entry.state in OWN_STATES
                entries[name] = target.entry(name, PENDING if is_own else FAILED, sentence)
        return entries

    def _existing(self, places: Mapping[TableName, SilverPlace]) -> dict[TableName, SilverPlace]:
        """Leave out the tables that left the manifest and whose folder is gone."""
        shown = self._shown()
        return {
            name: place
            for name, place in places.items()
            if name in shown or self._is_compared or self._applier.lake.table_at(place.path).exists()
        }

    def _call(self, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call the catalog, and record when it answered; raise LakeError if it fails or the run is over."""
        try:
            result = call(*arguments, **options)
        except Exception as error:
            report_error(error)
            if isinstance(error, LakeError):
                raise
            raise catalog_error(self._catalog, error) from error
        self._answered_at = time.monotonic()
        if self._is_over:
            raise LakeError("The run is over. The next one continues.")
        return result

    def _find(self, names: Iterable[CatalogName]) -> dict[CatalogName, MetastoreEntry]:
        by_schema: dict[str, set[str]] = {}
        for name in names:
            by_schema.setdefault(name.schema, set()).add(name.table)
        return {
            CatalogName(schema, table): entry
            for schema, tables in by_schema.items()
            for table, entry in self._call(self._catalog.entries, schema, tables).items()
        }

    def _change(self, work: Changes, found: dict[CatalogName, MetastoreEntry]) -> dict[str, list[TableName]]:
        """Drop and create entries; return the sentences of those that are not as they are to be."""
        after = dict(self._recorded or {})
        for entry in work.obsolete:
            there = found.get(entry.catalog_name)
            if there is not None and entry.state in OWN_STATES and self._may_drop(entry, there):
                self._call(self._catalog.drop_table, *entry.catalog_name)
                self._progress.removed += 1
                del found[entry.catalog_name]
            del after[entry.name]
        creates, compared = [], []
        for source, target in work.due.items():
            there, old = found.get(target.catalog_name), after.get(source)
            if there is None:
                creates.append(source)
                after[source] = target.entry(source, PENDING)
            elif not there.points_to(target.path):
                sentence = (
                    f"The name {target.catalog_name} has another table or view in {self._catalog.label}. Drop"
                    " that one, or change catalog.schema or catalog.table."
                )
                after[source] = target.entry(source, REFUSED, sentence)
            elif self._catalog.holds_columns and self._is_marked(there):
                compared.append(source)
            else:
                is_own = target.is_entry(old) and old is not None and old.state in OWN_STATES
                is_own &= not self._catalog.holds_columns
                after[source] = target.entry(source, REGISTERED if is_own else FOUND)
        self._record(after)  # a run that ends before an entry is recorded as registered finds it as its own
        self._put([*creates, *compared], work.due, found, after)
        self._record(after)
        return _failures(after)

    def _is_marked(self, there: MetastoreEntry) -> bool:
        """Return whether an entry is this pipeline's, in a catalog that holds marks."""
        return there.owner == self._config.pipeline

    def _may_drop(self, entry: CatalogEntry, there: MetastoreEntry) -> bool:
        """Return whether an entry is that of this lake: a copy of a lake has the records of the other one."""
        if not there.points_to(entry.path) or (self._catalog.holds_columns and not self._is_marked(there)):
            return False
        lake = self._applier.lake
        is_here = resolve_path(entry.path, entry.name, lake.root) == entry.path  # or below a shared root
        return is_here or not lake.table_at(entry.path).exists()

    def _put(
        self,
        sources: Sequence[TableName],
        due: Mapping[TableName, CatalogTarget],
        found: Mapping[CatalogName, MetastoreEntry],
        after: dict[TableName, CatalogEntry],
    ) -> None:
        """Create entries, or give those that were found their columns, and put into `after` how that went."""
        created: set[str] = set()
        failures = 0
        for source in sources:
            target = due[source]
            schema, table = target.catalog_name
            there = found.get(target.catalog_name)
            try:
                held = self._held(target.path)
                if there is None:
                    if schema not in created:
                        self._call(self._catalog.create_schema, schema)
                        created.add(schema)
                    self._call(self._catalog.create_table, schema, table, target.path, held)
                    self._progress.registered += 1
                elif held is not None and there.held != held:
                    self._call(self._catalog.update_table, schema, table, target.path, held)
                    self._progress.updated += 1
                after[source] = target.entry(source, REGISTERED)
                failures = 0
            except Exception as error:
                failures += 1
                # It may have been created nevertheless.
                after[source] = target.entry(source, PENDING, report_error(error))
                if failures == _MAX_FAILURES:
                    break
        for source in sources:
            entry = after.get(source)
            if entry is not None and entry.state == PENDING and entry.sentence is None:
                sentence = f"{self._label} failed for other tables. {self._catalog.remedy}."
                after[source] = replace(entry, sentence=sentence)

    def _held(self, path: str) -> HeldColumns | None:
        """Return the columns that an entry is to hold, None in a catalog that holds none."""
        if not self._catalog.holds_columns:
            return None
        return self._catalog.held_columns(self._applier.lake.table_at(path).snapshot())

    def _record(self, after: dict[TableName, CatalogEntry]) -> None:
        """Record entries if they differ from those that are recorded, apart from their times."""
        before = self._recorded or {}
        limit = now() - COMPARED_EVERY
        kept = {
            name: before[name] if name in before and before[name].is_same(entry, limit) else entry
            for name, entry in after.items()
        }
        if kept != before and not self._is_over:
            self._entries.replace(kept.values())
        self._recorded = kept

    def _try_record(self, after: dict[TableName, CatalogEntry]) -> None:
        try:
            self._record(after)
        except Exception as error:
            report_error(error)

    def _end_attempt(
        self, places: Mapping[TableName, SilverPlace], failures: Mapping[str, list[TableName]]
    ) -> None:
        if self._is_over:
            return
        self._attempted, self._has_failed = places, bool(failures)
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), MAX_PAUSE) if failures else 0.0
        self._retry_at = time.monotonic() + self._pause
        self._record_failures(failures)

    def _record_failures(self, failures: Mapping[str, list[TableName]]) -> None:
        self._progress.failures = dict(failures)
        events = [
            Event(*name, INVALID, CATALOG, sentence)
            for sentence, names in failures.items()
            for name in names or [_WHOLE]
        ]
        try:
            self._applier.records.events.record(events)
        except Exception as error:
            report_error(error)
