"""Silver brought up to what bronze holds, table by table, each from the position in its own log.

A table that failed, was held or came later catches up by itself. Tables are applied side by side; one that
fails does not stop the others.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from pipeline.config import Config
from pipeline.errors import LakeError, PgdeltaError, sentence_of
from pipeline.lake.arrivals import Point
from pipeline.lake.bronze import Bronze, TableName, TableSurvey
from pipeline.lake.records import Event, Manifest, ManifestEntry, Records, Registered
from pipeline.lake.session import own_session
from pipeline.lake.silver import SilverTable
from pipeline.lake.tables import Lake
from pipeline.operate.summaries import ApplyProgress, ApplySummary, TableState
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.relation import SourceRelation

TABLES_AT_ONCE = 3
RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Pending:
    """What bronze holds up to a point and silver does not: per table its floor and its changes."""

    point: Point
    manifest: Manifest
    registered: Mapping[TableName, Registered]
    floors: Mapping[TableName, LSN]
    surveys: Mapping[TableName, list[TableSurvey]]

    def floor(self, name: TableName) -> LSN:
        """Return how far a table is applied."""
        return self.floors.get(name, self.manifest.lsn)


class Applier:
    """Brings silver tables up to what bronze holds; one pass at a time."""

    def __init__(self, spark: SparkSession, config: Config, progress: ApplyProgress | None = None) -> None:
        self.lake = Lake(spark, config.storage.root)
        self.bronze = Bronze(self.lake, config.pipeline)
        self.records = Records(self.lake)
        self.summary = ApplySummary(config.pipeline)
        self.error: BaseException | None = None
        self._lock = threading.RLock()
        self._is_closed = False
        self._spark = spark
        self._config = config
        self._progress = progress
        self.manifest: Manifest | None = None
        self._since: Point | None = None  # where this process wrote the manifest
        self._is_ready = False
        self._writers: dict[TableName, SilverTable] = {}
        self._checked: set[TableName] = set()  # whose position this process has seen
        self.relations: dict[int, SourceRelation] = {}
        self._relations_version = -1
        self._passed_at = 0.0
        self._unreadable: set[TableName] = set()

    def apply_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Take a micro-batch as the sign that bronze has grown; after `close` the next run will see to it."""
        del batch, batch_id
        with self._lock:
            if self._is_closed:
                return
            try:
                self.apply_pending()
            except BaseException as error:
                self.error = error
                raise

    def close(self) -> None:
        """Wait for the batch under way and take no other: Spark would wait for it without end."""
        with self._lock:
            self._is_closed = True

    def retry_when_due(self) -> None:
        """Try tables that are behind again while bronze stands still."""
        is_behind = self.manifest is not None and any(e.is_behind for e in self.manifest.entries)
        if is_behind and time.monotonic() - self._passed_at >= RETRY_SECONDS:
            self.apply_pending()

    def apply_pending(self, upto: Point | None = None) -> ApplySummary:
        """Apply what bronze holds, or holds up to a point, and return the summary so far."""
        with self._lock:
            point = upto or self.bronze.point()
            if point is not None:
                self._pass(point)
        return self.summary

    def _pass(self, point: Point) -> None:
        self._passed_at = time.monotonic()
        if not self._is_ready:
            self.records.ensure()
            self.manifest = self.records.last_manifest()
            self._is_ready = True
        manifest = self.manifest or Manifest(INVALID)
        pending = self._survey(point, manifest)
        if pending is None:
            self.summary.position = manifest.lsn
            return
        surveys = pending.surveys
        versions = {(e.schema_name, e.table_name): e.version for e in manifest.entries}

        def apply(name: TableName) -> TableState:
            return self._apply_table(name, pending, versions.get(name, -1))

        with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="apply") as pool:
            states = dict(zip(surveys, pool.map(apply, surveys), strict=True))
        for name, state in states.items():
            before = self.summary.tables.get(name, TableState())
            state.changes += before.changes
            state.misfits += before.misfits
            self.summary.tables[name] = state
        self._record(point, manifest, surveys)
        if self._progress:
            self._progress(self.summary)

    def pending(self) -> Pending | None:
        """Return what the next pass would apply, None where there is nothing; changes nothing."""
        point = self.bronze.point() if self.bronze.changes.exists() else None
        if point is None:
            return None
        with self._lock:
            return self._survey(point, self.records.last_manifest() or Manifest(INVALID))

    def _survey(self, point: Point, manifest: Manifest) -> Pending | None:
        registered = self.records.registered()
        floors = self._floors(manifest, registered, point)
        if point.lsn <= manifest.lsn and not any(floor < point.lsn for floor in floors.values()):
            return None
        self.bronze.look_at_arrivals(self._since, point)
        surveys = {
            name: found
            for name, found in self.bronze.survey(point, manifest.lsn, floors).items()
            if self._config.rule_for(*name) is not None and name not in self._unreadable
        }
        return Pending(point, manifest, registered, floors, surveys)

    def _floors(
        self, manifest: Manifest, registered: Mapping[TableName, Registered], point: Point
    ) -> dict[TableName, LSN]:
        """Return the floor of each table that does not stand at the manifest: behind, ahead, or new."""
        floors: dict[TableName, LSN] = {}
        self._unreadable.clear()
        behind = {(e.schema_name, e.table_name): e.applied_lsn for e in manifest.entries if e.is_behind}
        for name in self._captured_tables(point):
            if name in registered and name not in behind and name in self._checked:
                continue
            try:
                position = self.lake.table_at(self._path(name)).position(self.bronze.app_id) or INVALID
            except Exception as error:  # one table that cannot be read stops no other
                applied = behind.get(name, INVALID)
                self.summary.tables[name] = TableState(applied=applied, failure=sentence_of(error))
                self._checked.discard(name)
                self._unreadable.add(name)
                continue
            self._checked.add(name)
            if name not in registered:
                if position > INVALID or manifest.lsn > INVALID:
                    floors[name] = position
            else:
                # A table that was removed has no position: it is built again from the beginning.
                is_whole = position > INVALID and name not in behind
                floor = max(position, manifest.lsn) if is_whole else position
                if floor != manifest.lsn:
                    floors[name] = floor
        return floors

    def _captured_tables(self, point: Point) -> list[TableName]:
        """Return the tables that bronze knows up to the point and the configuration wants."""
        version = self.bronze.relations.version()
        if version != self._relations_version:
            self.relations = self.bronze.source_relations()
            self._relations_version = version
        relations = (r for r in self.relations.values() if r.lsn <= point.lsn)
        names = {(relation.schema_name, relation.table_name) for relation in relations}
        return [name for name in sorted(names) if self._config.rule_for(*name) is not None]

    def _path(self, name: TableName) -> str:
        rule = self._config.rule_for(*name)
        target = rule.target if rule else None
        return self.lake.path("silver", target) if target else self.lake.path("silver", *name)

    def _refuse_path(self, name: TableName) -> None:
        """Refuse a table whose folder would lie in another's, where VACUUM would take its files away."""
        rule = self._config.rule_for(*name)
        if rule and rule.target is None and any(name[0] == other.target for other in self._config.tables):
            raise LakeError(
                f"{'.'.join(name)} would lie in the folder of the silver table {name[0]}, which is another "
                "table's target: give one of them another target"
            )

    def writer(self, name: TableName) -> SilverTable:
        """Return what writes a table, in a session of its own."""
        if name not in self._writers:
            rule = self._config.rule_for(*name)
            assert rule is not None
            self._writers[name] = SilverTable(
                own_session(self._spark),
                self.bronze,
                self.records,
                name,
                self._path(name),
                rule,
                metadata_columns=self._config.silver.metadata_columns,
            )
        return self._writers[name]

    def _apply_table(self, name: TableName, pending: Pending, version: int) -> TableState:
        found, registered, floor = pending.surveys[name], pending.registered.get(name), pending.floor(name)
        changes = sum(sum(s.counts.values()) for s in found)
        if registered is None:
            self._note_rename(name, found[0])
        try:
            self._refuse_path(name)
            writer = self.writer(name)
            writer.bronze.arrivals = self.bronze.arrivals
            writer.refuse_foreign_commits(version)
            surveys = [s.survey for s in found]
            written = writer.apply(surveys, self.relations, registered, pending.point, floor)
        except PgdeltaError as error:
            return TableState(applied=floor, failure=str(error))
        except Exception as error:
            return TableState(applied=floor, failure=sentence_of(error))
        if written.held:
            self.records.record_events([Event(*name, written.applied, written.kind, written.held)])
        return TableState(written.applied, changes if not written.held else 0, written.misfits, written.held)

    def _note_rename(self, name: TableName, found: TableSurvey) -> None:
        """Say of a table that has a new name that its older rows are under the old one."""
        oid = self.relations[found.survey.version].oid
        for other, table in self.records.registered().items():
            if table.relation_id == oid and other != name:
                sentence = (
                    f"{'.'.join(other)} was renamed to {'.'.join(name)}: rows from before are in the silver "
                    "table of the old name, and only a resync brings them to the new one"
                )
                self.records.record_events([Event(*name, LSN(found.survey.first[0]), "resync", sentence)])

    def _record(
        self, point: Point, manifest: Manifest, surveys: Mapping[TableName, list[TableSurvey]]
    ) -> None:
        """Write the manifest of this pass: which version of each table shows which LSN."""
        entries = {(e.schema_name, e.table_name): e for e in manifest.entries}
        for name in surveys:
            state = self.summary.tables[name]
            table = self.lake.table_at(self._path(name))
            is_behind = bool(state.held or state.failure)
            version = entries[name].version if state.failure and name in entries else -1
            version = version if state.failure else table.version()
            entries[name] = ManifestEntry(*name, table.path, version, state.applied, is_behind)
        for name in self._unreadable & entries.keys():
            entries[name] = replace(entries[name], is_behind=True)
        carried = [
            e
            if e.is_behind
            else ManifestEntry(e.schema_name, e.table_name, e.path, e.version, point.lsn, False)
            for e in entries.values()
        ]
        times = [s.commit_time for found in surveys.values() for s in found if s.commit_time is not None]
        commit_time = max(times, default=manifest.commit_time)
        self.manifest = Manifest(point.lsn, commit_time, tuple(carried))
        self.records.record_manifest(self.manifest)
        self._since = point
        self.summary.position = point.lsn
