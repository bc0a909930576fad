"""plan, status and resync agree with apply's decision, whatever the lake records. Without Spark."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.apply import planner as planner_module
from pipeline.apply.expected_versions import TableChange
from pipeline.apply.planner import Planner
from pipeline.bronze.bases import BaseHistory
from pipeline.bronze.copy_states import (
    ABANDONED,
    COMPLETE,
    DROPPED,
    READING,
    CopyHistory,
    CopyRequest,
    CopyState,
    Gap,
    SnapshotChunks,
)
from pipeline.bronze.log import BronzeOffset
from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.config import Config, Silver, Source, Storage
from pipeline.config.tables import TableRule
from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from pipeline.key_ranges import KeyRange
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.pauses import Pause
from pipeline.metadata.registry import RegisteredTable
from pipeline.operate import plan as plan_module
from pipeline.operate import resync as resync_module
from pipeline.operate.plan import make_plan
from pipeline.operate.plan_report import Plan, PlannedTable
from pipeline.operate.resync import run_resync
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.status import describe_tables
from pipeline.report.status_page import COPYING, CURRENT, DETACHED, PAUSED, TableStatus
from pipeline.silver.decision import STOPPED, Step, TableFacts, decide
from pipeline.silver.lake_facts import LakeFacts, LoggedOffset, detached_tables, why_detached
from pipeline.table_name import TableName

NAMES = [TableName("public", name) for name in ("a", "b", "c", "d", "e")]
KEYS = (KeyRange(("1",), ("2",)),)
SEEDS = range(400)
GROUPS = [SEEDS[start : start + 100] for start in range(0, len(SEEDS), 100)]
ROOT = "file:/lake"
STOPPING_RECORDS = {"copy awaited", "gap", "type change", "keys awaited"}
"""The rows that stop a table by what is recorded, whatever its log and its changes are."""


def path(name: TableName) -> str:
    return "/".join([ROOT, "silver", *name])


@dataclass
class World:
    """What a lake records, and where the logs of its tables are."""

    config: Config
    end: BronzeOffset
    manifest: Manifest
    registered: dict[TableName, RegisteredTable]
    history: CopyHistory
    relations: dict[int, SourceRelation]
    logs: dict[TableName, LSN]
    pauses: tuple[Pause, ...] = ()
    planner: Planner = field(init=False)

    def __post_init__(self) -> None:
        bronze = SimpleNamespace(
            lake=SimpleNamespace(
                root=ROOT,
                path=lambda *names: "/".join([ROOT, *names]),
                table_at=lambda path: SimpleNamespace(path=path, local_path=None),
            ),
            txn=TxnId("shop"),
            relations=SimpleNamespace(version=lambda: 1, exists=lambda: True),
            source_relations=lambda: self.relations,
            table_names=lambda: {relation.name for relation in self.relations.values()},
            copies=SimpleNamespace(read=lambda: self.history, request=self.request),
            bases=SimpleNamespace(read=lambda: BaseHistory({})),
            changes=SimpleNamespace(exists=lambda: True),
            why_unread=lambda name, start_lsn: None,
            captured_offset=lambda: self.end,
            read_new_files=lambda since, end: None,
            survey=lambda end, lsn, starts: {},
            survey_tables=lambda offsets, end_lsn: {},
        )
        records = SimpleNamespace(
            tables=SimpleNamespace(read=lambda: self.registered),
            pauses=SimpleNamespace(read=lambda: self.pauses),
        )
        self.planner = Planner(self.config, cast(Any, bronze), cast(Any, records))
        self.planner.expected_versions = cast(Any, Logs(self.logs))

    def request(self, requests: list[CopyRequest]) -> None:
        self.history = replace(self.history, requests=(*self.history.requests, *requests))

    def decide(self) -> bool:
        """Plan as apply does; return whether there is a batch to run."""
        return self.planner.plan(self.end, self.manifest, None) is not None

    def lake(self) -> LakeFacts:
        return LakeFacts.of(
            self.config,
            self.end,
            self.manifest,
            self.registered,
            self.history,
            self.relations.values(),
            path,
            self.pauses,
        )

    def status(self) -> dict[TableName, TableStatus]:
        return {table.name: table for table in describe_tables(self.lake(), {}, {}, lambda copy: 1)}

    def request_resync(
        self, patch: pytest.MonkeyPatch, name: TableName, key_ranges: tuple[KeyRange, ...]
    ) -> None:
        bronze = self.planner.bronze
        records = SimpleNamespace(tables=SimpleNamespace(read=lambda: self.registered))
        patch.setattr(Lake, "for_writing", lambda root, **options: bronze.lake)
        patch.setattr(resync_module, "Bronze", lambda lake, pipeline: bronze)
        patch.setattr(resync_module, "Records", lambda lake: records)
        patch.setattr(resync_module, "_check_key_ranges", lambda *arguments: None)
        summary = run_resync(self.config, [str(name)], key_ranges=key_ranges)
        assert summary.tables == (name,)

    def plan(self, monkeypatch: pytest.MonkeyPatch) -> Plan:
        planned = self.planner.plan(self.end, self.manifest, None)
        applier = SimpleNamespace(
            bronze=self.planner.bronze,
            lake=self.planner.bronze.lake,
            planner=self.planner,
            plan=lambda: planned,
            shown=SimpleNamespace(manifests=SimpleNamespace(last=lambda: None)),  # no table rests
            records=SimpleNamespace(tables=SimpleNamespace(read=lambda: self.registered)),
        )
        with monkeypatch.context() as patch:
            patch.setattr(plan_module, "Applier", lambda spark, config: applier)
            patch.setattr(plan_module, "_table", lambda a, p, name, has_sql: PlannedTable(name, INVALID, {}))
            return make_plan(self.config)


class Logs:
    """The logs of silver tables, which nothing but pgdelta has written."""

    def __init__(self, offsets: Mapping[TableName, LSN]) -> None:
        self._offsets = offsets

    def check(self, name: TableName, entry: ManifestEntry | None) -> tuple[Any, TableChange]:
        return SimpleNamespace(offset=self._offsets.get(name, INVALID), version=-1), TableChange.SAME

    def __contains__(self, name: TableName) -> bool:
        return True

    def forget(self, name: TableName) -> None:
        raise AssertionError(f"the log of {name} is as expected")


def world(seed: int) -> World:
    choose, retype = random.Random(seed), random.Random(1000 + seed)
    end = BronzeOffset(9, LSN(choose.randint(50, 100)))
    manifest_lsn = LSN(choose.choice([0, choose.randint(1, end.lsn), end.lsn]))
    ids = iter(range(1, 1000))
    states: dict[TableName, list[CopyState]] = {}
    requests: list[CopyRequest] = []
    for name in NAMES:
        for _ in range(choose.choice([0, 0, 1, 1, 2, 3])):
            snapshot = SnapshotChunks(LSN(choose.randint(1, 120)), (), 0, ())
            state = choose.choice([READING, COMPLETE, COMPLETE, COMPLETE, ABANDONED, DROPPED])
            has_keys = state in (READING, COMPLETE) and choose.random() < 0.25
            request = CopyRequest.of(name, "", KEYS if has_keys else ())
            is_asked = choose.random() < 0.5
            requests += [request] if is_asked else []
            states.setdefault(name, []).append(
                CopyState(
                    next(ids),
                    name,
                    state,
                    1,
                    1,
                    1,
                    [snapshot],
                    (request.id,) if is_asked else (),
                    5,
                    sentence="The table was dropped." if state == DROPPED else None,
                    dropped_at=LSN(choose.randint(1, 120)) if state == DROPPED else INVALID,
                    key_ranges=KEYS if has_keys else (),
                )
            )
        if choose.random() < 0.2:
            requests.append(CopyRequest.of(name, "", choose.choice([(), KEYS])))
    gaps = []
    if choose.random() < 0.3:
        start = choose.randint(1, 90)
        gaps = [Gap(LSN(start), LSN(start + choose.randint(1, 30)), "A slot was lost.")]
    registered, entries, logs = {}, [], {}
    for name in NAMES:
        if choose.random() < 0.4:
            continue
        is_archived = choose.random() < 0.2
        place = "/".join([ROOT, "archive", *name]) if is_archived else path(name)
        # an archived table has no copy from which it could continue
        started = [None] if is_archived else [None, *(state.id for state in states.get(name, ()))]
        registered[name] = RegisteredTable(*name, place, 1, (), copy_id=choose.choice(started))
        if is_archived:
            continue
        logs[name] = LSN(choose.randint(1, int(end.lsn)))
        if manifest_lsn and choose.random() < 0.8:
            is_behind = choose.random() < 0.4
            applied = min(logs[name], manifest_lsn) if is_behind else manifest_lsn
            logs[name] = applied
            entries.append(ManifestEntry(*name, place, 1, applied, is_behind))
            if retype.random() < 0.3:
                requests.append(CopyRequest.after_type_change(name, LSN(retype.randint(1, 100))))
    relations = {
        number: SourceRelation(number, number, *name, "d", (), choose.randint(1, 110))
        for number, name in enumerate(NAMES)
        if choose.random() < 0.85
    }
    rules = tuple(
        TableRule(f"public.{name.table}", type_changes=retype.choice(["hold", "resync"]))
        for name in NAMES
        if choose.random() < 0.85
    )
    return World(
        Config(
            "shop",
            Source("", "shop", "shop", copy=choose.choice(["never", "initial"])),
            Storage(ROOT),
            Silver(),
            rules or (TableRule("public.a"),),
            "pipeline.yaml",
        ),
        end,
        Manifest(manifest_lsn, None, tuple(entries)),
        registered,
        CopyHistory({name: tuple(found) for name, found in states.items()}, tuple(gaps), tuple(requests)),
        relations,
        logs,
    )


@pytest.fixture(autouse=True)
def no_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "newest_commit", lambda *arguments: None)


@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_the_records_alone_stop_the_tables_that_apply_stops_by_them(seeds: range) -> None:
    for seed in seeds:
        found = world(seed)
        found.decide()
        lake = found.lake()
        assert set(lake.captured) == set(found.planner.tables)
        for name, table in found.planner.tables.items():
            recorded, row = decide(lake.recorded(name)), table.decision.row
            if {recorded.row, row} & STOPPING_RECORDS:
                assert recorded == table.decision


@pytest.mark.costly
@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_status_shows_that_a_table_waits_where_apply_waits(seeds: range) -> None:
    for seed in seeds:
        found = world(seed)
        found.decide()
        status, history = found.status(), found.history
        for name, table in found.planner.tables.items():
            shown, requests = status.get(name), history.open_requests.get(name)
            if table.step is Step.WAIT:
                assert shown is not None
                if shown.state == DETACHED:
                    assert why_detached(found.config, history, name, found.end)
                    continue
                assert shown.awaits_copy or shown.copy_share is not None or history.is_dropped(name)
                if shown.awaits_copy and not requests:
                    assert shown.sentence == table.decision.sentence
            elif shown is not None and shown.awaits_copy:
                assert requests  # a copy that does not stop the table
            if table.step.writes and shown is not None and shown.state == CURRENT:
                assert name in found.manifest.by_name
                assert name not in found.manifest.behind


@pytest.mark.costly
@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_a_paused_table_is_not_written_and_the_others_do_not_notice(seeds: range) -> None:
    for seed in seeds:
        found, before = world(seed), world(seed)
        before.decide()
        names = sorted(before.planner.tables)
        if not names:
            continue
        now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        found.pauses = (Pause(*names[seed % len(names)], None, LSN(1), None, now),)
        found.decide()
        paused = found.pauses[0].name
        for name, table in found.planner.tables.items():
            if name == paused:
                assert (table.step, table.decision.row) == (Step.PAUSE, "paused")
                shown = found.status().get(name)
                assert shown is None or shown.state in (PAUSED, COPYING, DETACHED)
                assert decide(found.lake().recorded(name)) == table.decision
            else:
                assert table.decision == before.planner.tables[name].decision


@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_status_shows_as_detached_what_apply_detaches(seeds: range) -> None:
    for seed in seeds:
        found = world(seed)
        in_manifest = found.manifest.by_name.keys()
        for name, table in found.status().items():
            reason = why_detached(found.config, found.history, name, found.end)
            if table.state == DETACHED:
                assert reason is not None or name not in in_manifest
            elif found.config.rule_for(name) is not None:
                assert reason is None


@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_plan_shows_each_table_that_apply_writes_or_stops(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        found = world(seed)
        has_batch = found.decide()
        shown = {table.name: table for table in found.plan(monkeypatch).tables}
        for name, table in found.planner.tables.items():
            assert (name in shown) == (table.step in STOPPED or (table.step.writes and has_batch))
            if table.step in STOPPED:
                [stop] = shown[name].steps
                assert (stop.holds, stop.sentence, stop.sql) == (True, table.decision.sentence, ())


@pytest.mark.costly
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("seeds", GROUPS, ids=str)
def test_only_a_partial_resync_stops_a_table_before_its_copy(
    seeds: range, has_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        found = world(seed)
        found.decide()
        before = dict(found.planner.tables)
        detached = detached_tables(found.config, found.history, before, found.end)
        wanted = [name for name in before if name in found.registered and name not in detached]
        if not wanted:
            continue
        name = wanted[0]
        with monkeypatch.context() as patch:
            found.request_resync(patch, name, KEYS if has_keys else ())
        found.decide()
        after, status = found.planner.tables[name], found.status().get(name)
        last = found.history.last(name)
        if last is None or last.state not in (DROPPED, READING):
            assert status is not None
            assert status.awaits_copy
        is_whole = not has_keys or before[name].decision.row != "keys awaited"
        requests = found.history.open_requests[name]
        if all(request.key_ranges for request in requests):
            assert after.facts.has_key_requests
            assert not after.step.writes or after.step is Step.START_FROM_COPY
        else:
            assert not after.facts.has_key_requests  # it follows the stream until its copy
            assert after.decision.row != "keys awaited"
        assert is_whole or after.decision == before[name].decision


def test_the_worlds_have_every_row_that_records_alone_decide() -> None:
    rows = set()
    states = set()
    for seed in SEEDS:
        found = world(seed)
        found.decide()
        rows |= {table.decision.row for table in found.planner.tables.values()}
        states |= {table.state for table in found.status().values()}
    assert rows >= STOPPING_RECORDS | {"copy complete", "keys complete", "up to date"}
    assert states >= {COPYING, CURRENT, DETACHED, "behind"}


def test_a_table_is_stopped_whatever_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(19)
    stopped = set()
    for _ in range(2000):
        facts = TableFacts(
            NAMES[0],
            LSN(100),
            LSN(choose.choice([0, 40, 100])),
            waits=choose.random() < 0.1,
            unreadable=choose.choice([None, None, "No such file."]),
            folder=choose.choice([None, None, "Table public.a is held: its folder is another's."]),
            gap=choose.choice([None, None, Gap(LSN(1), LSN(2), "A slot was lost.")]),
            has_key_requests=choose.random() < 0.2,
            is_replaced=choose.random() < 0.1,
            counts=choose.choice([None, {}, {"I": 1}]),
        )
        decision = decide(facts)
        if decision.step not in STOPPED:
            continue
        stopped.add(decision.row)
        table = plan_module.stopped_table(facts, decision)
        assert decision.sentence in (table.failure, *(step.sentence for step in table.steps))
        assert (table.failure is not None) == (decision.step is Step.FAIL)
        assert table.attention <= 1
    assert stopped == {
        "copy awaited",
        "log unreadable",
        "folder taken",
        "table replaced",
        "gap",
        "keys awaited",
    }


def test_a_log_that_was_not_read_is_where_the_manifest_is() -> None:
    found = world(0)
    lake = found.lake()
    for name in lake.captured:
        if name in found.manifest.by_name and name not in found.manifest.behind:
            assert lake.recorded(name).offset == found.manifest.lsn
        else:
            assert lake.table(name, LoggedOffset()).offset == INVALID
