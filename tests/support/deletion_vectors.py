"""Deletion vectors as another writer commits them, without Spark."""

import struct
from collections.abc import Collection
from typing import Any

from pipeline.delta.definition import Definition
from pipeline.delta.native_commit import Action, Operation, commit_version, remove_action
from pipeline.delta.table import LakeTable

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_ROARING, _ARRAYS, _ARRAY_START = 1681511377, 12346, 16


def deletion_vector(places: Collection[int]) -> dict[str, Any]:
    """Return the vector, within the log, that deletes the rows at some places of a file below 65,536."""
    bitmap = struct.pack("<IIHHI", _ARRAYS, 1, 0, len(places) - 1, _ARRAY_START)
    bitmap += struct.pack(f"<{len(places)}H", *sorted(places))
    content = struct.pack("<IQI", _ROARING, 1, 0) + bitmap
    vector = {"storageType": "i", "pathOrInlineDv": _in_base85(content), "sizeInBytes": len(content)}
    return {**vector, "cardinality": len(places)}


def delete_by_vector(table: LakeTable, places: Collection[int], path: str | None = None) -> None:
    """Commit the deletion of rows at some places of a file (default: of each), as another program does."""
    snapshot = table.snapshot()
    feature = "deletionVectors"
    protocol = Definition.of(snapshot).protocol
    names = {key: sorted({*protocol.get(key, ()), feature}) for key in ("readerFeatures", "writerFeatures")}
    actions: list[Action] = [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **names}}]
    for add in snapshot.files.values():
        if path in (None, add["path"]):
            deleted = {**add, "deletionVector": deletion_vector(places), "dataChange": True}
            actions += [remove_action(add), {"add": deleted}]
    commit_version(table.folder, snapshot.version, actions, Operation("DELETE", {"predicate": "[]"}))


def _in_base85(content: bytes) -> str:
    text = ""
    for word in struct.unpack(f">{-(-len(content) // 4)}I", content + bytes(-len(content) % 4)):
        text += "".join(_DIGITS[word // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text
