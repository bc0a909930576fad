"""Repeat a write that was refused because a foreign commit changed the table meanwhile.

OPTIMIZE and ALTER TABLE are legitimate: the refused write is made again from the table's new state. Two
writers of the same offset (`is_same_write`) are not: there, one job too many is running, and the write is not
repeated.
"""

from collections.abc import Callable
from typing import TypeVar

from pipeline.delta.foreign_rules import describe_foreign_rule
from pipeline.errors import LakeError

ATTEMPTS = 4  # of a write before it fails
# Delta's exceptions by name: a process without Spark does not import them
_SAME_WRITE_CLASS = "ConcurrentTransactionException"
_CONFLICT_CLASSES = frozenset(
    {
        "DeltaConcurrentModificationException",
        "ConcurrentWriteException",
        "MetadataChangedException",
        "ProtocolChangedException",
        "ConcurrentAppendException",
        "ConcurrentDeleteReadException",
        "ConcurrentDeleteDeleteException",
    }
)
_SAME_WRITE = "[DELTA_CONCURRENT_TRANSACTION"
# in the text of an exception that wraps Delta's
_CONFLICT_CODES = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")

T = TypeVar("T")


class ConflictError(LakeError):
    """A commit that was not made, because another one changed what it depends on."""


class SameWriteError(LakeError):
    """A commit that was not made, because another writer recorded the same offset meanwhile.

    It did so by `app_id`, with `version`.
    """

    app_id = ""
    version = 0


def is_same_write(error: BaseException) -> bool:
    """Return whether a commit was refused because another writer recorded the same offset meanwhile."""
    if isinstance(error, SameWriteError) or _SAME_WRITE in str(error):
        return True
    return _SAME_WRITE_CLASS in _delta_classes(error)


def is_conflict(error: BaseException) -> bool:
    """Return whether a commit was refused that can be made again from the table's new state."""
    if is_same_write(error):
        return False
    if isinstance(error, ConflictError) or any(code in str(error) for code in _CONFLICT_CODES):
        return True
    return not _CONFLICT_CLASSES.isdisjoint(_delta_classes(error))


def _delta_classes(error: BaseException) -> set[str]:
    """Return the names of those classes of an error that Delta's Python package defines."""
    return {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("delta.exceptions")}


def retry_conflicts(write: Callable[[], T]) -> T:
    """Run an idempotent write, up to `ATTEMPTS` times if foreign commits conflict with it."""
    for _ in range(ATTEMPTS - 1):
        try:
            return write()
        except Exception as error:
            if not is_conflict(error):
                raise
    return write()


def describe_conflict(error: BaseException) -> str | None:
    """Return the text for an error that a foreign commit caused, None for any other."""
    if is_same_write(error):
        return "Another apply wrote the table at the same time. Let only one run, then run again."
    if is_conflict(error):
        return (
            f"Foreign commits (OPTIMIZE, ALTER TABLE, …) changed the silver table during each of {ATTEMPTS} "
            "attempts to write it. Run again when they have ended."
        )
    return describe_foreign_rule(error)
