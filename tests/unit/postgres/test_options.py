"""Options of pgoutput depend on the server's version and the configuration, and on nothing else."""

from typing import Any

import pytest

from pipeline.config.config import Protocol
from pipeline.errors import SourceError
from pipeline.postgres.replication.change_stream import last_end_lsn
from pipeline.postgres.replication.options import (
    Route,
    negotiate,
    pgoutput_options,
)
from pipeline.postgres.sql_text import quote_identifier, quote_literal
from pipeline.protocol import messages as wire
from pipeline.protocol.lsn import INVALID, LSN
from tests.support.protocol.encode import encode

COMMIT = b"C\0" + (0x10).to_bytes(8, "big") + (0x20).to_bytes(8, "big") + bytes(8)
MESSAGES_WITH_AN_END: tuple[wire.Message, ...] = (
    wire.Commit(0, LSN(0x10), LSN(0x20), 1),
    wire.StreamCommit(1, 0, LSN(0x10), LSN(0x20), 1),
    wire.Prepare(0, LSN(0x10), LSN(0x20), 1, 1, "gid"),
    wire.StreamPrepare(0, LSN(0x10), LSN(0x20), 1, 1, "gid"),
    wire.CommitPrepared(0, LSN(0x10), LSN(0x20), 1, 1, "gid"),
    wire.RollbackPrepared(0, LSN(0x10), LSN(0x20), 1, 1, 1, "gid"),
)
MESSAGES_WITHOUT_AN_END: tuple[wire.Message, ...] = (
    wire.Begin(LSN(0x10), 1, 1),
    wire.BeginPrepare(LSN(0x10), LSN(0x20), 1, 1, "gid"),
    wire.LogicalMessage(True, LSN(0x10), "prefix", b"long enough for an end LSN"),
    wire.Origin(LSN(0x10), "long enough for an end LSN"),
    wire.Relation(1, "public", "long enough for an end LSN", "d", ()),
    wire.Type(1, "public", "long enough for an end LSN"),
    wire.Insert(1, (b"long enough for an end LSN",)),
    wire.Update(1, None, None, (b"long enough for an end LSN",)),
    wire.Delete(1, "K", (b"long enough for an end LSN",)),
    wire.Truncate((1, 2, 3, 4, 5, 6, 7), 0),
    wire.StreamStart(1, True),
    wire.StreamStop(),
    wire.StreamAbort(1, 1, LSN(0x10), 1),
)


def asked(major: int, route: Route = "walsender", **protocol: Any) -> dict[str, str]:
    """Return the options without the publication."""
    options = pgoutput_options(major * 10000 + 5, Protocol(**protocol), "shop", route)
    assert options.pop("publication_names") == '"shop"'
    return options


def refused(major: int, **protocol: Any) -> str:
    """Return the sentence of a refusal; the protocol is as written in the file."""
    with pytest.raises(SourceError) as caught:
        asked(major, written=frozenset(protocol), **protocol)
    return str(caught.value)


@pytest.mark.parametrize(
    ("major", "options"),
    [
        *[(major, {"proto_version": "1"}) for major in (10, 11, 12, 13)],
        (14, {"proto_version": "2", "streaming": "on", "messages": "true"}),
        (15, {"proto_version": "3", "streaming": "on", "messages": "true"}),
        *[
            (major, {"proto_version": "4", "streaming": "parallel", "messages": "true"})
            for major in (16, 17, 18, 19)
        ],
    ],
)
def test_by_default_the_best_options_that_each_server_has_are_requested(
    major: int, options: dict[str, str]
) -> None:
    assert asked(major) == options


def test_by_default_nothing_is_streamed_to_the_slots_functions() -> None:
    assert asked(18, "sql") == {"proto_version": "4", "messages": "true"}
    assert asked(18, "sql", streaming="on")["streaming"] == "on"


def test_a_lower_version_that_is_written_turns_off_what_it_lacks() -> None:
    assert asked(18, version=1) == {"proto_version": "1", "messages": "true"}
    assert asked(18, version=2) == {"proto_version": "2", "streaming": "on", "messages": "true"}
    assert asked(18, version=3)["streaming"] == "on"
    assert asked(14, version=1) == {"proto_version": "1", "messages": "true"}


def test_configured_options_are_requested() -> None:
    assert asked(
        18, version=4, streaming="on", two_phase=True, binary=True, messages=False, origin="none"
    ) == {
        "proto_version": "4",
        "streaming": "on",
        "two_phase": "true",
        "binary": "true",
        "origin": "none",
    }
    assert asked(15, two_phase=True)["two_phase"] == "true"
    assert asked(16, streaming="parallel")["streaming"] == "parallel"
    assert asked(14, streaming="off") == {"proto_version": "2", "messages": "true"}


@pytest.mark.parametrize("major", [10, 13, 14, 15, 16, 18])
def test_two_phase_is_never_requested_by_default(major: int) -> None:
    assert "two_phase" not in asked(major)
    assert "two_phase" not in asked(major, two_phase=False, written=frozenset({"two_phase"}))


def test_defaults_that_are_written_are_no_demands_on_an_old_server() -> None:
    written = frozenset({"version", "streaming", "two_phase", "binary", "origin"})
    assert asked(10, written=written) == {"proto_version": "1"}
    assert asked(10, messages=False, written=frozenset({"messages"})) == {"proto_version": "1"}


@pytest.mark.parametrize(
    ("major", "protocol", "sentence"),
    [
        (13, {"version": 2}, "version 2 needs PostgreSQL 14, but the server is 13. Set it to 1 or auto."),
        (14, {"version": 3}, "version 3 needs PostgreSQL 15, but the server is 14. Set it to 2 or auto."),
        (15, {"version": 4}, "version 4 needs PostgreSQL 16, but the server is 15. Set it to 3 or auto."),
        (
            13,
            {"streaming": "on"},
            "streaming: on needs PostgreSQL 14, but the server is 13. Remove the option",
        ),
        (15, {"streaming": "parallel"}, "streaming: parallel needs PostgreSQL 16, but the server is 15"),
        (14, {"two_phase": True}, "two_phase: true needs PostgreSQL 15, but the server is 14"),
        (13, {"binary": True}, "binary: true needs PostgreSQL 14, but the server is 13"),
        (13, {"messages": True}, "messages: true needs PostgreSQL 14, but the server is 13"),
        (15, {"origin": "none"}, "origin: none needs PostgreSQL 16, but the server is 15"),
        (
            18,
            {"streaming": "on", "version": 1},
            "streaming: on needs protocol version 2, but source.protocol.version is 1. Set it to 2 or auto",
        ),
        (18, {"streaming": "parallel", "version": 3}, "streaming: parallel needs protocol version 4"),
        (18, {"two_phase": True, "version": 2}, "two_phase: true needs protocol version 3"),
    ],
)
def test_what_is_written_and_cannot_be_had_is_refused(
    major: int, protocol: dict[str, Any], sentence: str
) -> None:
    assert refused(major, **protocol).startswith(f"source.protocol.{sentence}")


def test_what_is_negotiated_reads_as_a_sentence() -> None:
    assert str(negotiate(180004, Protocol(two_phase=True))) == (
        "protocol version 4, streaming parallel, two_phase, messages, origin any"
    )
    assert str(negotiate(100023, Protocol())) == "protocol version 1, streaming off, origin any"


def test_names_are_quoted_for_each_parser() -> None:
    assert quote_identifier('we,ird"Pub') == '"we,ird""Pub"'
    assert quote_literal("o'clock\\") == "'o''clock\\'"


def test_the_last_end_lsn_is_that_of_the_last_transaction_end() -> None:
    assert last_end_lsn([b"B", COMMIT, b"I"]) == LSN(0x20)
    assert last_end_lsn([b"B", b"I"]) == INVALID
    assert last_end_lsn([COMMIT[:12], b""]) == INVALID


@pytest.mark.parametrize("message", MESSAGES_WITH_AN_END, ids=lambda message: type(message).__name__)
def test_every_message_that_ends_a_transaction_has_an_end_lsn(message: wire.Message) -> None:
    assert last_end_lsn([encode(message)]) == LSN(0x20)


@pytest.mark.parametrize("message", MESSAGES_WITHOUT_AN_END, ids=lambda message: type(message).__name__)
def test_no_other_message_has_an_end_lsn(message: wire.Message) -> None:
    assert last_end_lsn([encode(message)]) == INVALID


def test_every_kind_of_message_is_one_or_the_other() -> None:
    kinds = {encode(message)[0] for message in (*MESSAGES_WITH_AN_END, *MESSAGES_WITHOUT_AN_END)}
    assert kinds == set(b"BMCORYIUDTSEcAbPKrp")
