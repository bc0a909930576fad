"""The walsender route begun: a slot that another session reads is tried again for some time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus

from pipeline.postgres.connection import connect, connect_replication, describe
from pipeline.postgres.stream.plugin import start_command
from pipeline.postgres.stream.silence import LONGEST_SILENCE
from pipeline.postgres.stream.slot import check_source, read_walsender_timeout
from pipeline.postgres.stream.slot_failures import busy_failure, is_busy, moved_slot, slot_failure
from pipeline.postgres.stream.walsender import Walsender, closed_on_failure
from pipeline.protocol.lsn import INVALID, LSN


def start_walsender(
    conninfo: str,
    slot: str,
    publication: str,
    *,
    options: Mapping[str, str],
    start_lsn: LSN = INVALID,
    busy_timeout: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    application_name: str = "pgdelta",
    longest_silence: float = LONGEST_SILENCE,
) -> Walsender:
    """Return the running stream of the slot, from its confirmed position or a later `start_lsn`.

    A slot that another session reads is tried again for `busy_timeout` seconds, or until `should_stop`. What
    lies between the slot and a later `start_lsn` is left out: it is in bronze already. A slot that stands
    beyond `start_lsn` is a SlotGapError: the server would begin there without a word. A server that was asked
    and says nothing for `longest_silence` seconds is lost.
    """
    command = start_command(slot, LSN(start_lsn), options)
    deadline = time.monotonic() + busy_timeout
    pause = 0.1
    while True:
        with connect(conninfo) as connection:
            check_source(connection, slot, publication)
        session = connect_replication(conninfo, application_name=application_name)
        with closed_on_failure(session, slot, conninfo):
            timeout = read_walsender_timeout(session)
            result = session.pgconn.exec_(command)
            if result.status == ExecStatus.COPY_BOTH:
                # From here on the slot is ours: while it was busy its reader may have moved it.
                with connect(conninfo) as connection:
                    confirmed_lsn = check_source(connection, slot, publication).confirmed_flush_lsn
                if INVALID < start_lsn < confirmed_lsn:
                    raise moved_slot(slot, confirmed_lsn, LSN(start_lsn))
                return Walsender(
                    session,
                    conninfo=conninfo,
                    slot=slot,
                    position=max(LSN(start_lsn), confirmed_lsn),
                    timeout=timeout,
                    longest_silence=longest_silence,
                )
        session.close()
        text = describe(result.get_error_message())
        if not is_busy(result):
            raise slot_failure(slot, text, Diagnostic(result))
        if should_stop() or time.monotonic() + pause > deadline:
            raise busy_failure(slot, text, busy_timeout)
        time.sleep(pause)
        pause = min(2 * pause, 5.0)
