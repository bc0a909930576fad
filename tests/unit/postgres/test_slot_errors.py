"""A server's message about a slot is classified in any language: by its SQLSTATE and untranslated parts."""

import pytest
from psycopg.errors import Diagnostic
from psycopg.pq import DiagnosticField

from pipeline.errors import UnusableSlotError
from pipeline.postgres.replication.slot import notice_error, slot_error


def diagnostic(text: str, sqlstate: str, context: str = "") -> Diagnostic:
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
def test_a_notice_that_rows_were_skipped_is_an_error(text: str, sqlstate: str) -> None:
    error = notice_error("shop", diagnostic(text, sqlstate))
    assert "of a time without the publication" in str(error)
    assert text in str(error)


def test_any_other_notice_is_ignored() -> None:
    assert notice_error("shop", diagnostic("database has a collation version mismatch", "01000")) is None


@pytest.mark.parametrize(
    ("text", "sqlstate", "context", "sentence"),
    [
        ("Publikation »shop« existiert nicht", "42704", "Plugin »pgoutput«", "without the publication"),
        ("Replikations-Slot »shop« existiert nicht", "42704", "", "cannot be read"),
        ("keine Berechtigung, um Replikations-Slots zu verwenden", "42501", "", "REPLICATION"),
        ("keine Berechtigung für Funktion pg_logical_slot_peek", "42501", "", "cannot be read"),
        ("Segment 0000000100000000000000A1 wurde schon entfernt", "58P01", "", "is lost"),
        ("konnte Datei »pg_logical/x.snap« nicht öffnen", "58P01", "", "cannot be read"),
    ],
)
def test_errors_are_classified_by_sqlstate(text: str, sqlstate: str, context: str, sentence: str) -> None:
    error = slot_error("shop", text, diagnostic(text, sqlstate, context))
    assert sentence in str(error)
    assert text in str(error) or sentence == "REPLICATION"
    assert isinstance(error, UnusableSlotError) == (sentence in ("is lost", "without the publication"))
