"""Print the messages of a slot as they are received: the loop of `pgdelta tail`.

Messages are read, selected and printed. Nothing is acknowledged without --acknowledge, and then only complete
transactions after they were printed. Values of rows are printed. It needs no Spark.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import cache
from typing import TextIO

from pipeline.errors import ProtocolError, SlotBusyError, SourceError
from pipeline.postgres.catalog import read_type_name
from pipeline.postgres.connection import Connection, connect, read_flush_lsn
from pipeline.postgres.replication.change_stream import ChangeStream, last_end_lsn
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.tail.json_format import JsonFormat
from pipeline.tail.selection import Selection, TailReader, is_after
from pipeline.tail.source import APPLICATION_NAME, TailOptions, busy_error, resolve, start_stream
from pipeline.tail.text_format import TextFormat

_READ_TIMEOUT = 0.25
_CONFIRM_TIMEOUT = 30.0
_STOP_TIMEOUT = 0.5


def run_tail(request: TailOptions, stop: threading.Event) -> int:
    """Print the slot's messages until the requested end, or until `stop`."""
    source = resolve(request)
    out = sys.stdout
    with closing(connect(source.conninfo, application_name=APPLICATION_NAME)) as catalog:
        end_lsn = request.until_lsn
        if not request.follow:
            flush_lsn = read_flush_lsn(catalog)
            end_lsn = flush_lsn if end_lsn is None else min(end_lsn, flush_lsn)
        stream = start_stream(request, source, catalog, stop, _report)
        if stream is None:
            return 0
        with closing(stream):
            try:
                Tail(request, stream, _make_writer(request, catalog, out), out, end_lsn).run(stop)
            except BrokenPipeError:
                _discard_output(out)
            except SlotBusyError:
                raise busy_error(catalog, source.slot) from None
    return 0


class Tail:
    """The loop of one command; it ends after the transactions that ended up to `end_lsn` (inclusive)."""

    def __init__(
        self,
        request: TailOptions,
        stream: ChangeStream,
        writer: TextFormat | JsonFormat,
        out: TextIO,
        end_lsn: LSN | None,
    ) -> None:
        self._request = request
        self._stream = stream
        self._writer = writer
        self._out = out
        self._end_lsn = end_lsn
        self._reader = TailReader()
        self._selection = Selection(request.tables, committed_only=request.committed_only)
        self._count = 0
        self._is_done = False
        self._printed_lsn = INVALID  # end of the last transaction that was printed completely

    def run(self, stop: threading.Event) -> None:
        """Print messages until the end, until the reader of the output is gone, or until `stop`."""
        stream = self._stream
        while not (stop.is_set() or self._is_done or self._is_at_end()):
            messages = stream.read(_READ_TIMEOUT)
            self._print(messages, stop)
            if self._request.acknowledge:
                self._acknowledge(stop)
            if not messages:
                stream.ping()
                if _is_closed(self._out):
                    return
        if self._request.acknowledge and self._printed_lsn != INVALID:
            is_confirmed = stream.confirm(_STOP_TIMEOUT if stop.is_set() else _CONFIRM_TIMEOUT)
            if not is_confirmed and not stop.is_set():
                raise SourceError(
                    f"{self._printed_lsn} was acknowledged, but the slot is not there yet: PostgreSQL 10"
                    " moves it only after a complete poll, or the server is slow. Check pg_replication_slots."
                )

    def _is_at_end(self) -> bool:
        return self._end_lsn is not None and self._stream.received_lsn >= self._end_lsn

    def _print(self, messages: Iterable[bytes], stop: threading.Event) -> None:
        lines: list[str] = []
        try:
            for data in messages:
                if self._is_done or stop.is_set():
                    break
                for line in self._format(data):
                    lines.append(line)  # one by one: those before a malformed message are printed, too
        finally:
            if lines:
                self._out.write("\n".join([*lines, ""]))
                self._out.flush()

    def _format(self, data: bytes) -> Iterable[str]:
        try:
            tail_message = self._reader.read(data, self._stream.session)
        except ProtocolError:
            yield self._writer.write_malformed(data)
            raise
        if tail_message is None:
            return
        if self._end_lsn is not None and is_after(tail_message.message, self._end_lsn):
            self._is_done = True
            return
        for selected in self._selection.select(tail_message):
            if self._is_done:
                return
            self._count += 1
            self._is_done = self._count == self._request.limit
            yield self._writer.write(selected)
        self._printed_lsn = max(self._printed_lsn, last_end_lsn([data]))

    def _acknowledge(self, stop: threading.Event) -> None:
        """Acknowledge the transactions that were printed completely."""
        is_all_printed = not (self._is_done or stop.is_set())
        if is_all_printed and self._stream.needs_acknowledgement:
            self._printed_lsn = max(self._printed_lsn, self._stream.received_lsn)
        if self._printed_lsn != INVALID:
            self._stream.acknowledge(self._printed_lsn)


def _make_writer(request: TailOptions, catalog: Connection, out: TextIO) -> TextFormat | JsonFormat:
    @cache
    def type_name(oid: int, modifier: int) -> str:
        return read_type_name(catalog, oid, modifier) or f"type {oid}"

    if request.as_json:
        return JsonFormat(type_name, has_values=request.has_values)
    has_colour = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        # A terminal without UTF-8 shows escapes for what it cannot print.
        reconfigure(errors="backslashreplace")
    return TextFormat(
        type_name,
        value_length=request.value_length,
        has_values=request.has_values,
        has_colour=has_colour,
    )


def _is_closed(out: TextIO) -> bool:
    """Return whether the output is a pipe or terminal whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def _discard_output(out: TextIO) -> None:
    """Discard buffered output, so that flushing it at the end of the process does not fail."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, out.fileno())
        os.close(null)


def _report(sentence: str) -> None:
    with suppress(OSError, ValueError):
        print(f"pgdelta: {sentence}", file=sys.stderr, flush=True)
