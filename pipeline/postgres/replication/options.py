"""What pgoutput is asked for: the options of START_REPLICATION and of the slot's SQL functions.

Protocol versions by major: 1 up to 13, 2 in 14, 3 in 15, 4 from 16 on. Options by first major: `binary`,
`messages` and `streaming` 14, `two_phase` 15, `origin` and parallel streaming 16. An option that the server
does not know is an error there, and `two_phase` changes the slot for good even when only peeked at: an option
is passed only where it is meant. What comes is decoded by what it is, not by what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.config.config import Protocol
from pipeline.errors import SourceError
from pipeline.protocol.lsn import LSN

Route = Literal["walsender", "sql"]
Streaming = Literal["off", "on", "parallel"]

#: Protocol version → the first major that has it.
_VERSIONS_SINCE = {1: 10, 2: 14, 3: 15, 4: 16}
#: Option, as it can stand in the file → the first major that has it, the first protocol version.
_NEEDS: Mapping[str, tuple[int, int]] = {
    "streaming: on": (14, 2),
    "streaming: parallel": (16, 4),
    "two_phase: true": (15, 3),
    "binary: true": (14, 1),
    "messages: true": (14, 1),
    "origin: none": (16, 1),
}


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What one server is asked for, all of which it has."""

    version: int
    streaming: Streaming
    two_phase: bool
    binary: bool
    messages: bool
    origin: Literal["any", "none"]

    def options(self, publication: str) -> dict[str, str]:
        """Return the options for one publication, names and values as the server takes them.

        The publication is quoted as an SQL identifier, because pgoutput parses a list of these.
        """
        options = {"proto_version": str(self.version), "publication_names": quote_identifier(publication)}
        if self.streaming != "off":
            options["streaming"] = self.streaming
        for name in ("two_phase", "binary", "messages"):
            if getattr(self, name):
                options[name] = "true"
        if self.origin != "any":
            options["origin"] = self.origin
        return options

    def __str__(self) -> str:
        """Return it as a person reads it."""
        words = [f"protocol version {self.version}", f"streaming {self.streaming}"]
        words += [name for name in ("two_phase", "binary", "messages") if getattr(self, name)]
        return ", ".join([*words, f"origin {self.origin}"])


def negotiate(server_version: int, protocol: Protocol, route: Route = "walsender") -> Negotiated:
    """Return what a server of libpq's version number (180004) is asked for.

    A default that the server lacks is off. What is written in the file and the server lacks, or that the
    written version of the protocol is too low for, is a SourceError. By default transactions are streamed in
    a replication session only: each look by SQL would stream again all that is still open.
    """
    major = server_version // 10000
    highest = max(version for version, since in _VERSIONS_SINCE.items() if since <= major)
    version = highest if protocol.version == "auto" else protocol.version
    if version > highest:
        raise SourceError(
            f"source.protocol.version {version} needs PostgreSQL {_VERSIONS_SINCE[version]} and the server is"
            f" {major}: write {highest}, or auto."
        )

    def has(option: str) -> bool:
        return all(mine >= needed for mine, needed in zip((major, version), _NEEDS[option], strict=True))

    asked = {
        "streaming: on": protocol.streaming == "on",
        "streaming: parallel": protocol.streaming == "parallel",
        "two_phase: true": protocol.two_phase,
        "binary: true": protocol.binary,
        "messages: true": protocol.messages and "messages" in protocol.written,
        "origin: none": protocol.origin == "none",
    }
    for option, is_asked in asked.items():
        if is_asked and not has(option):
            raise _refusal(option, major, version)
    streams: tuple[Streaming, ...] = ("parallel", "on") if route == "walsender" else ()
    best: Streaming = next((kind for kind in streams if has(f"streaming: {kind}")), "off")
    return Negotiated(
        version=version,
        streaming=best if protocol.streaming == "auto" else protocol.streaming,
        two_phase=protocol.two_phase,
        binary=protocol.binary,
        messages=protocol.messages and has("messages: true"),
        origin=protocol.origin,
    )


def _refusal(option: str, major: int, version: int) -> SourceError:
    first_major, first_version = _NEEDS[option]
    if major < first_major:
        return SourceError(
            f"source.protocol.{option} needs PostgreSQL {first_major} and the server is {major}: take the"
            " option out."
        )
    return SourceError(
        f"source.protocol.{option} needs protocol version {first_version} and source.protocol.version says"
        f" {version}: write {first_version} or auto there, or take the option out."
    )


def pgoutput_options(
    server_version: int, protocol: Protocol, publication: str, route: Route = "walsender"
) -> dict[str, str]:
    """Return the options that are negotiated with a server, for one publication."""
    return negotiate(server_version, protocol, route).options(publication)


def start_command(slot: str, start_lsn: LSN, options: Mapping[str, str]) -> bytes:
    """Return the replication command that starts the slot's stream."""
    pairs = ", ".join(f"{quote_identifier(name)} {quote_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn} ({pairs})".encode()


def quote_identifier(name: str) -> str:
    """Return `name` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """Return `value` as a string of the replication grammar, which knows no escape but the doubled quote."""
    return "'" + value.replace("'", "''") + "'"
