"""A thread that waits on a session is freed when the session is broken off, and no other session is."""

import threading
import time

import psycopg

from pipeline.postgres.connection import connect, shut_down_sessions
from tests.support.servers import Database


def test_a_thread_that_waits_is_freed(database: Database) -> None:
    errors: list[psycopg.Error] = []
    with (
        connect(database.conninfo, application_name="one of these") as waiting,
        connect(database.conninfo, application_name="another") as other,
    ):

        def wait() -> None:
            try:
                waiting.execute("SELECT pg_sleep(60)")
            except psycopg.Error as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
        assert shut_down_sessions("one of these") == 1
        thread.join(5)
        assert not thread.is_alive()
        assert errors
        assert waiting.closed
        assert shut_down_sessions("one of these") == 0
        assert other.execute("SELECT 1").fetchone() == (1,)
