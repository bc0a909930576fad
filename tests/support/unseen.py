"""Transactions whose commit records are decoded already, and that no snapshot sees yet."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import Database
from tests.support.threads import wait_until


@contextmanager
def unseen_commits(database: Database, *statements: str) -> Iterator[None]:
    """Commit each statement in a session of its own; all wait for a standby that does not come until the end.

    A session that must not wait sets synchronous_commit to local. The server's setting has to be empty.
    """
    waiting = [threading.Thread(target=database.run, args=(statement,)) for statement in statements]
    _wait_for(database, "ghost")
    try:
        for thread in waiting:
            thread.start()
            _until_one_more_waits(database, sum(each.is_alive() for each in waiting))
        yield
    finally:
        _wait_for(database, "")
        for thread in waiting:
            if thread.ident is not None:
                thread.join()


def _wait_for(database: Database, standby: str) -> None:
    database.run(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'", "SELECT pg_reload_conf()")
    time.sleep(0.5)


def _until_one_more_waits(database: Database, count: int) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: database.run(query) == [(count,)], 120, "a commit does not wait")
