"""What a manifest says of each silver table: the version that shows the source, and that it is only ours.

Between the manifest before and the version that this one names nobody else may have changed rows: what came
in the middle of a run is found here, before a reader is told of the version.
"""

from collections.abc import Callable
from dataclasses import replace

from pipeline.delta.table import Lake
from pipeline.delta.txn import TxnId
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.protocol.lsn import LSN
from pipeline.silver.foreign_commits import refuse_foreign_commits
from pipeline.silver.versions import manifest_entry, version_and_id
from pipeline.table_name import TableName


class ManifestEntries:
    """The entries of a pass's manifest, made from those of the one before; read by several threads."""

    def __init__(self, lake: Lake, manifest: Manifest, path: Callable[[TableName], str], txn: TxnId) -> None:
        self.before = manifest.by_name
        self._txn = txn
        self._lake = lake
        self._path = path

    def recorded_version(self, name: TableName) -> int:
        """Return the version that the manifest before has of a table, -1 where it has none of this one."""
        _, table_id = version_and_id(self._lake.table_at(self._path(name)))
        entry = self.before.get(name)
        return entry.version if entry and entry.table_id in (None, table_id) else -1

    def current(self, name: TableName, applied: LSN, since: int, *, is_behind: bool = False) -> ManifestEntry:
        """Return the entry of a table's newest version; raise LakeError where not all since is ours."""
        table = self._lake.table_at(self._path(name))
        entry = manifest_entry(table, name, applied, self._txn, is_behind=is_behind)
        refuse_foreign_commits(table, name, since)
        return entry

    def failed(self, name: TableName, applied: LSN) -> ManifestEntry:
        """Return the entry of a table that cannot be shown as of the manifest."""
        path = self._lake.table_at(self._path(name)).path
        if entry := self.before.get(name):
            return replace(entry, path=path, applied_lsn=applied, is_behind=True)
        return ManifestEntry(*name, path, -1, applied, True)
