"""What real servers sent: the captures of `tests/captures`, as values."""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.protocol.lsn import LSN
from tests.support.captures.scenario import Scenario
from tests.support.captures.scenarios import SCENARIOS

FOLDER = Path(__file__).resolve().parents[1] / "captures"


@dataclass(frozen=True)
class Captured:
    """One message, with the LSN and xid that the server gave for it outside of it, if read by SQL."""

    lsn: LSN | None
    xid: int | None
    data: bytes


@dataclass(frozen=True)
class Capture:
    """All messages of one scenario on one server, with what its catalog said."""

    server_version: int
    scenario: Scenario
    relations: dict[int, str]
    types: dict[int, str]
    commit_times: dict[int, int]
    messages: tuple[Captured, ...]

    def __str__(self) -> str:
        """Name the capture in the output of a test."""
        return f"{self.server_version // 10000}: {self.scenario.name}"


def load_captures() -> list[Capture]:
    """Read every capture."""
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    captures = []
    for path in sorted(FOLDER.glob("postgres-*.json")):
        document = json.loads(path.read_text())
        for found in document["captures"]:
            captures.append(
                Capture(
                    document["server_version"],
                    scenarios[found["scenario"]],
                    {int(oid): name for oid, name in found["relations"].items()},
                    {int(oid): name for oid, name in found["types"].items()},
                    {int(xid): time for xid, time in found["commit_times"].items()},
                    tuple(
                        Captured(
                            LSN.parse(row["lsn"]) if row["lsn"] else None,
                            row["xid"],
                            bytes.fromhex(row["data"]),
                        )
                        for row in found["messages"]
                    ),
                )
            )
    return captures


CAPTURES = load_captures()


def _mark_streams(messages: tuple[Captured, ...]) -> list[tuple[bytes, bool]]:
    """Return each message with whether it is in a stream, where messages have another layout."""
    marked = []
    in_stream = False
    for message in messages:
        marked.append((message.data, in_stream))
        in_stream = {b"S": True, b"E": False}.get(message.data[:1], in_stream)
    return marked


MARKED = sorted({pair for capture in CAPTURES for pair in _mark_streams(capture.messages)})
"""Every different message that was captured, and whether it stood in a stream."""
MESSAGES = [data for data, in_stream in MARKED if not in_stream]
"""Every different message that was captured outside of streams."""
