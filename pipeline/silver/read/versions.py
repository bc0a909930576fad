"""The versions of a silver table: what a manifest records of one, and whether it can still be read.

A version number means other rows once a table was removed and created again: Delta's table id shows that. The
offset that a version records, and the next one after it, are compared with the manifest's LSN, which must lie
between them. A version may also be gone from the log, or its files removed by VACUUM.
"""

from collections.abc import Mapping
from urllib.parse import unquote, urlparse

from pipeline.delta.filesystem import path_exists
from pipeline.delta.log import commit_info, user_metadata_of
from pipeline.delta.native_commit import vector_file
from pipeline.delta.table import LakeTable
from pipeline.delta.table_log import Snapshot
from pipeline.delta.txn import TxnId, is_partial
from pipeline.errors import LakeError
from pipeline.metadata.manifests import ManifestEntry
from pipeline.protocol.lsn import LSN
from pipeline.silver.schema.swap import REBUILD
from pipeline.table_name import TableName


def version_and_id(table: LakeTable) -> tuple[int, str]:
    """Return the newest version of a table, and Delta's id of the table."""
    snapshot = table.snapshot()
    return snapshot.version, snapshot.table_id


def manifest_entry(
    table: LakeTable, name: TableName, applied: LSN, txn: TxnId, *, is_behind: bool
) -> ManifestEntry:
    """Return the manifest entry of a table whose newest version is complete up to an LSN."""
    version, table_id, offset = read_state(table, txn)
    return ManifestEntry(*name, table.path, version, applied, is_behind, table_id, offset)


def read_state(table: LakeTable, txn: TxnId) -> tuple[int, str, LSN | None]:
    """Return the newest version of a table, Delta's id of the table, and the offset that it records."""
    snapshot = table.snapshot()
    return snapshot.version, snapshot.table_id, table.offsets(snapshot).get(str(txn))


def why_unreadable(table: LakeTable, version: int, lsn: LSN, table_id: str) -> str | None:
    """Return why a version of a table cannot be read as of an LSN, None if it can."""
    newest = table.snapshot()
    if newest.version < 0:
        return f"There is no table in {table.path} any more."
    if version > newest.version or table_id not in ("", newest.table_id):  # early manifests have none
        return f"The table in {table.path} was removed and created again since."
    try:
        snapshot = table.snapshot(version)
        offsets = table.offsets(snapshot)
        next_offset = None if version == newest.version else _next_offset(table, version, offsets)
    except LakeError:
        return (
            f"Delta's log of {table.path} does not have version {version} any more: it is older than "
            "delta.logRetentionDuration, or files of the log are missing."
        )
    if not shows_lsn(offsets, lsn, next_offset):
        return f"Version {version} of {table.path} has rows of another commit."
    if version < newest.version and (file := _missing_file(table, snapshot, newest)):
        return (
            f"Version {version} of {table.path} lacks files, such as {file}: VACUUM removes what is older "
            "than delta.deletedFileRetentionDuration."
        )
    return None


def shows_lsn(offsets: Mapping[str, LSN], lsn: LSN, next_offset: int | None) -> bool:
    """Return whether a version that records these offsets can be that of a table as of an LSN.

    `offsets` are LSNs by application id; `next_offset` is the first one that a later commit recorded.
    Rebuilds and partial copies record times, which do not matter here.
    """
    if next_offset is not None and next_offset <= lsn:
        return False
    recorded = TxnId.all_of(offsets)
    is_newer = any(txn.advances and offset > lsn for txn, offset in recorded.items())
    return not is_newer and not is_partial(recorded)


def _next_offset(table: LakeTable, version: int, offsets: Mapping[str, LSN]) -> int | None:
    """Return the first offset that a commit after a version recorded, None if none did.

    A rebuild keeps the rows as of its offset, so the table shows that LSN before and after it.
    """
    before, now = TxnId.all_of(offsets), TxnId.all_of(table.offsets())
    if all(before.get(txn) == offset for txn, offset in now.items() if txn.advances):
        return None
    for _, actions in table.actions_after(version):
        actions = list(actions)
        recorded = next((action["txn"] for action in actions if "txn" in action), None)
        if recorded is not None and (txn := TxnId.parse(recorded["appId"])) is not None and txn.advances:
            is_rebuild = user_metadata_of(commit_info(actions)).get("operation") == REBUILD
            return int(recorded["version"]) + (1 if is_rebuild else 0)
    return None


def _missing_file(table: LakeTable, snapshot: Snapshot, newest: Snapshot) -> str | None:
    """Return a file of a version that does not exist; files that the table still has are not checked."""
    present = newest.files
    checked = set()
    for key, add in snapshot.files.items():
        if key in present:
            continue
        names = [unquote(add["path"])]
        vector = add.get("deletionVector")
        if vector and vector["storageType"] == "u":  # in a separate file
            names.append(vector_file(vector["pathOrInlineDv"]))
        for name in names:
            if name not in checked:
                checked.add(name)
                path = name if urlparse(name).scheme else f"{table.path}/{name}"
                if not path_exists(table.sessions, path):
                    return name
    return None
