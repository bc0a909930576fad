"""Conditional requests of Google's store, which compares generations: a lease is held and renewed there."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.delta.store.lease import Lease
from pipeline.delta.store.object_store import ObjectStore
from tests.support.stores.google import BUCKET, google_server


@contextmanager
def google_store(patience: float) -> Iterator[ObjectStore]:
    """Give a store of a server with some of the protocol of Google's."""
    with google_server() as options:
        yield ObjectStore(f"gs://{BUCKET}/lake", options, patience=patience)


def test_an_object_is_created_once_and_replaced_by_its_generation() -> None:
    with google_store(20) as store:
        lease = store.entry("lease")
        first = lease.create(b"1")
        assert first
        assert lease.create(b"2") is None
        second = lease.replace(b"2", first)
        assert second not in (None, first)
        assert lease.replace(b"3", first) is None
        assert lease.read() == (b"2", second)


def test_a_listing_has_the_etag_that_an_object_was_created_with() -> None:
    with google_store(20) as store:
        etag = store.create("log/1", b"1")
        assert etag
        assert [each.etag for each in store.list("log")] == [etag]
        assert store.read("log/1") == (b"1", etag)


def test_objects_are_deleted_although_others_do_not_exist() -> None:
    with google_store(20) as store:
        names = [f"data/{number}" for number in range(20)]
        for name in names[::2]:
            store.create(name, b"1")
        store.delete([*names, "nothing"])
        for name in names:
            with pytest.raises(FileNotFoundError):
                store.read(name)


def test_a_lease_is_renewed_and_acquired_again() -> None:
    with google_store(2) as store:
        lease = Lease(store, "lock", "apply", 12)
        lease.acquire()
        lease._deadline = 0.0
        lease.check()  # renews it
        lease.release()
        again = Lease(store, "lock", "apply", 12)
        again.acquire()
        assert again.number == lease.number + 1
        again.release()
