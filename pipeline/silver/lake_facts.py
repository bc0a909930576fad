"""The facts of every table's next decision, from what the lake records. Pure.

In come the newest manifest, the registry, and the copies, requests and relations that bronze records, as of
one read. Out come `TableFacts`: `pgdelta status` decides by them alone, and apply adds what it reads in the
log of each table and what it surveys in bronze. So the same records lead to the same decision in all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from pipeline.bronze.copy_states import DROPPED, CompleteCopy, CopyHistory, Gap, rewritten_before
from pipeline.bronze.log import BronzeOffset
from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.config import Config
from pipeline.config.tables import NO_LIMITS, TableRule
from pipeline.errors import ConfigError
from pipeline.metadata.manifests import Manifest
from pipeline.metadata.pauses import Pause, paused_names
from pipeline.metadata.registry import RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.decision import TableFacts
from pipeline.silver.fold.later_copies import order_copies
from pipeline.silver.fold.modes import keeps_past, kept_as, mode_changed
from pipeline.table_name import TableName


@dataclass(slots=True)
class LoggedOffset:
    """What a table's log contained when it was read."""

    offset: LSN = INVALID
    unreadable: str | None = None
    taken: str | None = None
    lost: str | None = None
    foreign: str | None = None


@dataclass(frozen=True, slots=True)
class LakeFacts:
    """The records as of one read: tables, copies, relations, and what follows for all tables."""

    config: Config
    end: BronzeOffset
    manifest: Manifest
    registered: Mapping[TableName, RegisteredTable]
    history: CopyHistory
    relations: Collection[SourceRelation]
    copies: Mapping[TableName, CompleteCopy]  # the newest that silver may show
    waiting: Set[TableName]
    gaps: Mapping[TableName, Gap]
    key_requests: Set[TableName]
    type_changes: Mapping[TableName, LSN]  # after which a copy was requested
    rewrites: Mapping[TableName, LSN]  # after which a comparison was requested
    captured: Sequence[TableName]  # those that bronze has up to `end`, and the configuration follows
    paused: Mapping[TableName, Pause]
    now: datetime | None  # by which hours of a schedule count

    @classmethod
    def of(
        cls,
        config: Config,
        end: BronzeOffset,
        manifest: Manifest,
        registered: Mapping[TableName, RegisteredTable],
        history: CopyHistory,
        relations: Collection[SourceRelation],
        path: Callable[[TableName], str],
        pauses: Sequence[Pause] = (),
        now: datetime | None = None,
    ) -> LakeFacts:
        """Return what the records say up to a bronze offset; `path` gives the path of a silver table."""
        names_by_oid: dict[int, set[TableName]] = defaultdict(set)
        for relation in relations if pauses else ():
            names_by_oid[relation.oid].add(relation.name)
        newest = history.newest(end.lsn)
        archived = {
            name
            for name, table in registered.items()
            if table.path != path(name) and why_detached(config, history, name, end)
        }
        # Tables that were detached and returned lack the changes of that time.
        returning = history.returning(newest, end.lsn) if config.source.copy != "never" else set()
        copies = {name: copy for name, copy in newest.items() if name not in archived | returning}
        followed = _followed(config, relations)
        captured = [name for name, lsn in followed.items() if lsn <= end.lsn]
        uncopied: set[TableName] = set()  # that wait in bronze until their first copy is complete
        if config.source.copy != "never":
            known = registered.keys() | copies.keys()
            uncopied = {n for n in followed if n not in known and not history.is_dropped(n)}
        gaps: dict[TableName, Gap] = {}
        if (gap := history.last_gap(end.lsn)) is not None:
            lacking = _known_before(gap, end, registered, history, relations, captured)
            lacking = [n for n in lacking if n not in newest and not history.is_compared(n, gap, end.lsn)]
            gaps = {n: gap for n in lacking if not history.is_dropped(n)}
        requests = history.open_requests.items()
        type_changes = {n: max(r.type_change or INVALID for r in found) for n, found in requests}
        return cls(
            config,
            end,
            manifest,
            registered,
            history,
            relations,
            copies,
            uncopied | archived | returning,
            gaps,
            {n for n, found in requests if n in registered and all(r.key_ranges for r in found)},
            {name: lsn for name, lsn in type_changes.items() if lsn > INVALID},
            {n: lsn for n, found in requests if (lsn := rewritten_before(found)) is not None},
            captured,
            paused_names(pauses, names_by_oid),
            now,
        )

    def table(self, name: TableName, log: LoggedOffset | None) -> TableFacts:
        """Return the facts of a table; without a log it is at the offset of the manifest."""
        table, manifest, rule = self.registered.get(name), self.manifest, self.config.rule_for(name)
        is_current = name in manifest.by_name and name not in manifest.behind
        offset = manifest.lsn
        if log is not None:
            # A table without an offset starts from the beginning. A table without newer changes is at the
            # manifest's LSN. A table that was detached and returned is in no manifest, and continues from its
            # own offset.
            is_complete = table is not None and log.offset > INVALID and is_current
            offset = max(log.offset, manifest.lsn) if is_complete else log.offset
        started = table.copy_id or 0 if table and (log is None or log.offset > INVALID) else -1
        copy = self.copies.get(name)
        starts = copy if copy is not None and copy.id > started else None
        partial = self.history.partial_copies(name, copy)
        rewrite = self.rewrites.get(name)
        type_change = self.type_changes.get(name) if rule and rule.type_changes == "resync" else None
        return TableFacts(
            name,
            self.end.lsn,
            offset,
            is_behind=name in manifest.behind,
            paused=self.paused[name].sentence(name) if name in self.paused else None,
            waits=name in self.waiting,
            unreadable=log.unreadable if log else None,
            folder=log.taken if log else None,
            lost=log.lost if log else None,
            foreign=log.foreign if log else None,
            copy=starts,
            past=self._past(rule, table, starts) if rule and table and offset > INVALID else None,
            other_mode=_other_mode(table, rule) if offset > INVALID else None,
            gap=self.gaps.get(name),
            type_change=type_change if type_change and INVALID < offset <= type_change else None,
            has_key_requests=name in self.key_requests,
            rewrite=rewrite if rewrite and offset >= rewrite else None,
            partial_copies=tuple(p for p in partial if p.id > max(started, 0) and p.end_lsn < self.end.lsn),
            guards=rule.applied_guards if rule else NO_LIMITS,
            min_interval=self._min_interval(rule),
        )

    def _min_interval(self, rule: TableRule | None) -> int:
        if rule is None:
            return 0
        return rule.min_interval if self.now is None else rule.interval_at(self.now)

    def _past(self, rule: TableRule, table: RegisteredTable, copy: CompleteCopy | None) -> str | None:
        """Return why a copy would remove rows of a table, None if it would not."""
        if copy is None or not rule.keeps_past:
            return None
        order = order_copies(
            table.name,
            rule,
            self.history,
            self.relations,
            copy,
            is_copied=self.config.source.copy != "never",
        )
        if rule.mode != "mirror" and (order.first is None or order.first.id <= (table.copy_id or 0)):
            return None
        return keeps_past(table.name, rule)

    def recorded(self, name: TableName) -> TableFacts:
        """Return the facts of a table whose log is as the manifest says, without reading it.

        A table that is registered and in no manifest is taken to be at the manifest's LSN.
        """
        if (applied := self.manifest.behind.get(name)) is not None:
            return self.table(name, LoggedOffset(applied))
        return self.table(name, None if name in self.registered else LoggedOffset())


def _other_mode(table: RegisteredTable | None, rule: TableRule | None) -> str | None:
    """Return why a table waits for a rebuild if its rows are kept in another mode than its rule's."""
    if table is None or rule is None or table.mode == kept_as(rule):
        return None
    return mode_changed(table.name, table.mode, kept_as(rule))


def why_detached(config: Config, copies: CopyHistory, name: TableName, point: BronzeOffset) -> str | None:
    """Return why a table is detached, None if it is followed.

    Changes committed before a DROP are applied first: a table is not detached while `point` is before it.
    """
    if config.rule_for(name) is None:
        return "No rule of the configuration matches the table any more."
    last = copies.last(name)
    if last is not None and last.state == DROPPED and last.dropped_at <= point.lsn:
        return last.sentence
    return None


def detached_tables(
    config: Config, copies: CopyHistory, names: Iterable[TableName], point: BronzeOffset
) -> dict[TableName, str]:
    """Return those of some tables that are detached, each with the reason."""
    found = {name: why_detached(config, copies, name, point) for name in names}
    return {name: reason for name, reason in found.items() if reason}


def no_longer_followed(reason: str) -> str:
    """Return the sentence about a table that is detached for a reason."""
    return f"{reason} It follows the source no longer."


def require_followed(names: Iterable[TableName], detached: Mapping[TableName, str]) -> None:
    """Raise ConfigError if all tables of some are detached, each for a reason."""
    reasons = [detached.get(name) for name in names]
    if reasons and all(reasons):
        raise ConfigError(no_longer_followed(str(reasons[0])))


def _followed(config: Config, relations: Iterable[SourceRelation]) -> dict[TableName, LSN]:
    """Return the tables that bronze has and the configuration follows, by name, each with its first LSN."""
    first: dict[TableName, LSN] = {}
    for relation in relations:
        if relation.lsn <= first.get(relation.name, relation.lsn):
            first[relation.name] = LSN(relation.lsn)
    return {name: first[name] for name in sorted(first) if config.rule_for(name) is not None}


def _known_before(
    gap: Gap,
    end: BronzeOffset,
    registered: Mapping[TableName, RegisteredTable],
    history: CopyHistory,
    relations: Collection[SourceRelation],
    captured: Iterable[TableName],
) -> list[TableName]:
    """Return the captured tables that lack the changes of a gap; all changes of others came after it."""
    requested = history.open_requests.keys()
    older = {each.name for each in relations if each.lsn <= end.lsn and each.lsn < gap.end}
    return [n for n in captured if n in registered or n in requested or n in older]
