"""Commits that somebody else's came before: Delta refuses what was made of files that changed meanwhile.

Who runs OPTIMIZE or ALTER TABLE does no wrong: what was refused is made once more of what is there then. Two
writers of the same positions are another matter (`is_same_write`): there, one too many is running.
"""

from collections.abc import Callable
from typing import TypeVar

from delta import exceptions

ATTEMPTS = 4  # of one write, before it fails
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
# of an exception that another one is wrapped around
_SIGNS = ("[DELTA_CONCURRENT_", "[DELTA_METADATA_CHANGED", "[DELTA_PROTOCOL_CHANGED")

T = TypeVar("T")


def is_same_write(error: BaseException) -> bool:
    """Say whether Delta refused a commit because another writer recorded the same positions meanwhile."""
    return isinstance(error, exceptions.ConcurrentTransactionException) or _SAME_WRITE in str(error)


def is_conflict(error: BaseException) -> bool:
    """Say whether Delta refused a commit that can be made anew of what is there now."""
    if is_same_write(error):
        return False
    return isinstance(error, _CONFLICTS) or any(sign in str(error) for sign in _SIGNS)


def retry_conflicts(write: Callable[[], T]) -> T:
    """Do what may be done again; again where somebody else's commit came before, a few times."""
    for _ in range(ATTEMPTS - 1):
        try:
            return write()
        except Exception as error:
            if not is_conflict(error):
                raise
    return write()


def conflict_sentence(error: BaseException) -> str | None:
    """Return what to say of a table that somebody else's commits kept from being written; else None."""
    if is_same_write(error):
        return "another apply wrote the table at the same time: let one run at a time, then run again"
    if is_conflict(error):
        return (
            f"somebody else changed the silver table (OPTIMIZE, ALTER TABLE, …) each of the {ATTEMPTS} times "
            "that it was to be written: run again once that has ended"
        )
    return None
