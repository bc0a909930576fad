"""Repeat a write that Delta refused because a foreign commit changed the table meanwhile.

OPTIMIZE and ALTER TABLE are legitimate: the refused write is made again from the table's new state. Two
writers of the same offset (`is_same_write`) are not: there, one job too many is running, and the write is not
repeated.
"""

from collections.abc import Callable
from typing import TypeVar

from delta import exceptions

ATTEMPTS = 4  # of a write before it fails
_CONFLICTS = (
    exceptions.DeltaConcurrentModificationException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentDeleteDeleteException,
)
_SAME_WRITE = "[DELTA_CONCURRENT_TRANSACTION"
# in the text of an exception that wraps Delta's
_CONFLICT_CODES = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")

T = TypeVar("T")


def is_same_write(error: BaseException) -> bool:
    """Return whether Delta refused a commit because another writer recorded the same offset meanwhile."""
    return isinstance(error, exceptions.ConcurrentTransactionException) or _SAME_WRITE in str(error)


def is_conflict(error: BaseException) -> bool:
    """Return whether Delta refused a commit that can be made again from the table's new state."""
    if is_same_write(error):
        return False
    return isinstance(error, _CONFLICTS) or any(code in str(error) for code in _CONFLICT_CODES)


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
    return None
