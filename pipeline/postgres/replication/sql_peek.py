"""One look at a slot's changes by SQL: a COPY in binary form, pulled without waiting and in bounded batches.

COPY and not a cursor: the rows stream through libpq's buffer, and the function runs once, to its end, before
the first of them (the server keeps them in its temporary files), so the slot is free again while they travel.
The form is that of the page on COPY: a header, rows of one field, a trailer.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from pipeline.postgres.connection import Connection, describe
from pipeline.postgres.replication.change_stream import BATCH_BYTES, BATCH_MESSAGES
from pipeline.postgres.replication.slot_errors import is_busy
from pipeline.protocol.lsn import LSN

_HEADER_SIZE = 19  # signature 11, flags 4, length of the extension 4 bytes
_FIELD_HEADER_SIZE = 6  # field count 2, field length 4 bytes
_BEGINS = frozenset((b"B", b"b"))
_SEGMENT_ENDS = frozenset((b"S", b"E"))
_ROW_BYTE, _SIGNATURE_BYTE, _TRAILER_BYTE = 0x00, ord("P"), 0xFF


class Peek:
    """The messages between a slot's position and `upto_lsn`, or the whole transactions that reach `limit`.

    Raises psycopg.Error when the connection is lost; what the server refused is in `refusal`, and by its
    fields in `diagnostic`.
    """

    def __init__(
        self, connection: Connection, slot: str, end_lsn: LSN, limit: int, options: Mapping[str, str]
    ) -> None:
        self.end_lsn = end_lsn
        self.limit = limit
        self.message_count = 0
        self.is_done = False
        self.is_busy = False
        self.refusal: str | None = None
        self.diagnostic: Diagnostic | None = None
        self._pgconn = connection.pgconn
        self._is_copying = False
        query = sql.SQL(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({}, {}, {}, VARIADIC {}))"
            " TO STDOUT (FORMAT binary)"
        ).format(sql.Literal(slot), sql.Literal(str(end_lsn)), sql.Literal(limit), literal_array(options))
        self._pgconn.send_query(query.as_bytes(connection))
        self._pgconn.flush()

    def pull(self) -> list[bytes]:
        """Return the messages that are here, without waiting; none may be here yet, or `is_done`."""
        messages: list[bytes] = []
        if not self._is_copying:
            self._pgconn.consume_input()
            if self._pgconn.is_busy():
                return messages
            result = self._pgconn.get_result()
            if result is None or result.status != ExecStatus.COPY_OUT:
                self._finish(result)
                return messages
            self._is_copying = True
        append = messages.append
        get_copy_data = self._pgconn.get_copy_data
        byte_count = 0
        has_consumed = False
        while len(messages) < BATCH_MESSAGES and byte_count < BATCH_BYTES:
            size, data = get_copy_data(1)
            if size > 0:
                if data[0] == _SIGNATURE_BYTE:
                    # The header comes alone or with the first row, by the server's major.
                    data = data[_HEADER_SIZE:]
                    if not data:
                        continue
                if data[0] == _ROW_BYTE:
                    append(bytes(data[_FIELD_HEADER_SIZE:]))
                    byte_count += size
                    has_consumed = False
                elif data[0] != _TRAILER_BYTE:
                    raise psycopg.DatabaseError("COPY data of an unknown form came")
            elif size == 0:
                if has_consumed:
                    break
                self._pgconn.consume_input()
                has_consumed = True
            else:
                self._finish(self._pgconn.get_result())
                break
        self.message_count += len(messages)
        return messages

    def _finish(self, result: PGresult | None) -> None:
        while self._pgconn.get_result() is not None:
            pass
        self.is_done = True
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            self.refusal = describe(result.get_error_message())
            self.diagnostic = Diagnostic(result)
            self.is_busy = is_busy(result)


class Outside:
    """The logical messages of a pass that stand outside of transactions, before anything has ended in it.

    They come once only: when the same pass is made again, those that were taken are left out. What else
    stands there belongs to streams, which begin anew with the pass.
    """

    def __init__(self) -> None:
        self.count = 0
        self._skip_count = 0
        self._in_segment = self._is_past = False

    def start_over(self) -> None:
        """Expect the same messages once more."""
        self._skip_count, self.count = self.count, 0
        self._in_segment = self._is_past = False

    def take(self, messages: list[bytes]) -> list[bytes]:
        """Return the messages without those that were taken before; look no further than a transaction."""
        kept: list[bytes] = []
        for index, message in enumerate(messages):
            kind = message[:1]
            self._is_past = self._is_past or kind in _BEGINS
            if self._is_past:
                return kept + messages[index:]
            if kind in _SEGMENT_ENDS:
                self._in_segment = kind == b"S"
            elif kind == b"M" and not self._in_segment:
                self.count += 1
                if self.count <= self._skip_count:
                    continue
            kept.append(message)
        return kept


def literal_array(options: Mapping[str, str]) -> sql.Composed:
    """Return the plugin's options as the slot's functions take them: names and values in turn."""
    values = [text for pair in options.items() for text in pair]
    return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(sql.Literal(value) for value in values))
