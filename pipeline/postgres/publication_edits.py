"""Prove between two polls of a run that edits of the publication let no change be missed.

A session of its own holds a snapshot from one poll to the next, a few seconds. Without it, as between two
runs or while tables are copied, nothing is proved.
"""

from __future__ import annotations

from contextlib import suppress

import psycopg

from pipeline.config.config import Config
from pipeline.errors import SourceError
from pipeline.postgres.connection import Connection, connect
from pipeline.postgres.publication_rows import HarmlessEdits, PublicationRow, read_publication_rows
from pipeline.postgres.snapshot.export import COPY_SESSIONS

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PublicationEdits:
    """Collects the harmless edits of one continuous run; of another run, which holds nothing, none."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connection: Connection | None = None
        self._has_snapshot = False
        self._found = HarmlessEdits()

    def is_harmless(self, before: int, now: int) -> bool:
        """Return whether harmless edits lead from one xmin of the publication to another, seen just now."""
        return self._found.is_harmless(before, now) or (
            self._looks_again() and self._found.is_harmless(before, now)
        )

    def keeps_entry(self, before: int | None, now: int) -> bool:
        """Return whether harmless edits lead from one entry to another, seen just now."""
        return self._found.keeps_entry(before, now) or (
            self._looks_again() and self._found.keeps_entry(before, now)
        )

    def _looks_again(self) -> bool:
        """Compare with a snapshot after that of the caller, and return whether one was held."""
        if not self._has_snapshot:
            return False
        self.hold()
        return True

    def hold(self) -> None:
        """Compare the publication with the held snapshot, and hold the one of now.

        If the session was lost, or cannot be opened, nothing is proved.
        """
        try:
            before = self._read() if self._has_snapshot else None
            self.release()
            if self._connection is None or self._connection.closed:
                self._connection = connect(self._config.source.conninfo, application_name=COPY_SESSIONS)
            self._connection.execute(_BEGIN)
            self._has_snapshot = True
            now = self._read()
        except (SourceError, psycopg.Error):
            self.close()
            return
        if before is not None and before != now:
            self._found.add(before, now)

    def release(self) -> None:
        """Let go of the snapshot."""
        if self._has_snapshot and self._connection is not None:
            self._has_snapshot = False
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """End the session."""
        self._has_snapshot = False
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()

    def _read(self) -> list[PublicationRow]:
        assert self._connection is not None
        return read_publication_rows(self._connection, self._config.source.publication)
