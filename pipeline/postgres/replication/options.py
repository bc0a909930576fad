"""The options of pgoutput, for START_REPLICATION and for the slot's SQL functions.

Protocol versions by major: 1 up to 13, 2 in 14, 3 in 15, 4 from 16 on. Options by first major: `binary`,
`messages` and `streaming` 14, `two_phase` 15, `origin` and parallel streaming 16. A server rejects an option
that it does not know, and `two_phase` changes the slot permanently even if it is only peeked at: options are
therefore passed only if they differ from the default. The decoder does not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from pipeline.config.config import Protocol
from pipeline.errors import SourceError
from pipeline.postgres.sql_text import quote_identifier, quote_literal
from pipeline.protocol.lsn import LSN

#: The output plugin.
PLUGIN = "pgoutput"

Route = Literal["walsender", "sql"]
Streaming = Literal["off", "on", "parallel"]

#: Protocol version → its first major.
_VERSION_SINCE = {1: 10, 2: 14, 3: 15, 4: 16}
#: Option, as written in the configuration → its first major, its first protocol version.
_SINCE: Mapping[str, tuple[int, int]] = {
    "streaming: on": (14, 2),
    "streaming: parallel": (16, 4),
    "two_phase: true": (15, 3),
    "binary: true": (14, 1),
    "messages: true": (14, 1),
    "origin: none": (16, 1),
}


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The options for one server, which supports all of them."""

    version: int
    streaming: Streaming
    two_phase: bool
    binary: bool
    messages: bool
    origin: Literal["any", "none"]

    def options(self, publication: str) -> dict[str, str]:
        """Return the options for one publication by name, as the server expects them.

        The publication is quoted as an SQL identifier, because pgoutput parses a list of identifiers.
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
        """Return the options for a person, such as `protocol version 4, streaming on, origin any`."""
        words = [f"protocol version {self.version}", f"streaming {self.streaming}"]
        words += [name for name in ("two_phase", "binary", "messages") if getattr(self, name)]
        return ", ".join([*words, f"origin {self.origin}"])


def negotiate(server_version: int, protocol: Protocol, route: Route = "walsender") -> Negotiated:
    """Return the options for a server of libpq's version number (180004).

    A default that the server does not support is off. Raises SourceError for an option that is written in the
    configuration and that the server, or the written protocol version, does not support. By default,
    transactions are streamed by the walsender route only: each poll by SQL would stream all open ones again.
    """
    major = server_version // 10000
    highest = max(version for version, since in _VERSION_SINCE.items() if since <= major)
    version = highest if protocol.version == "auto" else protocol.version
    if version > highest:
        raise SourceError(
            f"source.protocol.version {version} needs PostgreSQL {_VERSION_SINCE[version]}, but the server is"
            f" {major}. Set it to {highest} or auto."
        )

    def has(option: str) -> bool:
        return all(actual >= needed for actual, needed in zip((major, version), _SINCE[option], strict=True))

    requested = {
        "streaming: on": protocol.streaming == "on",
        "streaming: parallel": protocol.streaming == "parallel",
        "two_phase: true": protocol.two_phase,
        "binary: true": protocol.binary,
        "messages: true": protocol.messages and "messages" in protocol.written,
        "origin: none": protocol.origin == "none",
    }
    for option, is_requested in requested.items():
        if is_requested and not has(option):
            raise _unsupported(option, major, version)
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


def _unsupported(option: str, major: int, version: int) -> SourceError:
    first_major, first_version = _SINCE[option]
    if major < first_major:
        return SourceError(
            f"source.protocol.{option} needs PostgreSQL {first_major}, but the server is {major}. Remove the"
            " option."
        )
    return SourceError(
        f"source.protocol.{option} needs protocol version {first_version}, but source.protocol.version is"
        f" {version}. Set it to {first_version} or auto, or remove the option."
    )


def pgoutput_options(
    server_version: int, protocol: Protocol, publication: str, route: Route = "walsender"
) -> dict[str, str]:
    """Return the options for one publication at a server of libpq's version number."""
    return negotiate(server_version, protocol, route).options(publication)


def start_command(slot: str, start_lsn: LSN, options: Mapping[str, str]) -> bytes:
    """Return the replication command that streams the slot from `start_lsn`."""
    pairs = ", ".join(f"{quote_identifier(name)} {quote_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn} ({pairs})".encode()


def options_array(options: Mapping[str, str]) -> sql.Composed:
    """Return the options as the VARIADIC argument of the slot's functions: names and values in turn."""
    texts = [text for pair in options.items() for text in pair]
    return sql.SQL("{}::pg_catalog.text[]").format(sql.Literal(texts))
