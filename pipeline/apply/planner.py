"""The plan of a batch: what is known of each table, and the decision that follows.

Reads the logs of silver tables, the copies, requests and relations that bronze records, and surveys the
changes that are pending. Writes nothing. A table's log is not read again until the table is
written, or `POLL_SECONDS` have passed.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.apply.decision import Decision, Step, TableFacts, decide
from pipeline.apply.detached_tables import why_detached
from pipeline.apply.expected_versions import ExpectedVersions, TableChange, describe_change
from pipeline.apply.table_renames import names_by_table, replaced_tables, why_folder_is_taken
from pipeline.bronze.activity import newest_commits
from pipeline.bronze.copy_states import CompleteCopy, CopyHistory, Gap
from pipeline.bronze.log import Bronze, BronzeOffset, TableSurvey
from pipeline.bronze.relations import SourceRelation
from pipeline.config.config import Config
from pipeline.config.tables import NO_LIMITS
from pipeline.errors import report_error
from pipeline.metadata.manifests import Manifest
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

STOPPED = (Step.WAIT, Step.HOLD, Step.FAIL)
POLL_SECONDS = 30.0
"""How often the folders of tables without pending changes are read."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a batch does to one table: the decision, the facts behind it, and the survey of its changes."""

    facts: TableFacts
    decision: Decision
    surveys: tuple[TableSurvey, ...] = ()

    @property
    def step(self) -> Step:
        return self.decision.step


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The changes of silver from a manifest to `end`: a plan for each table that bronze has."""

    end: BronzeOffset
    manifest: Manifest
    registered: Mapping[TableName, RegisteredTable]
    history: CopyHistory
    tables: Mapping[TableName, TablePlan]
    replaced: Set[TableName]  # tables that wait, because another table had their name since they were copied
    names_by_oid: Mapping[int, Set[TableName]]  # names under which changes of a table were recorded, by oid
    commit_time: datetime | None  # of the newest transaction that silver may show at the end

    @property
    def written(self) -> list[TableName]:
        """The tables that are written."""
        return sorted(name for name, table in self.tables.items() if table.step.writes)

    @property
    def stopped(self) -> dict[TableName, TablePlan]:
        """The tables that wait, are held or fail."""
        return {name: table for name, table in self.tables.items() if table.step in STOPPED}


@dataclass(frozen=True, slots=True)
class _Known:
    """The records as of one plan: tables, copies, relations, and what follows for all tables."""

    end: BronzeOffset
    manifest: Manifest
    registered: Mapping[TableName, RegisteredTable]
    history: CopyHistory
    copies: Mapping[TableName, CompleteCopy]  # the newest that silver may show
    waiting: Set[TableName]
    gaps: Mapping[TableName, Gap]
    key_requests: Set[TableName]


@dataclass(slots=True)
class _Folder:
    """What a table's log contained when it was read."""

    offset: LSN = INVALID
    unreadable: str | None = None
    taken: str | None = None
    lost: str | None = None


@dataclass(slots=True)
class _Folders:
    """What the last reads found, by table; a table that is not here is at the offset of the manifest."""

    found: dict[TableName, _Folder] = field(default_factory=dict)
    read_at: float | None = None  # when the folders of all tables were read


class Planner:
    """Plans batches; one at a time."""

    def __init__(self, config: Config, bronze: Bronze, records: Records) -> None:
        self.bronze = bronze
        self.relations: dict[int, SourceRelation] = {}
        self.copies_version = -1
        self.expected_versions = ExpectedVersions(bronze.lake, self.path, bronze.txn)
        self.is_confirmed: Callable[[TableName], bool] = lambda name: False  # a person lifted its guards
        self.decisions: Mapping[TableName, Decision] = {}  # of the last plan
        self._config = config
        self._records = records
        self._relations_version = -1
        self._folders = _Folders()
        self._replaced: dict[TableName, CompleteCopy | None] = {}  # with the newest copy that there was

    @property
    def is_poll_due(self) -> bool:
        """Whether the next plan reads the folder of every table."""
        read_at = self._folders.read_at
        return read_at is not None and time.monotonic() - read_at >= POLL_SECONDS

    def plan(self, end: BronzeOffset, manifest: Manifest, since: BronzeOffset | None) -> BatchPlan | None:
        """Return the plan that advances silver to `end`, None if there is nothing to do or record.

        `since` is the bronze version at which the manifest was written, if this process wrote it: then only
        the files added since are read.
        """
        known = self._read_records(end, manifest)
        self._read_folders(known)
        tables = {name: self._table_facts(name, known) for name in self._captured_tables(end)}
        decisions = self.decisions = {name: decide(facts) for name, facts in tables.items()}
        # The LSN that silver shows never goes back: silver has everything before a manifest.
        if end.lsn < manifest.lsn or (end.lsn == manifest.lsn and not _has_news(tables, decisions, manifest)):
            return None
        self.bronze.read_new_files(since, end)
        starts = {name: _start(tables[name], d) for name, d in decisions.items() if d.step.writes}
        starts = {name: lsn for name, lsn in starts.items() if lsn != manifest.lsn}
        surveyed = self.bronze.survey(end, manifest.lsn, starts)
        found = {name: surveys for name, surveys in surveyed.items() if name in starts or name in tables}
        found = {name: surveys for name, surveys in found.items() if decisions[name].step.writes}
        replaced = self._find_replaced(found, known)
        plans = {}
        for name, facts in tables.items():
            surveys = tuple(found.get(name, ()))
            facts = replace(facts, counts=_counts(surveys), is_replaced=name in replaced)
            plans[name] = TablePlan(facts, decide(facts), surveys)
        self.decisions = {name: table.decision for name, table in plans.items()}
        return BatchPlan(
            end,
            manifest,
            known.registered,
            known.history,
            plans,
            self._replaced.keys(),
            names_by_table(surveyed, self.relations),
            self._commit_time(plans, known),
        )

    def _read_records(self, end: BronzeOffset, manifest: Manifest) -> _Known:
        registered = self._records.tables.read()
        history = self.bronze.copies.read()
        self.copies_version = history.version
        self._read_relations()  # after the copies, which name them
        newest = history.newest(end.lsn)
        archived = {
            name
            for name, table in registered.items()
            if table.path != self.path(name) and why_detached(self._config, history, name, end)
        }
        # Tables that were detached and returned lack the changes of that time.
        returning = history.returning(newest, end.lsn) if self._config.source.copy != "never" else set()
        copies = {name: copy for name, copy in newest.items() if name not in archived | returning}
        self._replaced = {n: copy for n, copy in self._replaced.items() if copy == copies.get(n)}
        uncopied = self._uncopied(registered, copies, history)
        gaps: dict[TableName, Gap] = {}
        if (gap := history.last_gap(end.lsn)) is not None:
            lacking = self._known_before(gap, end, registered, history)
            gaps = {n: gap for n in lacking if n not in newest and not history.is_dropped(n)}
        requests = history.open_requests().items()
        return _Known(
            end,
            manifest,
            registered,
            history,
            copies,
            uncopied | archived | returning | self._replaced.keys(),
            gaps,
            {n for n, found in requests if n in registered and all(r.key_ranges for r in found)},
        )

    def _read_folders(self, known: _Known) -> None:
        """Read the log of each table that is behind, ahead or new, and of all tables when that is due."""
        is_due = self.is_poll_due
        if is_due or self._folders.read_at is None:
            self._folders.read_at = time.monotonic()
        entries, behind = known.manifest.by_name, known.manifest.behind
        self._folders.found = {}
        for name in self._captured_tables(known.end):
            is_current = name in known.registered and name in entries and name not in behind
            if name in known.waiting or (is_current and name in self.expected_versions and not is_due):
                continue
            self._folders.found[name] = self._read_folder(name, known)

    def _read_folder(self, name: TableName, known: _Known) -> _Folder:
        entry = known.manifest.by_name.get(name) if name in known.registered else None
        try:
            version, change = self.expected_versions.check(name, entry)
        except Exception as error:  # one table that cannot be read stops no other
            self.expected_versions.forget(name)
            return _Folder(unreadable=report_error(error))
        folder = _Folder(version.offset)
        if change is not TableChange.SAME:
            sentence = describe_change(name, self.path(name), change)
            if change is TableChange.REPLACED:
                folder.taken = sentence
            else:
                folder.offset, folder.lost = INVALID, sentence
        if folder.offset > INVALID and folder.taken is None:
            folder.taken = why_folder_is_taken(name, self.path(name), known.registered, self.bronze.lake.root)
        if folder.taken:
            self.expected_versions.forget(name)
        return folder

    def _table_facts(self, name: TableName, known: _Known) -> TableFacts:
        folder, table = self._folders.found.get(name), known.registered.get(name)
        manifest, rule = known.manifest, self._config.rule_for(name)
        is_current = name in manifest.by_name and name not in manifest.behind
        offset = manifest.lsn
        if folder is not None:
            # A table without an offset starts from the beginning. One without newer changes is at the LSN of
            # the manifest. One that was detached and returned is in no manifest and continues at its offset.
            is_complete = table is not None and folder.offset > INVALID and is_current
            offset = max(folder.offset, manifest.lsn) if is_complete else folder.offset
        started = table.copy_id or 0 if table and (folder is None or folder.offset > INVALID) else -1
        copy = known.copies.get(name)
        starts = copy if copy is not None and copy.id > started else None
        partial = known.history.partial_copies(name, copy)
        return TableFacts(
            name,
            known.end.lsn,
            offset,
            is_behind=name in manifest.behind,
            waits=name in known.waiting,
            unreadable=folder.unreadable if folder else None,
            folder=folder.taken if folder else None,
            lost=folder.lost if folder else None,
            copy=starts,
            gap=known.gaps.get(name),
            has_key_requests=name in known.key_requests,
            partial_copies=tuple(p for p in partial if p.id > max(started, 0) and p.end_lsn < known.end.lsn),
            guards=rule.guards if rule else NO_LIMITS,
            is_confirmed=self.is_confirmed(name),
        )

    def _find_replaced(self, found: Mapping[TableName, list[TableSurvey]], known: _Known) -> set[TableName]:
        """Return the tables under whose name another's changes were recorded; they wait for its copy."""
        if self._config.source.copy == "never":
            return set()
        replaced = replaced_tables(found, known.copies, known.registered, self.relations)
        self._replaced |= {name: known.copies.get(name) for name in replaced}
        return replaced

    def _commit_time(self, plans: Mapping[TableName, TablePlan], known: _Known) -> datetime | None:
        """Return the newest commit time that silver shows once the plan is carried out."""
        manifest, end = known.manifest, known.end
        surveyed = [plan for plan in plans.values() if plan.step not in (Step.START_FROM_COPY, Step.WAIT)]
        times = [survey.commit_time for plan in surveyed for survey in plan.surveys]
        times += [manifest.commit_time] if manifest.commit_time else []  # a clock may go back
        copies = [plan.facts.copy for plan in plans.values() if plan.step is Step.START_FROM_COPY]
        copies += [copy for plan in plans.values() if plan.step.writes for copy in plan.facts.partial_copies]
        times += self._unsurveyed_times(plans, [copy for copy in copies if copy], manifest, end)
        return max(times, default=None)

    def _unsurveyed_times(
        self,
        plans: Mapping[TableName, TablePlan],
        copies: Sequence[CompleteCopy],
        manifest: Manifest,
        end: BronzeOffset,
    ) -> Iterator[datetime]:
        """Give commit times of what no survey has: rows of copies, and writes of a run that ended early."""
        start = min([manifest.lsn, *(copy.lsn for copy in copies)])
        is_ahead = any(p.facts.offset > manifest.lsn for p in plans.values() if p.step not in STOPPED)
        if copies or is_ahead:
            found = newest_commits(self.bronze, start, end.lsn, copies)
            yield from (time for name, time in found.items() if self._config.rule_for(name) is not None)

    def _uncopied(
        self, registered: Iterable[TableName], copies: Iterable[TableName], history: CopyHistory
    ) -> set[TableName]:
        """Return the tables that wait in bronze until their first copy is complete."""
        if self._config.source.copy == "never":
            return set()
        known = {*registered, *copies}
        return {n for n in self._captured_tables(None) if n not in known and not history.is_dropped(n)}

    def _known_before(
        self,
        gap: Gap,
        end: BronzeOffset,
        registered: Mapping[TableName, RegisteredTable],
        history: CopyHistory,
    ) -> list[TableName]:
        """Return the tables that lack the changes of a gap; all changes of others follow it."""
        requested = history.open_requests().keys()
        older = {relation.name for relation in self._relations_of(end) if relation.lsn < gap.end}
        return [n for n in self._captured_tables(end) if n in registered or n in requested or n in older]

    def _captured_tables(self, end: BronzeOffset | None) -> list[TableName]:
        """Return the tables that bronze has, or has up to an offset, and the configuration follows."""
        names = {relation.name for relation in self._relations_of(end)}
        return [name for name in sorted(names) if self._config.rule_for(name) is not None]

    def _read_relations(self) -> None:
        version = self.bronze.relations.version()
        if version != self._relations_version:
            self.relations = self.bronze.source_relations()
            self._relations_version = version

    def _relations_of(self, end: BronzeOffset | None) -> list[SourceRelation]:
        return [r for r in self.relations.values() if end is None or r.lsn <= end.lsn]

    def path(self, name: TableName) -> str:
        """Return the path of a table's silver table."""
        rule = self._config.rule_for(name)
        target = rule.target if rule else None
        return self.bronze.lake.path("silver", target) if target else self.bronze.lake.path("silver", *name)


def _has_news(
    tables: Mapping[TableName, TableFacts], decisions: Mapping[TableName, Decision], manifest: Manifest
) -> bool:
    """Return whether a batch must run although bronze has nothing after the manifest."""
    shown = manifest.by_name.keys() - manifest.behind.keys()
    for name, decision in decisions.items():
        if decision.step.writes:
            return True
        if decision.step is Step.SKIP and tables[name].is_behind:
            return True  # a run that ended before its manifest has applied it
        if decision.row in ("folder taken", "log unreadable") and name in shown:
            return True  # the manifest must record that the table is behind
    return False


def _start(facts: TableFacts, decision: Decision) -> LSN:
    """Return the LSN from which changes of a table are surveyed."""
    return facts.copy.end_lsn if decision.step is Step.START_FROM_COPY and facts.copy else facts.offset


def _counts(found: Collection[TableSurvey]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for survey in found:
        counts.update(survey.counts)
    return counts
