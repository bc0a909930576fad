"""Detached tables: dropped at the source, no longer published, or no longer matched by the configuration.

The silver table stays in place or, with `silver.detached_tables: archive`, is moved to `{root}/archive`. In
both cases no manifest contains it any more, because apply does not update it. Rows are never deleted.
"""

import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import replace

from pipeline.bronze.log import BronzeOffset
from pipeline.config.config import Config
from pipeline.delta.fence import raise_if_fenced
from pipeline.delta.filesystem import is_part_of, is_within
from pipeline.delta.store.mirror import mirror_at
from pipeline.delta.table_log import local_path
from pipeline.errors import report_error
from pipeline.metadata.events import Event
from pipeline.metadata.registry import Records, RegisteredTable
from pipeline.metadata.silver_paths import archive_numbers, archived_table
from pipeline.progress import TableState
from pipeline.table_name import TableName

RETRY_SECONDS = 60.0
"""Seconds after which a table that could not be moved to the archive is tried again by the same run."""


class Archive:
    """Moves detached tables to the archive, in one run of apply."""

    def __init__(self, config: Config, records: Records, path: Callable[[TableName], str]) -> None:
        """Use the registry of `records`; `path` gives the path of a silver table."""
        self._config = config
        self._records = records
        self._path = path
        self._failed: dict[TableName, tuple[str, float]] = {}  # with the failure and its monotonic time
        self._removed: set[TableName] = set()  # tables in the archive that have no objects in silver

    def move(
        self,
        detached: Mapping[TableName, str],
        states: MutableMapping[TableName, TableState],
        point: BronzeOffset,
        unfinished: Collection[TableName],
    ) -> list[TableName]:
        """Move detached tables to the archive if so configured, and return the names of those moved.

        A table that is `unfinished` lacks changes from before it was detached, or is being written. One that
        cannot be moved gets a failure in `states`, and a later batch tries again.
        """
        for name in self._failed.keys() - detached.keys():
            self._clear(name, states)
        self._removed &= detached.keys()
        if not detached:
            return []
        registered = self._records.tables.read()
        tried: list[TableName] = []
        for name, reason in detached.items():
            if not self._is_due(name, states.get(name, TableState()), unfinished):
                continue
            try:
                if registered[name].path == self._path(name):
                    tried.append(name)
                    self._removed.discard(name)
                    self._move(registered, name, reason, point)
                elif name not in self._removed:
                    self._remove_copied(registered[name])
            except Exception as error:  # one table that cannot be moved stops no other
                raise_if_fenced(error, registered[name].path)
                failure = f"Its silver table could not be moved to the archive. {report_error(error)}"
                self._failed[name] = failure, time.monotonic()
                states[name] = replace(states.get(name, TableState()), failure=failure)
            else:
                self._removed.add(name)
                self._clear(name, states)
        after = self._records.tables.read() if tried else registered
        return [name for name in tried if after.get(name) != registered[name]]

    def _is_due(self, name: TableName, state: TableState, unfinished: Collection[TableName]) -> bool:
        rule = self._config.rule_for(name)
        policy = rule.detached_tables if rule else self._config.silver.detached_tables
        failure, failed_at = self._failed.get(name, (None, None))
        # Otherwise a later batch tries again.
        has_all = not (state.is_behind or name in unfinished) and state.failure in (None, failure)
        waits = failed_at is not None and time.monotonic() - failed_at < RETRY_SECONDS
        return policy == "archive" and has_all and not waits

    def _clear(self, name: TableName, states: MutableMapping[TableName, TableState]) -> None:
        failure, _ = self._failed.pop(name, (None, None))
        if failure is not None and name in states and states[name].failure == failure:
            states[name] = replace(states[name], failure=None)

    def _move(
        self,
        registered: Mapping[TableName, RegisteredTable],
        name: TableName,
        reason: str,
        point: BronzeOffset,
    ) -> None:
        """Move a table's folder to the archive, or continue that, and record its path."""
        lake = self._records.lake
        table = lake.table_at(registered[name].path)
        numbers = archive_numbers(lake, name, {table.path for table in registered.values()})
        to = archived_table(lake, name, numbers[-1] if numbers else -1)

        def record(done: str) -> None:
            self._records.tables.register(registered[name].detached(to.path))
            sentence = f"{reason} Its silver table {done}."
            self._records.events.record([Event(*name, point.lsn, "evolved", sentence)])

        if table.exists():
            if numbers and not is_part_of(to.path, table.path):
                to = archived_table(lake, name, max(int(point.lsn), numbers[-1] + 1))
            table.move(to.path, lambda: record(f"was moved to {to.path}"))
        else:  # the run that moved it may have ended before it recorded that
            record(f"was moved to {to.path}" if to.exists() else "does not exist any more")

    def _remove_copied(self, registered: RegisteredTable) -> None:
        """Remove what a move on a store, which ended early, left of a table's objects."""
        lake, folder = self._records.lake, self._path(registered.name)
        mirror = mirror_at(folder)
        if mirror is None or not is_within(registered.path, lake.root):
            return
        if not any(mirror.list(local_path(folder))):
            return
        is_copied = is_part_of(folder, registered.path)
        if is_copied and all(table.path != folder for table in self._records.tables.read().values()):
            lake.table_at(folder).remove()
