"""The plan of a batch: what is known of each table, and the decision that follows.

Reads the logs of silver tables, the copies, requests and relations that bronze records, and surveys the
changes that are pending: those of tables that lag behind apart from the others. Writes nothing. A table's log
is not read again until the table is written, or `POLL_SECONDS` have passed.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cache, partial

from pipeline.apply.back_off import BackOff
from pipeline.apply.expected_versions import ExpectedVersions, TableChange, describe_change
from pipeline.apply.running_surveys import RunningSurveys
from pipeline.apply.table_renames import names_by_table, replaced_tables, why_folder_is_taken
from pipeline.bronze.activity import newest_commit
from pipeline.bronze.bases import BaseHistory
from pipeline.bronze.copy_states import DROPPED, CompleteCopy, CopyHistory
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.source_relations import SourceRelation
from pipeline.bronze.table_input import TableSurvey
from pipeline.config.config import Config
from pipeline.config.tables import NO_LIMITS
from pipeline.delta.fence import raise_if_fenced
from pipeline.delta.locks import claim_table
from pipeline.delta.table_log import look_at
from pipeline.errors import DamagedLogError, DataFileError, LakeError, report_error
from pipeline.metadata.manifests import Manifest
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import STOPPED, STOPPED_BY_RECORD, Decision, Step, TableFacts, decide
from pipeline.silver.lake_facts import LakeFacts, LoggedOffset
from pipeline.silver.schema.foreign_commits import refuse_foreign_changes
from pipeline.silver.write.shared_tables import SharedTables, silver_path
from pipeline.table_name import TableName

POLL_SECONDS = 30.0
"""How often the folders of tables without pending changes are read."""

LARGE = 50_000
"""Changes and copied rows from which on a table is large: its write takes longer than a second."""
_WAITING = (Step.BACK_OFF, Step.POSTPONE)
"""Steps of tables that are written later: what their survey found is kept until then."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a batch does to one table: the decision, the facts behind it, and the survey of its changes."""

    facts: TableFacts
    decision: Decision
    surveys: tuple[TableSurvey, ...] = ()

    @property
    def step(self) -> Step:
        return self.decision.step

    @property
    def is_guarded(self) -> bool:
        """Whether the table's guards hold it."""
        return self.decision.row == "guards"

    @property
    def is_large(self) -> bool:
        """Whether the plan is expected to take long."""
        return self.step.writes and (self.step is Step.REBUILD or self._size >= LARGE)

    @property
    def oldest_lsn(self) -> LSN:
        """The LSN of the oldest change that waits, or of the oldest snapshot whose rows do."""
        found = [survey.survey.first[0] for survey in self.surveys]
        found += [copy.lsn for copy in self._copies]
        return LSN(min(found, default=self.facts.offset))

    @property
    def _size(self) -> int:
        rows = sum(copy.row_count for copy in self._copies)
        return rows + sum((self.facts.counts or {}).values())

    @property
    def _copies(self) -> tuple[CompleteCopy, ...]:
        if self.step is Step.START_FROM_COPY and self.facts.copy is not None:
            return (self.facts.copy, *self.facts.partial_copies)
        return self.facts.partial_copies if self.step is Step.PARTIAL_RESYNC else ()


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


@dataclass(slots=True)
class _Folders:
    """What the last reads found, by table; a table that is not here is at the offset of the manifest."""

    found: dict[TableName, LoggedOffset] = field(default_factory=dict)
    read_at: float | None = None  # when the folders of all tables were read


class Planner:
    """Plans batches; one at a time."""

    def __init__(self, config: Config, bronze: Bronze, records: Records) -> None:
        self.config = config
        self.bronze = bronze
        self.records = records
        self.path: Callable[[TableName], str] = cache(partial(silver_path, bronze.lake, config))
        self.shared = SharedTables(bronze.lake, config, bronze.txn)
        self.relations: dict[int, SourceRelation] = {}
        self.copies_version = -1
        self.expected_versions = ExpectedVersions(bronze.lake, self.path, bronze.txn)
        self.is_confirmed: Callable[[TableName], bool] = lambda name: False  # a person lifted its guards
        self.keeps_intervals = False  # else all pending changes are applied
        self.tables: Mapping[TableName, TablePlan] = {}  # of the last plan
        self.back_off = BackOff()  # not of batches that must be whole
        self._surveys = RunningSurveys(bronze)
        self._written_at: dict[TableName, float] = {}
        self._relations_version = -1
        self._folders = _Folders()
        self._replaced: dict[TableName, CompleteCopy | None] = {}  # with the newest copy that there was

    @property
    def decisions(self) -> dict[TableName, Decision]:
        """The decision of each table, as in the last plan."""
        return {name: table.decision for name, table in self.tables.items()}

    @property
    def is_poll_due(self) -> bool:
        """Whether the next plan reads the folder of every table."""
        read_at = self._folders.read_at
        return read_at is not None and time.monotonic() - read_at >= POLL_SECONDS

    def plan(
        self,
        end: BronzeOffset,
        manifest: Manifest,
        since: BronzeOffset | None,
        *,
        busy: Collection[TableName] = (),
        is_whole: bool = False,
        has_news: bool = False,
    ) -> BatchPlan | None:
        """Return the plan that advances silver to `end`, None if there is nothing to do or record.

        `since` is the bronze version at which the manifest was written, if this process wrote it: then only
        the files added since are read. Tables that are `busy` are being written; their logs are not read. If
        the batch must be whole, no table waits for its interval or its next attempt. With `has_news` there is
        something to record.
        """
        known = self._read_records(end, manifest)
        self._read_folders(known, busy)
        tables = {
            name: self._with_run(known.table(name, self._folders.found.get(name)), name in busy, is_whole)
            for name in known.captured
        }
        self.tables = {name: TablePlan(facts, decide(facts)) for name, facts in tables.items()}
        decisions = self.decisions
        # The LSN that silver shows never goes back: silver has everything before a manifest.
        if end.lsn < manifest.lsn:
            return None
        if end.lsn == manifest.lsn and not has_news and not _has_news(tables, decisions, manifest):
            return None
        self.bronze.read_new_files(since, end)
        needed = {n for n, d in decisions.items() if d.step.writes or d.step in _WAITING}
        starts = {name: _start(tables[name]) for name in needed}
        starts = {name: lsn for name, lsn in starts.items() if lsn != manifest.lsn}
        surveyed = self._surveys.survey(end, manifest.lsn, starts, busy)
        found = {
            name: self._with_effect(surveys, known.registered.get(name), self._refused_at(name, known))
            for name, surveys in surveyed.items()
            if name in needed
        }
        names = names_by_table(surveyed, self.relations)
        replaced = self._find_replaced(found, known)
        plans = dict(self.tables)
        for name in tables.keys() & (needed | replaced):
            surveys, facts = tuple(found.get(name, ())), tables[name]
            is_altered = any(each.survey.at_rest for each in surveys)
            facts = replace(
                facts,
                counts=_counts(surveys),
                is_altered=is_altered,
                is_replaced=name in replaced,
                unreadable=facts.unreadable or self._why_unread(facts),
            )
            plans[name] = TablePlan(facts, decide(facts), surveys)
        self.tables = plans
        return BatchPlan(
            end,
            manifest,
            known.registered,
            known.history,
            plans,
            self._replaced.keys(),
            names,
            self._commit_time(plans, known),
        )

    def _why_unread(self, facts: TableFacts) -> str | None:
        """Return why changes of a table that it still needs cannot be read, if that is so."""
        start = LSN(max(0, facts.copy.lsn - 1)) if facts.copy else facts.offset
        return self.bronze.why_unread(facts.name, start)

    def _refused_at(self, name: TableName, known: LakeFacts) -> LSN | None:
        """Return since when a table is not followed, though the stream has its changes."""
        rule, last = self.config.rule_for(name), known.history.last(name)
        is_refused = rule is not None and (rule.inheritance == "refuse" or bool(rule.columns))
        return last.dropped_at if is_refused and last is not None and last.state == DROPPED else None

    def _with_effect(
        self, surveys: list[TableSurvey], registered: RegisteredTable | None, refused_at: LSN | None
    ) -> list[TableSurvey]:
        """Leave out versions at rest of a table whose rows silver does not show, and has no change of.

        A table that is refused has none from the LSN on at which that was found.
        """
        if refused_at is not None and all(each.survey.first[0] >= refused_at for each in surveys):
            return []
        oids = {self.relations[each.survey.version].oid for each in surveys if not each.survey.at_rest}
        oids |= {registered.relation_id} if registered else set()
        return [
            each
            for each in surveys
            if not each.survey.at_rest or self.relations[each.survey.version].oid in oids
        ]

    def find_excess(self, name: TableName, end_lsn: LSN) -> str | None:
        """Return why the guards hold the changes that a table lacks up to an LSN, None if they do not.

        The plan has not counted those of a table that it stops for another reason.
        """
        facts = self.tables[name].facts if name in self.tables else None
        if facts is None or facts.copy is not None:
            return None
        if facts.counts is None and facts.guards != NO_LIMITS and INVALID < facts.offset < end_lsn:
            found = self.bronze.survey_tables({name: facts.offset}, end_lsn)
            facts = replace(facts, counts=_counts(found.get(name, ())))
        return facts.excess

    def record_write(self, name: TableName) -> None:
        """Record that a table was written now, which begins its interval."""
        self._written_at[name] = time.monotonic()
        self.back_off.record_success(name)

    def _with_run(self, facts: TableFacts, is_being_written: bool, is_whole: bool) -> TableFacts:
        """Return the facts with what this run does, and tried last, which a whole batch does not wait for."""
        is_confirmed = self.is_confirmed(facts.name)
        if is_being_written or is_confirmed:
            facts = replace(facts, is_being_written=is_being_written, is_confirmed=is_confirmed)
        if is_whole or not self.keeps_intervals:
            return facts
        written_at = self._written_at.get(facts.name)
        since_write = None if written_at is None else time.monotonic() - written_at
        return replace(facts, since_write=since_write, last_stop=self.back_off.last_stop(facts))

    def _read_records(self, end: BronzeOffset, manifest: Manifest) -> LakeFacts:
        registered = self.records.tables.read()
        history = self.bronze.copies.read()
        self.copies_version = history.version
        self._read_relations()  # after the copies, which name them
        lake = LakeFacts.of(
            self.config,
            end,
            manifest,
            registered,
            history,
            self.relations.values(),
            self.path,
            self.records.pauses.read(),
            datetime.now(timezone.utc),
        )
        self._replaced = {n: copy for n, copy in self._replaced.items() if copy == lake.copies.get(n)}
        return replace(lake, waiting=lake.waiting | self._replaced.keys())

    def _read_folders(self, known: LakeFacts, busy: Collection[TableName]) -> None:
        """Read the log of each table that is behind, ahead or new, and of all tables when that is due.

        A table that is being written is where the manifest says.
        """
        is_due = self.is_poll_due
        if is_due or self._folders.read_at is None:
            self._folders.read_at = time.monotonic()
        entries, behind = known.manifest.by_name, known.manifest.behind
        self._folders.found = {}
        read: list[TableName] = []
        for name in known.captured:
            if name in busy:
                self._folders.found[name] = LoggedOffset(behind.get(name, INVALID))
                continue
            is_current = name in known.registered and name in entries and name not in behind
            if name not in known.waiting and (is_due or not is_current or name not in self.expected_versions):
                read.append(name)
        look_at(map(self.path, read))
        bases = self.bronze.bases.read() if read else None
        for name in read:
            assert bases is not None
            self._folders.found[name] = self._read_folder(name, known, bases)

    def _read_folder(self, name: TableName, known: LakeFacts, bases: BaseHistory) -> LoggedOffset:
        entry = known.manifest.by_name.get(name) if name in known.registered else None
        try:
            self.shared.check(self.path(name))
            claim_table(self.bronze.lake.table_at(self.path(name)))
            version, change = self.expected_versions.check(name, entry)
        except Exception as error:  # one table that cannot be read stops no other
            raise_if_fenced(error, self.path(name))
            self.expected_versions.forget(name)
            sentence = report_error(error)
            if isinstance(error, DamagedLogError):
                sentence += f" Or move {self.path(name)} away, and the table is rebuilt from bronze."
            return LoggedOffset(unreadable=sentence)
        registered = known.registered.get(name)
        folder = LoggedOffset(version.offset)
        if change is not TableChange.SAME:
            sentence = describe_change(name, self.path(name), change)
            if change is TableChange.REPLACED:
                folder.taken = sentence
            else:
                folder.offset, folder.lost = INVALID, sentence
        elif entry is not None and registered is not None and version.version > entry.version >= 0:
            table = self.bronze.lake.table_at(self.path(name))
            try:
                refuse_foreign_changes(table, name, entry.version, registered)
            except LakeError as error:
                folder.foreign = str(error)
        base = bases.lsn_of(name)
        # without newer changes a table shows what the manifest says
        shown = max(folder.offset, _recorded_offset(name, known)) if entry else folder.offset
        if folder.offset > INVALID and shown < base and folder.taken is None:
            folder.lost = (
                f"Table {name} shows {shown}, and bronze has every change from {base} on only. "
                "It is rebuilt from bronze."
            )
            folder.offset = INVALID
        if folder.offset > INVALID and folder.taken is None:
            folder.taken = why_folder_is_taken(name, self.path(name), known.registered)
        if folder.taken:
            self.expected_versions.forget(name)
        return folder

    def _find_replaced(
        self, found: Mapping[TableName, list[TableSurvey]], known: LakeFacts
    ) -> set[TableName]:
        """Return the tables under whose name another's changes were recorded; they wait for its copy."""
        if self.config.source.copy == "never":
            return set()
        replaced = replaced_tables(found, known.copies, known.registered, self.relations)
        self._replaced |= {name: known.copies.get(name) for name in replaced}
        return replaced

    def _commit_time(self, plans: Mapping[TableName, TablePlan], known: LakeFacts) -> datetime | None:
        """Return the newest commit time that silver shows once the plan is carried out."""
        manifest, end = known.manifest, known.end
        surveyed = [plan for plan in plans.values() if plan.step not in (Step.START_FROM_COPY, Step.WAIT)]
        found = (survey for plan in surveyed for survey in plan.surveys)
        times = [each.commit_time for each in found if not each.survey.at_rest]
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
        starts = {}
        for name, plan in plans.items():
            if plan.step is Step.START_FROM_COPY and plan.facts.copy is not None:
                starts[name] = LSN(max(0, plan.facts.copy.lsn - 1))
            elif plan.facts.offset > manifest.lsn and plan.step not in STOPPED:
                starts[name] = manifest.lsn
        with suppress(DataFileError):  # the tables that need the file name it
            found = newest_commit(self.bronze, starts, end.lsn, copies)
            if found is not None:
                yield found

    def _read_relations(self) -> None:
        version = self.bronze.relations.version()
        if version != self._relations_version:
            self.relations = self.bronze.source_relations()
            self._relations_version = version


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
        if (decision.step is Step.FAIL or decision.row in STOPPED_BY_RECORD) and name in shown:
            return True  # the manifest must record that the table is behind
    return False


def _recorded_offset(name: TableName, known: LakeFacts) -> LSN:
    """Return the LSN that a table shows by the manifest, INVALID if it is not in it."""
    manifest = known.manifest
    return manifest.behind.get(name, manifest.lsn if name in manifest.by_name else INVALID)


def _start(facts: TableFacts) -> LSN:
    """Return the LSN from which changes of a table are surveyed: it starts from a copy if there is one."""
    return facts.copy.end_lsn if facts.copy else facts.offset


def _counts(found: Collection[TableSurvey]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for survey in found:
        counts.update(survey.counts)
    return counts
