"""What lies between bronze and silver: per table where it goes on, or which copy it begins with.

A table without a copy of its rows from before waits in bronze, where the configuration asks for copies. One
of which somebody wants keys copied anew waits for these: it must not be beyond their snapshot.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from pipeline.apply.detached_tables import why_detached
from pipeline.apply.known_versions import KnownVersions, TableChange, change_sentence
from pipeline.apply.table_paths import why_folder_is_taken
from pipeline.apply.table_renames import names_by_table, replaced_tables
from pipeline.bronze.activity import newest_commits
from pipeline.bronze.copied_rows import CompleteCopy
from pipeline.bronze.copy_history import CopyHistory
from pipeline.bronze.copy_states import Gap
from pipeline.bronze.log import Bronze, TableSurvey
from pipeline.bronze.new_files import BronzeOffset
from pipeline.bronze.relations import SourceRelation
from pipeline.config.config import Config
from pipeline.errors import report_error
from pipeline.metadata.manifests import Manifest
from pipeline.metadata.registry import Records, Registered
from pipeline.progress import ApplySummary, TableState
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

POLL_SECONDS = 30.0  # after so long the folders of tables that nothing comes for are looked at again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What bronze holds up to a point and silver does not: per table its floor and its changes."""

    end: BronzeOffset
    manifest: Manifest
    registered: Mapping[TableName, Registered]
    history: CopyHistory
    offsets: Mapping[TableName, LSN]
    surveys: Mapping[TableName, list[TableSurvey]]
    counts: Mapping[TableName, Mapping[str, int]]  # changes by operation, also of tables with patches
    copies: Mapping[TableName, CompleteCopy]  # of tables that begin with one now
    partial_copies: Mapping[
        TableName, tuple[CompleteCopy, ...]
    ]  # copies of keys that tables have not got yet, in order
    stale: Mapping[TableName, Gap]  # tables that stay as they are until they are copied beyond a gap
    waiting: Set[TableName]  # tables that wait for a patch
    replaced: Set[TableName]  # tables that wait, for another has had their name since they were copied
    names_of: Mapping[int, Set[TableName]]  # the names under which changes of tables came, by oid
    commit_time: datetime | None  # of the newest transaction that silver may show at the point
    again: Mapping[TableName, str]  # tables that are built again, as their folders lack rows: why

    def offset(self, name: TableName) -> LSN:
        """Return how far a table is applied."""
        return self.offsets.get(name, self.manifest.lsn)

    @property
    def names(self) -> list[TableName]:
        """Return the tables that there is something to do for."""
        return sorted({*self.surveys, *self.copies, *self.partial_copies})


class Planner:
    """Looks at what is to be applied; what it has seen of tables it need not look at again."""

    def __init__(self, config: Config, bronze: Bronze, records: Records, summary: ApplySummary) -> None:
        self.bronze = bronze
        self.relations: dict[int, SourceRelation] = {}
        self.unreadable: set[TableName] = set()
        self.copies_version = -1
        self._config = config
        self._records = records
        self._summary = summary
        self._relations_version = -1
        self._stale: Mapping[TableName, Gap] = {}  # as the last look found, like all that follow
        self._waiting: Set[TableName] = set()
        self.refused: dict[TableName, str] = {}  # tables whose folder has another's rows, with a sentence
        self.known_versions = KnownVersions(bronze.lake, self.path, bronze.txn)
        self._seen_at: float | None = None  # when all tables were looked at
        self._again: dict[TableName, str] = {}
        self._unbegun: set[TableName] = set()  # that have no position
        self._replaced: dict[TableName, CompleteCopy | None] = {}  # with the newest copy that there was

    @property
    def is_poll_due(self) -> bool:
        """Say whether the next look asks every table whether it is still there."""
        return self._seen_at is not None and time.monotonic() - self._seen_at >= POLL_SECONDS

    @property
    def held(self) -> dict[TableName, str]:
        """Return why tables stay as they are, as the last look found."""
        waiting = {n: f"{n} waits for its copy, which ingest goes on with" for n in self._waiting}
        return {**waiting, **self.refused, **{n: gap.sentence_of_tables for n, gap in self._stale.items()}}

    def plan(self, end: BronzeOffset, manifest: Manifest, since: BronzeOffset | None) -> BatchPlan | None:
        """Return what lies between silver and a point, None where nothing does; changes nothing."""
        registered = self._records.registered()
        recorded = self.bronze.copies.read()
        self.copies_version = recorded.version
        self._look_at_relations()  # after the copies, which name them
        copies = recorded.newest(end.lsn)
        stale: dict[TableName, Gap] = {}
        if (gap := recorded.last_gap(end.lsn)) is not None:
            known = self._known_before(gap, end, registered, recorded)
            stale = {n: gap for n in known if n not in copies and not recorded.is_dropped(n)}
        self._stale = stale
        archived = {
            name
            for name, table in registered.items()
            if table.path != self.path(name) and why_detached(self._config, recorded, name, end)
        }
        # Tables that left and are back lack what happened meanwhile.
        returning = recorded.returning(copies, end.lsn) if self._config.source.copy != "never" else set()
        copies = {name: copy for name, copy in copies.items() if name not in archived | returning}
        self._replaced = {n: copy for n, copy in self._replaced.items() if copy == copies.get(n)}
        waiting = self._uncopied(registered, copies, recorded) | archived | returning | self._replaced.keys()
        self._waiting = waiting
        behind = manifest.behind
        floors = self._floors(manifest, registered, end, waiting, behind)
        begun = {n: c for n, c in copies.items() if n not in waiting and self._begins(n, c, registered)}
        asked = recorded.open_requests().items()
        frozen = {n for n, requests in asked if n in registered and all(r.key_ranges for r in requests)}
        apart = waiting | self.unreadable | self.refused.keys() | begun.keys() | stale.keys() | frozen
        patches = self._patches(end, copies, registered, apart, recorded)
        is_behind = any(f < end.lsn or n in behind for n, f in floors.items() if n not in apart)
        # The manifest is to say of them that they are behind.
        unsaid = (self.refused.keys() | self.unreadable) & (manifest.by_name.keys() - behind.keys())
        # Silver as a whole never goes back: what lies before a manifest is in it.
        is_idle = end.lsn == manifest.lsn and not (is_behind or begun or patches or unsaid)
        if is_idle or end.lsn < manifest.lsn:
            return None
        self.bronze.read_new_files(since, end)
        floors = {name: floor for name, floor in floors.items() if name not in apart}
        behind_copies = {name: copy.end_lsn for name, copy in begun.items()}
        surveyed = self.bronze.survey(end, manifest.lsn, floors | behind_copies)
        found = {
            name: surveys
            for name, surveys in surveyed.items()
            if self._config.rule_for(name) is not None and name not in apart - begun.keys()
        }
        if self._config.source.copy != "never":
            replaced = replaced_tables(found, copies, registered, self.relations)
            self._replaced |= {name: copies.get(name) for name in replaced}
            self._waiting = waiting = waiting | replaced
            begun, patches = _without(replaced, begun), _without(replaced, patches)
            floors, found = _without(replaced, floors), _without(replaced, found)
        surveys = {name: each for name, each in found.items() if name not in begun}
        counts = {name: _counts(found) for name, found in surveys.items()}
        copied = [*begun.values(), *(patch for found in patches.values() for patch in found)]
        times = [survey.commit_time for found in surveys.values() for survey in found]
        times += self._times_of_copies(end, manifest, floors, copied)
        times += [manifest.commit_time] if manifest.commit_time else []  # a clock may go back
        surveys = {name: found for name, found in surveys.items() if name not in patches}
        return BatchPlan(
            end,
            manifest,
            registered,
            recorded,
            floors,
            surveys,
            counts,
            begun,
            patches,
            stale,
            frozen,
            self._replaced.keys(),
            names_by_table(surveyed, self.relations),
            max(times, default=None),
            dict(self._again),
        )

    def _times_of_copies(
        self,
        point: BronzeOffset,
        manifest: Manifest,
        floors: Mapping[TableName, LSN],
        copies: Sequence[CompleteCopy],
    ) -> Iterator[datetime]:
        """Give commit times of what no survey has: rows of copies, and what a run wrote that ended early."""
        after = min([manifest.lsn, *(copy.lsn for copy in copies)])
        if copies or any(floor > manifest.lsn for floor in floors.values()):
            found = newest_commits(self.bronze, after, point.lsn, copies)
            yield from (time for name, time in found.items() if self._config.rule_for(name) is not None)

    def _patches(
        self,
        point: BronzeOffset,
        copies: Mapping[TableName, CompleteCopy],
        registered: Mapping[TableName, Registered],
        apart: Collection[TableName],
        recorded: CopyHistory,
    ) -> dict[TableName, tuple[CompleteCopy, ...]]:
        """Return the patches that are complete and that a table has not got yet."""
        found = {}
        for name in self._captured_tables(point):
            known = None if name in self._unbegun else registered.get(name)
            done = known.copy_id or 0 if known else 0
            patches = recorded.partial_copies(name, copies.get(name))
            new = tuple(p for p in patches if p.id > done and p.end_lsn < point.lsn)
            if new and name not in apart:
                found[name] = new
        return found

    def _uncopied(
        self, registered: Iterable[TableName], copies: Iterable[TableName], recorded: CopyHistory
    ) -> set[TableName]:
        """Return the tables that have to wait in bronze until their copy is complete."""
        if self._config.source.copy == "never":
            return set()
        known = {*registered, *copies}
        return {n for n in self._captured_tables(None) if n not in known and not recorded.is_dropped(n)}

    def _known_before(
        self,
        gap: Gap,
        point: BronzeOffset,
        registered: Mapping[TableName, Registered],
        recorded: CopyHistory,
    ) -> list[TableName]:
        """Return the tables that lack what a gap has; of others all that was published came behind it."""
        asked = recorded.open_requests().keys()
        older = {relation.name for relation in self._relations_of(point) if relation.lsn < gap.end}
        return [n for n in self._captured_tables(point) if n in registered or n in asked or n in older]

    def _begins(
        self, name: TableName, copy: CompleteCopy, registered: Mapping[TableName, Registered]
    ) -> bool:
        """Say whether a table has to begin with a copy now: one that it has not begun with yet."""
        if self._config.rule_for(name) is None or name in self.unreadable or name in self.refused:
            return False
        known = registered.get(name)
        return known is None or (known.copy_id or 0) < copy.id or name in self._unbegun

    def _floors(
        self,
        manifest: Manifest,
        registered: Mapping[TableName, Registered],
        point: BronzeOffset,
        waiting: Collection[TableName],
        behind: Mapping[TableName, LSN],
    ) -> dict[TableName, LSN]:
        """Return the floor of each table that does not stand at the manifest: behind, ahead, or new."""
        floors: dict[TableName, LSN] = {}
        self.unreadable.clear()
        self.refused.clear()
        self._unbegun.clear()
        self._again.clear()
        entries, is_due = manifest.by_name, self.is_poll_due
        if is_due or self._seen_at is None:
            self._seen_at = time.monotonic()
        # A table that left and came back is in no manifest, and goes on where it was.
        current = entries.keys() - behind.keys()
        for name in self._captured_tables(point):
            is_known = name in registered and name in current and name in self.known_versions
            if name in waiting or (is_known and not is_due):
                continue
            try:
                found, verdict = self.known_versions.check(
                    name, entries.get(name) if name in registered else None
                )
            except Exception as error:  # one table that cannot be read stops no other
                applied = behind.get(name, INVALID)
                self._summary.tables[name] = TableState(applied=applied, failure=report_error(error))
                self.known_versions.forget(name)
                self.unreadable.add(name)
                continue
            position, why = found.offset, None
            if verdict in (TableChange.GONE, TableChange.OLDER):
                self._again[name], position = change_sentence(name, self.path(name), verdict), INVALID
            elif verdict is TableChange.OTHER:
                why = change_sentence(name, self.path(name), verdict)
            if position == INVALID:
                self._unbegun.add(name)
            else:
                why = why or why_folder_is_taken(name, self.path(name), registered, self.bronze.lake.root)
            if why:
                self._summary.tables[name] = TableState(behind.get(name, manifest.lsn), held=why)
                self.known_versions.forget(name)
                self.refused[name] = why
                continue
            if name not in registered:
                if position > INVALID or manifest.lsn > INVALID:
                    floors[name] = position
            else:
                # A table that was removed has no position: it is built again from the beginning.
                is_whole = position > INVALID and name in current
                floor = max(position, manifest.lsn) if is_whole else position
                if floor != manifest.lsn or name in behind:
                    floors[name] = floor
        return floors

    def _captured_tables(self, point: BronzeOffset | None) -> list[TableName]:
        """Return the tables that bronze knows, or knows up to a point, and the configuration wants."""
        names = {relation.name for relation in self._relations_of(point)}
        return [name for name in sorted(names) if self._config.rule_for(name) is not None]

    def _look_at_relations(self) -> None:
        version = self.bronze.relations.version()
        if version != self._relations_version:
            self.relations = self.bronze.source_relations()
            self._relations_version = version

    def _relations_of(self, point: BronzeOffset | None) -> list[SourceRelation]:
        return [r for r in self.relations.values() if point is None or r.lsn <= point.lsn]

    def path(self, name: TableName) -> str:
        """Return where a table's silver table is."""
        rule = self._config.rule_for(name)
        target = rule.target if rule else None
        return self.bronze.lake.path("silver", target) if target else self.bronze.lake.path("silver", *name)


def _without(names: Collection[TableName], found: Mapping[TableName, T]) -> dict[TableName, T]:
    return {name: each for name, each in found.items() if name not in names}


def _counts(found: Sequence[TableSurvey]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for survey in found:
        counts.update(survey.counts)
    return counts
