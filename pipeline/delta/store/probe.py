"""Try on an object store what a lake relies on: that two writers of one object exclude each other.

Creates, reads, lists, replaces and deletes one object below the root, and needs no more rights than a job.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from pipeline.delta.store.store import Entry, Store, StoreError

FOLDER = "_pgdelta/checks"
"""The folder of the objects, which exist for a moment."""


def probe(store: Store) -> tuple[str, str] | None:
    """Return what is wrong with a store and what to do, as two sentences; None if nothing is.

    Leaves nothing behind, unless the store refuses to delete.
    """
    name = f"{FOLDER}/{uuid4()}"
    entry = store.entry(name)
    try:
        found = _try_conditions(store, name, entry)
    except (StoreError, FileNotFoundError) as error:
        with suppress(StoreError):
            entry.remove()
        return _sentences(error)
    try:
        entry.remove()
    except StoreError as error:
        return found or _sentences(error)
    return found


def _try_conditions(store: Store, name: str, entry: Entry) -> tuple[str, str] | None:
    first, second, third = (f"{number} {uuid4()}".encode() for number in (1, 2, 3))
    tag = entry.create(first)
    if not tag:
        return (
            f"The store of {store.url} gives no etag for an object that it creates.",
            "Use a store whose objects have etags, or a local or mounted folder.",
        )
    if entry.create(second) is not None or entry.read()[0] != first:
        return _overwrites(store, "creates an object that exists already", "If-None-Match")
    if not any(found.name.startswith(name) for found in store.list(FOLDER)):
        return (
            f"The store of {store.url} does not list an object that was created before.",
            "Use a store with consistent listings, or a local or mounted folder.",
        )
    changed = entry.replace(second, tag)
    if changed is None:
        return (
            f"The store of {store.url} does not replace an object on the condition of its etag (If-Match).",
            "Use a store with conditional writes, such as Amazon S3, or a local or mounted folder.",
        )
    if entry.replace(third, tag) is not None or entry.read()[0] != second:
        return _overwrites(store, "replaces an object that has another etag", "If-Match")
    return None


def _overwrites(store: Store, does: str, condition: str) -> tuple[str, str]:
    return (
        f"The store of {store.url} {does} although the request forbids it ({condition}), so two jobs could "
        "overwrite each other's commits.",
        "Use a store with conditional writes, such as Amazon S3, or a local or mounted folder.",
    )


def _sentences(error: Exception) -> tuple[str, str]:
    """Return the sentence of an error, and the one that says what to do."""
    if isinstance(error, FileNotFoundError):
        return (
            f"The store does not have {error}, which was created before.",
            "Use a store with consistent reads, or a local or mounted folder.",
        )
    wrong, _, remedy = str(error).rpartition(". ")
    return f"{wrong}.", remedy
