"""Whether a version of a silver table is there, and still what a manifest says of it.

A version number means other rows once a table was removed and built again: Delta's id of the table tells.
What the version itself records is held against the manifest as well: its position, and that of the next
commit that has one. Between both lies the manifest's LSN.
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

_ENCODED_UUID = 20  # characters; what comes before is a folder


def version_and_id(table: LakeTable) -> tuple[int, str]:
    """Return the newest version of a table, and the id that Delta gave it when it was created."""
    snapshot = table.snapshot()
    return int(snapshot.version()), str(snapshot.metadata().id())


def manifest_entry(
    table: LakeTable, name: TableName, applied: LSN, txn: TxnId, *, is_behind: bool
) -> ManifestEntry:
    """Return what a manifest says of a table whose newest version is complete up to an LSN."""
    version, table_id, position = read_state(table, txn)
    return ManifestEntry(*name, table.path, version, applied, is_behind, table_id, position)


def read_state(table: LakeTable, txn: TxnId) -> tuple[int, str, LSN | None]:
    """Return the newest version of a table, Delta's id of it, and the offset that it records."""
    snapshot = table.snapshot()
    offset = table.offsets(snapshot).get(str(txn))
    return int(snapshot.version()), str(snapshot.metadata().id()), offset


def why_unreadable(table: LakeTable, version: int, lsn: LSN, table_id: str | None) -> str | None:
    """Say why a version of a table cannot be read as of an LSN; None where it can.

    `table_id` is the table's that was meant, None where nobody recorded it.
    """
    log = delta_log(table.spark, table.path)
    newest, found_id = version_and_id(table)
    if newest < 0:
        return f"there is no table in {table.path} any more"
    if version > newest or table_id not in (None, found_id):
        return f"the table in {table.path} was removed and built again since"
    none = table.spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    try:
        log.history().checkVersionExists(version, none, True, False)
        snapshot = log.getSnapshotAt(version, none, none, False)
        positions = table.offsets(snapshot)
        following = None if version == newest else _following(table, version, positions)
    except JVM_ERRORS:
        return (
            f"Delta's log of {table.path} does not have version {version} any more: it is older than "
            "delta.logRetentionDuration, or files of the log are gone"
        )
    if table_id is None and not any(txn.advances for txn in TxnId.all_of(positions)):
        return f"version {version} of {table.path} does not say up to where it is"
    if not shows_lsn(positions, lsn, following):
        return f"version {version} of {table.path} has rows of another commit"
    if version < newest and (file := _missing_file(table, snapshot)):
        return (
            f"version {version} of {table.path} lacks files, such as {file}: VACUUM removes what is older "
            "than delta.deletedFileRetentionDuration"
        )
    return None


def shows_lsn(positions: Mapping[str, LSN], lsn: LSN, following: int | None) -> bool:
    """Say whether positions that a version records can be those of a table as of an LSN.

    `positions` are LSNs by application id, `following` is the position that a later commit recorded first.
    What a rewrite and copied keys record is a time: they say nothing of a commit.
    """
    if following is not None and following <= lsn:
        return False
    found = TxnId.all_of(positions)
    for txn, position in found.items():
        if txn.advances and position > lsn:
            return False
        if txn.kind.is_part and position > found.get(txn.offset_id, INVALID):
            return False  # a part of a transaction, or of a copy, whose rest is not there yet
    return True


def resolve_path(path: str, name: TableName, root: str) -> str:
    """Return where a table that a manifest found at a path is now, be it that the lake moved.

    It is `silver/<schema>/<table>`, `silver/<target>` or `archive/<schema>/…` under the root, as it was under
    the one of then.
    """
    if path.startswith(f"{root}/"):
        return path
    segments = path.split("/")
    default = ["silver", *map(path_segment, name)]
    is_archived = segments[-3:-1] == ["archive", path_segment(name[0])]
    kept = segments[-3:] if is_archived or segments[-3:] == default else segments[-2:]
    return "/".join([root, *kept]) if kept[0] in ("silver", "archive") else path


def _following(table: LakeTable, version: int, positions: Mapping[str, LSN]) -> int | None:
    """Return the position that a commit behind a version recorded first, None where none did.

    A table that was written anew holds what it held before, be it up to a position that it had passed.
    """
    before, now = TxnId.all_of(positions), TxnId.all_of(table.offsets())
    if all(before.get(txn) == position for txn, position in now.items() if txn.advances):
        return None
    for _, actions in actions_after(table.spark, table.path, version, is_whole=True):
        found = {action_name(action): action for action in actions}
        recorded = found.get("SetTransaction")
        if recorded is not None and (txn := TxnId.parse(recorded.appId())) is not None and txn.advances:
            is_rewrite = user_metadata_of(found.get("CommitInfo")).get("operation") == REBUILD
            return int(recorded.version()) + (1 if is_rewrite else 0)
    return None


def _missing_file(table: LakeTable, snapshot: Any) -> str | None:
    """Return the name of a file that a version needs and that is gone; only what left since may be."""
    jvm: Any = table.spark._jvm
    files, _ = hadoop_files(table.spark, table.path)
    newest = delta_log(table.spark, table.path).unsafeVolatileSnapshot()
    left = _files(table, snapshot).subtract(_files(table, newest))
    seen = set()
    for row in left.toLocalIterator():
        names = [unquote(row.path)]
        if row.kind == "u":  # rows of the file that are deleted, listed in another one
            names.append(_vector_file(jvm, row.vector))
        for name in names:
            if name not in seen:
                seen.add(name)
                at = name if urlparse(name).scheme else f"{table.path}/{name}"
                if not files.exists(hadoop_path(table.spark, at)):
                    return name
    return None


def _files(table: LakeTable, snapshot: Any) -> DataFrame:
    frame = DataFrame(snapshot.allFiles().toDF(), table.spark)
    return frame.selectExpr(
        "path", "deletionVector.storageType AS kind", "deletionVector.pathOrInlineDv AS vector"
    )


def _vector_file(jvm: Any, text: str) -> str:
    codec = getattr(getattr(jvm.org.apache.spark.sql.delta.util, "Codec$Base85Codec$"), "MODULE$")
    prefix, encoded = text[:-_ENCODED_UUID], text[-_ENCODED_UUID:]
    name = f"deletion_vector_{codec.decodeUUID(encoded).toString()}.bin"
    return f"{prefix}/{name}" if prefix else name
