"""Options of pgoutput depend on the server's version and the configuration, and on nothing else."""

from __future__ import annotations

import pytest

from pipeline.config import Protocol
from pipeline.errors import SourceError
from pipeline.postgres.plugin import pgoutput_options, quote_identifier, quote_literal
from pipeline.postgres.stream import last_end_lsn
from pipeline.protocol.lsn import INVALID, LSN

COMMIT = b"C\0" + (0x10).to_bytes(8, "big") + (0x20).to_bytes(8, "big") + bytes(8)


def test_messages_are_asked_for_where_the_server_has_them() -> None:
    assert pgoutput_options(140005, Protocol(), "shop") == {
        "proto_version": "1",
        "publication_names": '"shop"',
        "messages": "true",
    }
    assert "messages" not in pgoutput_options(130022, Protocol(), "shop")
    assert "messages" not in pgoutput_options(180004, Protocol(messages=False), "shop")


def test_messages_that_were_asked_for_in_writing_are_refused_by_an_old_server() -> None:
    with pytest.raises(
        SourceError, match=r"source.protocol.messages needs PostgreSQL 14 and the server is 13"
    ):
        pgoutput_options(130022, Protocol(written=frozenset({"messages"})), "shop")


def test_names_are_quoted_for_each_parser() -> None:
    assert quote_identifier('we,ird"Pub') == '"we,ird""Pub"'
    assert quote_literal("o'clock\\") == "'o''clock\\'"


def test_the_last_commit_says_how_far_messages_reach() -> None:
    assert last_end_lsn([b"B", COMMIT, b"I"]) == LSN(0x20)
    assert last_end_lsn([b"B", b"I"]) == INVALID
    assert last_end_lsn([COMMIT[:12], b""]) == INVALID
