"""What can go wrong, as sentences for people.

Every failure a user can meet is one of these. `str(error)` is one sentence that says what is wrong, where,
and what to do about it; it never holds a row's values or a secret. `exit_code` is what the command ends with
when nothing handles the error: 1 for a failure, 2 for a mistake in the command line or the configuration.
"""


class PgdeltaError(Exception):
    """Carry one sentence to the user and the exit code that goes with it."""

    exit_code = 1


class ConfigError(PgdeltaError):
    """Name a mistake in the configuration or the command line by file, line and key."""

    exit_code = 2


class ProtocolError(PgdeltaError):
    """Name the message, field and offset of malformed bytes, or the move that the protocol forbids."""


class SourceError(PgdeltaError):
    """Name what PostgreSQL lacks or refuses: connection, rights, settings, publication, slot."""


class GapError(SourceError):
    """Name a position that is lost: a slot ahead of bronze, re-created, invalidated or of another server."""


class LakeError(PgdeltaError):
    """Name what is wrong on the Delta side: a foreign commit, storage that cannot be used."""
