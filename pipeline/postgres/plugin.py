"""What pgoutput is asked for: the options of START_REPLICATION and of the slot's SQL functions.

Options by first major: `binary`, `messages` and `streaming` 14, `two_phase` 15, `origin` 16. An option that
the server does not know is an error there, and `two_phase` changes the slot for good even when only peeked
at: an option is passed only where it is meant.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config import Protocol
from pipeline.errors import SourceError
from pipeline.protocol.lsn import LSN

_MESSAGES_SINCE = 14


def pgoutput_options(server_version: int, protocol: Protocol, publication: str) -> dict[str, str]:
    """Return the options for one publication, names and values as the server takes them.

    `server_version` is libpq's number (180004). A default that the server lacks is off, the same thing
    written in the file is a SourceError. The publication is quoted as an SQL identifier, because pgoutput
    parses the option as a list of identifiers.
    """
    major = server_version // 10000
    options = {"proto_version": "1", "publication_names": quote_identifier(publication)}
    if protocol.messages and major >= _MESSAGES_SINCE:
        options["messages"] = "true"
    elif protocol.messages and "messages" in protocol.written:
        raise SourceError(
            f"source.protocol.messages needs PostgreSQL {_MESSAGES_SINCE} and the server is {major}:"
            " take the line out."
        )
    return options


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
