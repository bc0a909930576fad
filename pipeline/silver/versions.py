"""The versions of a silver table: what a manifest records of one, and whether it can still be read.

A version number means other rows once a table was removed and created again: Delta's table id shows that. The
offset that a version records, and the next one after it, are compared with the manifest's LSN, which must lie
between them. A version may also be gone from the log, or its files removed by VACUUM.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from pipeline.delta.filesystem import hadoop_files, hadoop_path
from pipeline.delta.log import JVM_ERRORS, action_name, actions_after, delta_log, user_metadata_of
from pipeline.delta.table import LakeTable, path_segment
from pipeline.delta.txn import TxnId
from pipeline.metadata.manifests import ManifestEntry
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.swap import REBUILD
from pipeline.table_name import TableName

_ENCODED_UUID = 20  # characters; a folder may precede it


def version_and_id(table: LakeTable) -> tuple[int, str]:
    """Return the newest version of a table, and Delta's id of the table."""
    snapshot = table.snapshot()
    return int(snapshot.version()), str(snapshot.metadata().id())


def manifest_entry(
    table: LakeTable, name: TableName, applied: LSN, txn: TxnId, *, is_behind: bool
) -> ManifestEntry:
    """Return the manifest entry of a table whose newest version is complete up to an LSN."""
    version, table_id, offset = read_state(table, txn)
    return ManifestEntry(*name, table.path, version, applied, is_behind, table_id, offset)


def read_state(table: LakeTable, txn: TxnId) -> tuple[int, str, LSN | None]:
    """Return the newest version of a table, Delta's id of the table, and the offset that it records."""
    snapshot = table.snapshot()
    offset = table.offsets(snapshot).get(str(txn))
    return int(snapshot.version()), str(snapshot.metadata().id()), offset


def why_unreadable(table: LakeTable, version: int, lsn: LSN, table_id: str) -> str | None:
    """Return why a version of a table cannot be read as of an LSN, None if it can."""
    log = delta_log(table.spark, table.path)
    newest, found_id = version_and_id(table)
    if newest < 0:
        return f"There is no table in {table.path} any more."
    if version > newest or table_id != found_id:
        return f"The table in {table.path} was removed and created again since."
    none = table.spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    try:
        log.history().checkVersionExists(version, none, True, False)
        snapshot = log.getSnapshotAt(version, none, none, False)
        offsets = table.offsets(snapshot)
        next_offset = None if version == newest else _next_offset(table, version, offsets)
    except JVM_ERRORS:
        return (
            f"Delta's log of {table.path} does not have version {version} any more: it is older than "
            "delta.logRetentionDuration, or files of the log are missing."
        )
    if not shows_lsn(offsets, lsn, next_offset):
        return f"Version {version} of {table.path} has rows of another commit."
    if version < newest and (file := _missing_file(table, snapshot)):
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
    for txn, offset in recorded.items():
        if txn.advances and offset > lsn:
            return False
        if txn.kind.is_part and offset > recorded.get(txn.offset_id, INVALID):
            return False  # only a part of a transaction, or of a copy
    return True


def resolve_path(path: str, name: TableName, root: str) -> str:
    """Return the current path, under the lake's root, of a table that was recorded at a path.

    The path ends in `silver/<schema>/<table>`, `silver/<target>` or `archive/<schema>/…`, after the former
    root.
    """
    if path.startswith(f"{root}/"):
        return path
    segments = path.split("/")
    default = ["silver", *map(path_segment, name)]
    is_archived = segments[-3:-1] == ["archive", path_segment(name[0])]
    kept = segments[-3:] if is_archived or segments[-3:] == default else segments[-2:]
    return "/".join([root, *kept]) if kept[0] in ("silver", "archive") else path


def _next_offset(table: LakeTable, version: int, offsets: Mapping[str, LSN]) -> int | None:
    """Return the first offset that a commit after a version recorded, None if none did.

    A rebuild keeps the rows as of its offset, so the table shows that LSN before and after it.
    """
    before, now = TxnId.all_of(offsets), TxnId.all_of(table.offsets())
    if all(before.get(txn) == offset for txn, offset in now.items() if txn.advances):
        return None
    for _, actions in actions_after(table.spark, table.path, version, is_whole=True):
        by_name = {action_name(action): action for action in actions}
        recorded = by_name.get("SetTransaction")
        if recorded is not None and (txn := TxnId.parse(recorded.appId())) is not None and txn.advances:
            is_rebuild = user_metadata_of(by_name.get("CommitInfo")).get("operation") == REBUILD
            return int(recorded.version()) + (1 if is_rebuild else 0)
    return None


def _missing_file(table: LakeTable, snapshot: Any) -> str | None:
    """Return a file of a version that does not exist; files that the table still has are not checked."""
    jvm: Any = table.spark._jvm
    files, _ = hadoop_files(table.spark, table.path)
    newest = delta_log(table.spark, table.path).unsafeVolatileSnapshot()
    removed = _files(table, snapshot).subtract(_files(table, newest))
    checked = set()
    for row in removed.toLocalIterator():
        names = [unquote(row.path)]
        if row.kind == "u":  # a deletion vector in a separate file
            names.append(_vector_file(jvm, row.vector))
        for name in names:
            if name not in checked:
                checked.add(name)
                path = name if urlparse(name).scheme else f"{table.path}/{name}"
                if not files.exists(hadoop_path(table.spark, path)):
                    return name
    return None


def _files(table: LakeTable, snapshot: Any) -> DataFrame:
    frame = DataFrame(snapshot.allFiles().toDF(), table.spark)
    return frame.selectExpr(
        "path", "deletionVector.storageType AS kind", "deletionVector.pathOrInlineDv AS vector"
    )


def _vector_file(jvm: Any, text: str) -> str:
    codec = getattr(getattr(jvm.org.apache.spark.sql.delta.util, "Codec$Base85Codec$"), "MODULE$")
    folder, encoded = text[:-_ENCODED_UUID], text[-_ENCODED_UUID:]
    name = f"deletion_vector_{codec.decodeUUID(encoded).toString()}.bin"
    return f"{folder}/{name}" if folder else name
