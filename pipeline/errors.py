"""What can go wrong, as sentences for people.

Every failure a user can meet is one of these. `str(error)` is one sentence that says what is wrong, where,
and what to do about it; it never holds a row's values or a secret. `exit_code` is what the command ends with
when nothing handles the error: 1 for a failure, 2 for a mistake in the command line or the configuration.
`sentence_of` makes such a sentence of any other exception; `told` does so where a run goes on after it.
"""

import errno
import logging
import os
import re
import traceback

#: Gets the stack traces of errors after which a run goes on; `--debug` shows them.
TRACES = logging.getLogger("pgdelta.traces")
TRACES.propagate = False

_AGAIN = "run again with --debug for the stack trace"
_MAKE_ROOM = "nothing is lost: make room and run again"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_SPACE = os.strerror(errno.ENOSPC)
_GATEWAY = os.path.join("py4j", "")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SPARK_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"")


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


class SlotGapError(GapError):
    """Name a gap that a new slot and new copies of all tables could close."""


class SlotBusyError(SourceError):
    """Name the slot that another session reads."""


class SpoolError(PgdeltaError):
    """Name a staged file that is not as it was written."""


class EndpointError(PgdeltaError):
    """Name an address at which metrics cannot be served."""


class LakeError(PgdeltaError):
    """Name what is wrong on the Delta side: a foreign commit, storage that cannot be used."""


class FencedError(LakeError):
    """Name the commit that another ingest came before: this one has to end."""


def one_line(text: str) -> str:
    """Return a text for a terminal: names may hold line ends and escape sequences, which are written out."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def describe_error(error: BaseException) -> str:
    """Return the one sentence that a user gets for an exception, without row values."""
    if isinstance(error, PgdeltaError):
        return str(error)
    family = type(error).__module__.partition(".")[0]
    frames = traceback.extract_tb(error.__traceback__)
    if (family == "py4j" and "Py4JJavaError" not in type(error).__name__) or (
        isinstance(error, ConnectionError) and any(_GATEWAY in frame.filename for frame in frames)
    ):
        return f"the connection to Spark's JVM broke (killed, or out of memory?); start again, or {_AGAIN}"
    if family in ("pyspark", "py4j"):
        if _NO_SPACE in str(error):
            return f"Spark could not write: {_NO_SPACE}; {_MAKE_ROOM}"
        return f"Spark failed: {_spark_sentence(error)}; {_AGAIN}"
    if isinstance(error, OSError) and error.strerror:
        file = f"{error.filename}: " if error.filename else ""
        if error.errno in _FULL:
            return f"{file}{os.strerror(error.errno)}; {_MAKE_ROOM}"
        return f"{file}{error.strerror}; {_AGAIN}"
    place = f" in {os.path.basename(frames[-1].filename)} line {frames[-1].lineno}" if frames else ""
    return f"unexpected {type(error).__name__}{place}; {_AGAIN}"


def report_error(error: BaseException) -> str:
    """Return the sentence of an error that ends no run, and leave its stack trace to `--debug`."""
    sentence = describe_error(error)
    TRACES.debug("%s", one_line(sentence), exc_info=error)
    return sentence


def _spark_sentence(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java.toString())
    lines = (line.strip() for line in text.splitlines())
    line = next((line for line in lines if line and not line.startswith("at ")), type(error).__name__)
    # an analysis error, or one of Delta's, speaks of names and paths; at run time the quoted parts are values
    if type(error).__name__ == "AnalysisException" or "[DELTA_" in line or "[PATH_" in line:
        return line.rstrip(".;")
    return _SPARK_VALUE.sub("…", line).rstrip(".;")
