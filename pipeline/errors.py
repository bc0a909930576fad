"""The errors of pgdelta, and the text that describes any exception.

Every failure that a user can see is a `PgdeltaError`. `str(error)` says what is wrong, with its facts, and
then what to do; it never contains a row's values or a secret. Names of files are shown without the values of
partitions (`column=…`). `exit_code` is the command's when nothing handles the error: 1 for a failure, 2 for a
mistake in the command line or the configuration. `describe_error` gives such a text for any exception,
`report_error` for one after which a run continues.
"""

import errno
import logging
import os
import re
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

#: Receives the stack traces of errors after which a run continues; `--debug` shows them.
TRACES = logging.getLogger("pgdelta.traces")
TRACES.propagate = False

#: Receives sentences about what a run waits for.
NOTICES = logging.getLogger("pgdelta.notices")
NOTICES.setLevel(logging.INFO)
NOTICES.propagate = False

#: Set while the process ends because it was told to.
STOPPING = threading.Event()

_DEBUG = "Run again with --debug for the stack trace."
_STOPPED = "Spark's JVM was stopped together with this command. Nothing is lost: run again."
_FREE_SPACE = "Nothing is lost. Free some space and run again."
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SPACE = os.strerror(errno.ENOSPC)
_GATEWAY = os.path.join("py4j", "")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PARTITION_VALUE = re.compile(r"([^/=\s]+(?:=|%3D))[^/]*(?=/(?:[^/=\s]+(?:=|%3D)[^/]*/)*[^/=\s]+\.parquet)")
_SPARK_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"")


class PgdeltaError(Exception):
    """A failure with a text for the user and the exit code of the command."""

    exit_code = 1

    def __init__(self, text: object = "") -> None:
        super().__init__(_without_partition_values(str(text)))


class ConfigError(PgdeltaError):
    """A mistake in the configuration (with file, line and key) or in the command line."""

    exit_code = 2


class ProtocolError(PgdeltaError):
    """A malformed message (with its field and offset) or a message that the protocol does not allow here."""


class SourceError(PgdeltaError):
    """Something that PostgreSQL lacks or refuses: connection, privilege, setting, publication, slot."""


class GapError(SourceError):
    """Changes that are lost: the slot is ahead of bronze, re-created, invalidated or of another server."""


class SlotGapError(GapError):
    """A gap that a new slot and a resync of all tables can close."""


class UnusableSlotError(SlotGapError):
    """A gap past which the slot cannot be read, or must not be: the slot has to be dropped."""


class RestoredSourceError(UnusableSlotError):
    """A server that was restored to an earlier state and has other transactions since; so has its slot."""


class PublicationGapError(UnusableSlotError):
    """Changes of a time at which the publication did not exist: the slot cannot be decoded past them."""


class UndecodableError(SourceError):
    """A transaction that the server cannot decode, maybe only not in parts; `reason` says what it is."""

    reason = ""


class SlotBusyError(SourceError):
    """A slot that another session is reading; `reason` names the session."""

    reason = ""


class SlotWaitStopped(SlotBusyError):
    """A stop was requested while another session was reading the slot."""


class NotPublishedError(SourceError):
    """Raised for a table that has left the publication, or was dropped."""


class TableLockedError(SourceError):
    """A table that another session has locked exclusively."""

    def __init__(self, table: object) -> None:
        super().__init__(f"The table {table} is locked by another session. It is tried again.")


class SpoolError(PgdeltaError):
    """A staged file that is damaged."""


class EndpointError(PgdeltaError):
    """An address at which metrics cannot be served."""


class LakeError(PgdeltaError):
    """A failure on the Delta side: a foreign commit, storage that cannot be used."""


class DataFileError(LakeError):
    """A data file that is missing, or not as it was written; `path` is it."""

    def __init__(self, text: object, path: str) -> None:
        super().__init__(text)
        self.path = path


class DamagedLogError(LakeError):
    """A version of a table's log cannot be read from its files."""


class MissingTable(LakeError, KeyError):
    """A table that silver does not have, also a KeyError for readers of a mapping."""

    def __str__(self) -> str:
        """Return the sentence, which KeyError would quote."""
        return str(self.args[0])


class FencedError(LakeError):
    """A commit of a job that another one of its kind has overtaken: this job must end."""


def one_line(text: str) -> str:
    """Return a text as one line for a terminal, with line ends and escape sequences in names escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Name a file in an error of the system about it, which does not after a write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def describe_error(error: BaseException) -> str:
    """Return the text that a user gets for an exception, without row values."""
    return str(error) if isinstance(error, PgdeltaError) else _without_partition_values(_describe(error))


def _describe(error: BaseException) -> str:
    family = type(error).__module__.partition(".")[0]
    frames = traceback.extract_tb(error.__traceback__)
    if (family == "py4j" and "Py4JJavaError" not in type(error).__name__) or (
        isinstance(error, ConnectionError) and any(_GATEWAY in frame.filename for frame in frames)
    ):
        if STOPPING.is_set():
            return _STOPPED
        return f"Lost the connection to Spark's JVM, which was probably killed or ran out of memory. {_DEBUG}"
    if family in ("pyspark", "py4j"):
        if _NO_SPACE in str(error):
            return f"Spark could not write: {_NO_SPACE}. {_FREE_SPACE}"
        if STOPPING.is_set() and "SparkContext" in str(error):
            return _STOPPED
        return f"Spark failed: {_spark_sentence(error)}. {_DEBUG}"
    if isinstance(error, OSError) and error.strerror:
        file = f"{error.filename}: " if error.filename else ""
        if error.errno in _FULL:
            return f"{file}{os.strerror(error.errno)}. {_FREE_SPACE}"
        if error.errno in _FORBIDDEN:
            return f"{file}{os.strerror(error.errno)}. Let this user read and write there, then run again."
        return f"{file}{error.strerror}. {_DEBUG}"
    place = f" in {os.path.basename(frames[-1].filename)} line {frames[-1].lineno}" if frames else ""
    return f"Unexpected {type(error).__name__}{place}. {_DEBUG}"


def report_error(error: BaseException) -> str:
    """Return the text for an exception after which the run continues; log its stack trace for `--debug`."""
    sentence = describe_error(error)
    TRACES.debug("%s", one_line(sentence), exc_info=error)
    return sentence


def _without_partition_values(text: str) -> str:
    return _PARTITION_VALUE.sub(r"\1…", text)


def _spark_sentence(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.toString())
    lines = (line.strip() for line in text.splitlines())
    line = next((line for line in lines if line and not line.startswith("at ")), type(error).__name__)
    # analysis errors and those of Delta quote names and paths, errors at run time quote values
    quotes_names = "[DELTA_" in line and "InvariantViolation" not in line
    if type(error).__name__ == "AnalysisException" or quotes_names or "[PATH_" in line:
        return line.rstrip(".;")
    return _SPARK_VALUE.sub("…", line).rstrip(".;")
