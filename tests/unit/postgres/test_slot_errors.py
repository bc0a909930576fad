"""What a server says of a slot is understood in any language: by its SQLSTATE, and what nobody translates."""

from __future__ import annotations

import pytest
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField

from pipeline.errors import GapError
from pipeline.postgres.replication.slot_errors import left_out, slot_failure


def said(text: str, sqlstate: str, context: str = "") -> Diagnostic:
    fields: dict[int, bytes | None] = dict.fromkeys(DiagnosticField)
    fields[DiagnosticField.MESSAGE_PRIMARY] = text.encode()
    fields[DiagnosticField.SQLSTATE] = sqlstate.encode()
    fields[DiagnosticField.CONTEXT] = context.encode() or None
    return Diagnostic(fields)


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ('skipped loading publication "shop"', "55000"),
        ("Laden der Publikation »shop« wird übersprungen", "55000"),
        ('skipped loading publication "shop"', "01000"),
    ],
)
def test_a_notice_of_rows_left_out_is_a_failure(text: str, sqlstate: str) -> None:
    failure = left_out("shop", said(text, sqlstate))
    assert "from before the publication existed" in str(failure)
    assert text in str(failure)


def test_any_other_notice_is_none() -> None:
    assert left_out("shop", said("database has a collation version mismatch", "01000")) is None


@pytest.mark.parametrize(
    ("text", "sqlstate", "context", "sentence"),
    [
        ("Publikation »shop« existiert nicht", "42704", "Plugin »pgoutput«", "publication existed"),
        ("Replikations-Slot »shop« existiert nicht", "42704", "", "cannot be read"),
        ("keine Berechtigung, um Replikations-Slots zu verwenden", "42501", "", "REPLICATION"),
        ("keine Berechtigung für Funktion pg_logical_slot_peek", "42501", "", "cannot be read"),
        ("Segment 0000000100000000000000A1 wurde schon entfernt", "58P01", "", "is lost"),
        ("konnte Datei »pg_logical/x.snap« nicht öffnen", "58P01", "", "cannot be read"),
    ],
)
def test_a_failure_is_known_by_its_sqlstate(text: str, sqlstate: str, context: str, sentence: str) -> None:
    failure = slot_failure("shop", text, said(text, sqlstate, context))
    assert sentence in str(failure)
    assert text in str(failure) or sentence == "REPLICATION"
    assert isinstance(failure, GapError) == (sentence == "is lost")
