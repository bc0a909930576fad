"""Shared silver tables: one Delta table with the rows of many sources.

A source is a schema of a pipeline. Its rows are in a Delta table of their own, in a folder below the shared
table, and everything that writes silver writes that table. The shared table has the same data files, and each
belongs to a partition of the column `_source`. So a commit to the shared table exchanges files of one source,
without reading a row, and no write can touch the rows of another source. Commits of several processes exclude
each other, and one that loses is made again.

In a union the sources are a table and those that inherit from it (`inheritance: union`), and the columns are
those of that table. It creates the shared table; the others join it.

Such tables are on a file system of this machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote, unquote, urlparse
from uuid import uuid4

from pipeline.config.config import Config
from pipeline.config.tables import TABLE_PLACEHOLDER
from pipeline.delta.file_list import Add
from pipeline.delta.native_commit import Action, Operation, Reads, remove_action
from pipeline.delta.retry import ConflictError, SameWriteError
from pipeline.delta.sql import literal
from pipeline.delta.store.mirror import remove_files
from pipeline.delta.sync import sync_names
from pipeline.delta.table import Lake, LakeTable, path_segment
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import OURS, TxnId, TxnKind, is_partial
from pipeline.delta.vacuum import file_retention, find_unneeded, removed_since
from pipeline.errors import LakeError, report_error
from pipeline.metadata.silver_paths import DESCENDANTS, IN_LAKE, OF_UNION, OUTSIDE, PARENT
from pipeline.protocol.lsn import INVALID
from pipeline.silver.schema.shared_schema import (
    SOURCE_COLUMN,
    NotSharable,
    OtherFileNames,
    Part,
    added_fields,
    check_shared,
    derived_fields,
    shared_file,
    table_actions,
)
from pipeline.table_name import TableName

_FOLDERS = (IN_LAKE, OUTSIDE, *OF_UNION)
_OWNERS = "_owners"
_ATTEMPTS = 100  # of a commit: each that fails has let another writer's in
_OPERATION = "share"


def source_of(pipeline: str, schema: str, table: str = "") -> str:
    """Return the value of `_source` for a schema or table; names with a dot are quoted as in globs."""
    return f"{pipeline}.{str(TableName(schema, table)).removesuffix('.')}"


def silver_path(lake: Lake, config: Config, name: TableName) -> str:
    """Return the path of a table's silver table; one with a shared target is a folder below that table."""
    rule = config.rule_for(name)
    if rule is None or rule.target is None:
        return lake.path("silver", *name)
    if not rule.is_shared:
        return lake.path("silver", rule.target)
    target = path_segment(rule.target.replace(TABLE_PLACEHOLDER, name.table))
    source = source_of(config.pipeline, *(name if rule.is_union else name[:1]))
    # readers such as Polars take a folder a=b in the path of a file for a partition
    source = path_segment(source).replace("=", "%3D")
    if rule.is_union:
        folder = PARENT if name == rule.parent else DESCENDANTS
        return f"{lake.path('silver')}/{target}/{folder}/{source}"
    root = config.silver.shared_root
    if root is None:
        return f"{lake.path('silver')}/{target}/{IN_LAKE}/{source}"
    return f"{_address(root)}/{target}/{OUTSIDE}/{source}"


def _address(root: str) -> str:
    return root if urlparse(root).scheme else f"file:{os.path.abspath(root)}"


def shared_path(path: str) -> str | None:
    """Return the path of the shared table that a silver table belongs to, None if it is not shared."""
    segments = path.rsplit("/", 2)
    return segments[0] if len(segments) == 3 and segments[1] in _FOLDERS else None


def refresh_shared(table: LakeTable) -> bool:
    """Commit the files of a silver table to its shared table after a write that changed no row.

    Returns whether the shared table has them then, or there is none: only then may old files be removed.
    """
    shared = SharedTable.of(table)
    return shared is None or shared.refresh()


def unneeded_files(table: LakeTable, now: float) -> list[Path]:
    """Return the files of a table on this machine that no version within its retention needs.

    A shared table may show a file for longer than the table of the source has it, and its earlier versions
    are kept for as long. `now` is in seconds since 1970.
    """
    shared, snapshot = SharedTable.of(table), table.snapshot()
    if shared is None or not shared.table.exists():
        return find_unneeded(table.folder, snapshot, now)
    since = now - file_retention(snapshot)
    kept = removed_since(shared.table.folder, shared.table.snapshot(), since)
    return find_unneeded(table.folder, snapshot, now, kept)


def vacuum(table: LakeTable) -> int:
    """Remove the files that no version of a table that Spark writes needs; return how many.

    Spark does it if there are some, except for the table of a source: Spark does not know the shared table.
    """
    found = unneeded_files(table, time.time()) if table.local_path is not None else None
    if shared_path(table.path) is None and found != []:
        return table.vacuum()
    return remove_files(found or [])


class SharedTable:
    """The shared table to which the table of a source belongs."""

    def __init__(self, table: LakeTable) -> None:
        """Use the table of a source, whose path is below the shared table's."""
        path = shared_path(table.path)
        assert path is not None, table.path
        self.table = LakeTable(path, table.sessions)
        self._part = table
        self._folder, segment = table.path.split("/")[-2:]
        self.source = unquote(segment)

    @classmethod
    def of(cls, table: LakeTable) -> SharedTable | None:
        """Return the shared table of a silver table, None if it has none."""
        return cls(table) if shared_path(table.path) is not None else None

    def show(self, name: TableName, txn: TxnId) -> str | None:
        """Let the shared table show what the source's table has; return why it cannot, as a sentence.

        The commit records the offset of the source's table.
        """
        reason = self._commit(txn.of(TxnKind.SHARED, table=name))
        return reason and (f"Table {name} is held in {self.table.path}, which has its earlier rows. {reason}")

    def refresh(self) -> bool:
        """Let the shared table have the files that the source's table has now, with the same rows.

        Returns whether it has them.
        """
        return self._commit(None) is None and self.is_shown()

    def withdraw(self) -> None:
        """Remove the rows of the source from the shared table; the table of the source keeps them."""
        for _ in range(_ATTEMPTS):
            shared = self.table.snapshot()
            present = _SharedFiles.of(shared).by_source.get(self.source, {})
            if not present:
                return
            try:
                check_shared(shared)
            except NotSharable as error:
                raise LakeError(f"The rows of {self.source} stay in {self.table.path}. {error}") from None
            actions = [remove_action(add) for add in present.values()]
            reads = Reads(app_ids=[text for text in shared.offsets if self._is_ours(text)])
            try:
                self.table.commit(shared, actions, {}, self._operation(self._part.snapshot()), reads)
                return
            except (ConflictError, SameWriteError):
                continue
        raise self._overtaken()

    def is_shown(self) -> bool:
        """Return whether the shared table has exactly the files of the source's table."""
        shared, snapshot = self.table.snapshot(), self._part.snapshot()
        return not snapshot.exists or not _exchanged(shared, Part(self.source, snapshot))

    def _is_whole(self, snapshot: Snapshot) -> bool:
        """Return whether a version of a source's table has whole transactions only."""
        return snapshot.exists and not is_partial(TxnId.all_of(self._part.offsets(snapshot)))

    def _commit(self, txn: TxnId | None, *, has_joined: bool = True) -> str | None:
        """Commit what the shared table lacks, with the offset for an id; return why it cannot be shown.

        Without an id, a table that was not shown yet is left to a commit with one, if it `has_joined`. A
        union waits for its parent, whose first commit lets the others join.
        """
        for _ in range(_ATTEMPTS):
            shared = self.table.snapshot()  # first: what is read of the source's table is not older
            snapshot = self._part.snapshot()
            recorded = [text for text in shared.offsets if self._is_ours(text)]
            if not self._is_whole(snapshot) or (txn is None and not recorded and has_joined):
                return None
            if not shared.exists and self._folder == DESCENDANTS:
                return None
            part = self._part_of(self._part, snapshot)
            versions = {}
            if txn is not None:
                versions[str(txn)] = int(snapshot.offsets.get(str(txn.offset_id), INVALID))
            try:
                actions, reads = self._plan(shared, part)
            except NotSharable as error:
                return f"{error} {error.advice}"
            if not actions and all(shared.offsets.get(each) == lsn for each, lsn in versions.items()):
                return None
            reads = replace(reads, app_ids=recorded)
            try:
                self.table.commit(shared, actions, versions, self._operation(snapshot), reads)
                return None if shared.exists or self._folder != PARENT else self._join_descendants()
            except (ConflictError, SameWriteError):
                continue
        raise self._overtaken()

    def _join_descendants(self) -> str | None:
        """Let a new union show the tables that were written before; return why one cannot be shown."""
        joined = [SharedTable(table) for table in self._other_tables()]
        found = [(each.source, each._commit(None, has_joined=False)) for each in joined]
        return next((f"{source}: {reason}" for source, reason in found if reason), None)

    def _overtaken(self) -> ConflictError:
        return ConflictError(f"Other writers changed {self.table.path} {_ATTEMPTS} times. Run again.")

    def _is_ours(self, text: str) -> bool:
        txn = TxnId.parse(text)
        if txn is None or txn.table is None:
            return False
        names = txn.table if self._folder in OF_UNION else txn.table[:1]
        return self.source == source_of(txn.pipeline, *names)

    def _plan(self, shared: Snapshot, part: Part) -> tuple[list[Action], Reads]:
        """Return the actions by which the shared table shows a source's table; raise NotSharable.

        Where its columns contradict those of the shared table, the tables of all sources decide: if they
        agree, the files of all of them are exchanged with the columns.
        """
        check_shared(shared)
        part.check()
        try:
            fields = added_fields(shared, part)
        except NotSharable as error:
            others = list(self._others())
            try:
                fields = derived_fields(shared, part, others)
                for other in others:
                    other.check()
                    if not self._is_whole(other.snapshot):
                        raise error
            except OtherFileNames:
                raise
            except NotSharable:
                raise error from None
            parts = [part, *others]
            exchanged = [action for each in parts for action in _exchanged(shared, each)]
            return table_actions(shared, fields, parts) + exchanged, Reads(whole_table=True)
        return table_actions(shared, fields, [part]) + _exchanged(shared, part), Reads()

    def _others(self) -> Iterator[Part]:
        """Yield what the other sources have."""
        for table in self._other_tables():
            if (snapshot := table.snapshot()).exists:
                yield self._part_of(table, snapshot)

    def _other_tables(self) -> Iterator[LakeTable]:
        """Yield the tables of the other sources, of a union without those that left it."""
        for folder in _FOLDERS:
            path = self.table.folder / folder
            for segment in sorted(os.listdir(path)) if path.is_dir() else ():
                table = LakeTable(f"{self.table.path}/{folder}/{segment}", self.table.sessions)
                if table.path != self._part.path:
                    yield table

    def _part_of(self, table: LakeTable, snapshot: Snapshot) -> Part:
        folder, segment = table.path.split("/")[-2:]
        return Part(unquote(segment), snapshot, adds_columns=folder != DESCENDANTS)

    def _operation(self, snapshot: Snapshot) -> Operation:
        metadata = {OURS: 1, "operation": _OPERATION, "source": self.source, "version": snapshot.version}
        predicate = json.dumps([f"{SOURCE_COLUMN} = {literal(self.source)}"])
        return Operation("WRITE", {"mode": "Overwrite", "predicate": predicate}, {}, json.dumps(metadata))


def _exchanged(shared: Snapshot, part: Part) -> list[Action]:
    """Return the actions that exchange the files of a source for those that its table has."""
    below = "/".join(quote(segment) for segment in part.snapshot.path.rstrip("/").split("/")[-2:])
    present = _SharedFiles.of(shared).by_source.get(part.source, {})
    wanted = {f"{below}/{add['path']}": add for add in part.snapshot.files.values()}
    removed = [remove_action(add) for key, add in present.items() if key not in wanted]
    added = [
        {"add": shared_file(path, add, part.source)} for path, add in wanted.items() if path not in present
    ]
    return removed + added


class _SharedFiles:
    """The files of a version of a shared table by source and key; kept for the newest version.

    A file that has a deletion vector has another key than its path.
    """

    _newest: ClassVar[dict[str, _SharedFiles]] = {}

    def __init__(self, shared: Snapshot) -> None:
        self.state = shared.version, shared.table_id
        self.by_source: dict[str, dict[str, Add]] = {}
        for key, add in shared.files.items():
            source = str((add.get("partitionValues") or {}).get(SOURCE_COLUMN))
            self.by_source.setdefault(source, {})[key] = add

    @classmethod
    def of(cls, shared: Snapshot) -> _SharedFiles:
        found = cls._newest.get(shared.path)
        if found is None or found.state != (shared.version, shared.table_id):
            found = cls._newest[shared.path] = cls(shared)
        return found


class SharedTables:
    """The shared tables that a pipeline writes.

    A shared table has one lake for each pipeline, which is known by its registry: two lakes whose pipelines
    have one name would write the same rows.
    """

    def __init__(self, lake: Lake, config: Config, txn: TxnId) -> None:
        self._lake = lake
        self._config = config
        self._txn = txn
        self._claimed: set[str] = set()

    def show_all(self, paths: Mapping[TableName, str], detached: Collection[TableName]) -> None:
        """Let shared tables show what a command wrote that ended before it could let them.

        The rows of a table that has another target now leave the shared table of the former one, and those of
        a `detached` table its union. `paths` are those of the registered tables.
        """
        left = self._left_unions(paths, detached)
        for name, path in paths.items():
            if shared_path(path) is None:
                continue
            try:
                if self._has_left(name, path) or name in left:
                    self._withdraw(path)
                else:
                    self.show(name, path)
            except Exception as error:  # one table that cannot be read stops no other
                report_error(error)

    def _has_left(self, name: TableName, path: str) -> bool:
        """Return whether a table has another target than the shared table to which its path belongs.

        What lies outside of the lake and of the configured shared root may belong to a copy of this lake.
        """
        if self._config.rule_for(name) is None or path == silver_path(self._lake, self._config, name):
            return False
        root = self._config.silver.shared_root
        roots = [self._lake.root, *([_address(root)] if root else [])]
        return any(path.startswith(f"{each}/") for each in roots)

    def withdraw(self, paths: Mapping[TableName, str], detached: Collection[TableName]) -> None:
        """Remove the rows of detached tables from their unions; `paths` are those of registered tables."""
        for name in self._left_unions(paths, detached):
            try:
                self._withdraw(paths[name])
            except Exception as error:  # likewise
                report_error(error)

    def _withdraw(self, path: str) -> None:
        self.check(path)
        SharedTable(self._lake.table_at(path)).withdraw()

    def _left_unions(
        self, paths: Mapping[TableName, str], detached: Collection[TableName]
    ) -> list[TableName]:
        """Return the detached tables of unions whose parent is followed: one that is not stays as it is."""
        folders = {name: path.split("/")[-2] for name, path in paths.items()}
        followed = {
            shared_path(paths[name])
            for name, folder in folders.items()
            if folder == PARENT and name not in detached
        }
        left = [name for name in detached if folders.get(name) == DESCENDANTS]
        return [name for name in left if shared_path(paths[name]) in followed]

    def show(self, name: TableName, path: str) -> str | None:
        """Let the shared table of a silver table, if it has one, show its rows; return why it cannot."""
        shared = SharedTable.of(self._lake.table_at(path))
        return None if shared is None else shared.show(name, self._txn)

    def check(self, path: str) -> None:
        """Raise LakeError if this lake may not write the shared table of a silver table, if it has one."""
        shared = shared_path(path)
        if shared is None or shared in self._claimed:
            return
        if self._lake.table_at(shared).local_path is None:
            raise LakeError(
                f"{shared} would be a table of several sources, and these need a file system of this "
                "machine. Give the tables targets without {table}."
            )
        owner = self._owner(shared)
        if owner.exists() and owner.read_text(encoding="utf-8") != self._lake_id:
            raise LakeError(
                f"{shared} has rows of another lake whose pipeline is named {self._config.pipeline} too. "
                f"Rename one of the pipelines, or remove {owner} if that lake does not exist any more."
            )

    def claim(self, path: str) -> None:
        """Claim the shared table of a silver table, if it has one, for this lake; raise LakeError."""
        self.check(path)
        shared = shared_path(path)
        if shared is not None and shared not in self._claimed:
            _create(self._owner(shared), self._lake_id)
            self.check(path)
            self._claimed.add(shared)

    @property
    def _lake_id(self) -> str:
        return self._lake.table("_pgdelta", "tables").snapshot().table_id

    def _owner(self, shared: str) -> Path:
        return self._lake.table_at(shared).folder / _OWNERS / path_segment(self._config.pipeline)


def _create(path: Path, text: str) -> None:
    """Create a file with a text unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid4()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
        sync_names(path.parent)
