"""State of one version of a table's log, as far as it is known."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.delta.log_retention import seconds_of


@dataclass(slots=True)
class LogState:
    """A version as it is known: everything but its files."""

    version: int = -1
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    # version and time of update by application id
    txns: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    timestamp: int = 0
    txn_id: str | None = None  # which the newest commit has in common with its checksum file
    source: str = ""  # the file that was read last
    identity: tuple[int, ...] = ()  # and what tells it from another file in its place

    @classmethod
    def of_checksum(cls, version: int, checksum: Mapping[str, Any]) -> LogState | None:
        """Return the state that the checksum file of a version has, None if it does not have all of it."""
        if not checksum.keys() >= {"metadata", "protocol", "setTransactions"}:
            return None
        txns = {
            txn["appId"]: (int(txn["version"]), txn.get("lastUpdated")) for txn in checksum["setTransactions"]
        }
        return cls(version, checksum["metadata"], checksum["protocol"], txns)

    def apply(self, action: Mapping[str, Any]) -> None:
        """Apply an action that is not about files."""
        if (txn := action.get("txn")) is not None:
            self.txns[txn["appId"]] = (int(txn["version"]), txn.get("lastUpdated"))
        elif (metadata := action.get("metaData")) is not None:
            self.metadata = metadata
        elif (protocol := action.get("protocol")) is not None:
            self.protocol = protocol

    def offsets(self) -> dict[str, int]:
        """Return the version of each application id that the table has not forgotten."""
        text = (self.metadata.get("configuration") or {}).get("delta.setTransactionRetentionDuration")
        if text is None:
            return {app_id: version for app_id, (version, _) in self.txns.items()}
        oldest = (time.time() - seconds_of(text, 0.0)) * 1000
        return {
            app_id: version
            for app_id, (version, updated) in self.txns.items()
            if updated is not None and updated > oldest
        }
