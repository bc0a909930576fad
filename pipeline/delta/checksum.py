"""The checksum file of a version: its table's state, which need not be computed from the log then.

It follows from that of the version before and the commit's actions, without the list of files. It is left out
where that cannot be: nothing depends on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

# of those that Spark writes; the others are optional, and not known here
_KEPT = ("tableSizeBytes", "numFiles", "numMetadata", "numProtocol", "setTransactions", "domainMetadata")
_MAX_TRANSACTIONS = 1000  # more are left out, as by Spark with the settings of pgdelta


def checksum_file(log: str | Path, version: int) -> str:
    """Return the path of the checksum file of a version."""
    return os.path.join(log, f"{version:020}.crc")


def read_checksum(log: str | Path, version: int) -> dict[str, Any] | None:
    """Return the checksum of a version, None if there is none or it cannot be read."""
    try:
        with open(checksum_file(log, version), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found else None


def write_checksum(log: Path, version: int, actions: Sequence[Mapping[str, Any]], txn_id: str) -> None:
    """Write the checksum file of a version that was committed with these actions, if it can be told."""
    before = read_checksum(log, version - 1) if version else {}
    if before and before.get("txnId") != _txn_id(log, version - 1):
        return  # it is of a commit that was lost, or removed
    checksum = next_checksum(before, actions)
    if checksum is None:
        return
    temporary = log / f".{version:020}.crc.{uuid4()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps({"txnId": txn_id, **checksum}, separators=(",", ":")).encode())
        (log / f".{version:020}.crc.crc").unlink(missing_ok=True)  # Hadoop's checksum of an earlier one
        temporary.rename(checksum_file(log, version))
    finally:
        temporary.unlink(missing_ok=True)


def _txn_id(log: Path, version: int) -> str | None:
    """Return what a commit has in common with its checksum file, None if it has nothing or cannot be read."""
    try:
        with open(log / f"{version:020}.json", "rb") as file:
            found = json.loads(next((line for line in file if line.startswith(b'{"commitInfo":{')), b"{}"))
    except (OSError, ValueError):
        return None
    txn_id = found.get("commitInfo", {}).get("txnId")
    return txn_id if isinstance(txn_id, str) else None


def next_checksum(
    before: Mapping[str, Any] | None, actions: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the checksum after a commit, from that before it, which is empty for the first version.

    None if it does not follow from them.
    """
    if before is None:
        return None
    found: dict[str, Any] = {
        "tableSizeBytes": 0,
        "numFiles": 0,
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
    }
    if before:
        found = {name: before[name] for name in (*_KEPT, "metadata", "protocol") if name in before}
    transactions = found.get("setTransactions")
    by_id = {each["appId"]: each for each in transactions} if transactions is not None else {}
    for action in actions:
        if "add" in action:
            found["tableSizeBytes"] += action["add"]["size"]
            found["numFiles"] += 1
        elif "remove" in action:
            size = action["remove"].get("size")
            if size is None:
                return None
            found["tableSizeBytes"] -= size
            found["numFiles"] -= 1
        elif "txn" in action:
            by_id[action["txn"]["appId"]] = action["txn"]
        elif "metaData" in action:
            found["metadata"] = action["metaData"]
        elif "protocol" in action:
            found["protocol"] = action["protocol"]
        elif "domainMetadata" in action:
            return None
    if transactions is not None:
        found["setTransactions"] = list(by_id.values())
        if len(by_id) > _MAX_TRANSACTIONS:
            del found["setTransactions"]
    is_whole = {"tableSizeBytes", "numFiles", "metadata", "protocol"} <= found.keys()
    return found if is_whole and found["numFiles"] >= 0 <= found["tableSizeBytes"] else None
