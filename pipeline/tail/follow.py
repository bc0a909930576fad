"""What a slot says, live: the loop of `pgdelta tail`.

Messages are read, chosen and printed; nothing is acknowledged unless that was asked for, and then only whole
transactions, after they were printed. This is the one command that prints values of rows. It needs no Spark.
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
from pipeline.tail.frames import TailMessage, TailReader, is_past
from pipeline.tail.json_format import JsonFormat
from pipeline.tail.request import TailOptions
from pipeline.tail.selection import Selection
from pipeline.tail.source import APPLICATION_NAME, explain_busy, resolve, start_stream
from pipeline.tail.text_format import TextFormat

_READ_TIMEOUT = 0.25
_CONFIRM_TIMEOUT = 30.0
_STOP_TIMEOUT = 0.5


def run_tail(request: TailOptions, stop: threading.Event) -> int:
    """Print what the slot says until the end that was asked for, or until `stop`."""
    source = resolve(request)
    out = sys.stdout
    with closing(connect(source.conninfo, application_name=APPLICATION_NAME)) as catalog:
        until_lsn = request.until_lsn
        if not request.follow:
            flush_lsn = read_flush_lsn(catalog)
            until_lsn = flush_lsn if until_lsn is None else min(until_lsn, flush_lsn)
        stream = start_stream(request, source, catalog, stop, _say)
        if stream is None:
            return 0
        with closing(stream):
            try:
                Tail(request, stream, _writer(request, catalog, out), out, until_lsn).run(stop)
            except BrokenPipeError:
                _forget(out)
            except SlotBusyError:
                raise explain_busy(catalog, source.slot) from None
    return 0


class Tail:
    """The loop of one command."""

    def __init__(
        self,
        request: TailOptions,
        stream: ChangeStream,
        writer: TextFormat | JsonFormat,
        out: TextIO,
        until_lsn: LSN | None,
    ) -> None:
        self._request = request
        self._stream = stream
        self._writer = writer
        self._out = out
        self._until_lsn = until_lsn
        self._reading = TailReader()
        self._selection = Selection(request.tables, committed_only=request.committed_only)
        self._count = 0
        self._is_done = False
        self._end_lsn = INVALID  # of the last transaction that was shown whole

    def run(self, stop: threading.Event) -> None:
        """Go on until there is nothing more to show, nobody reads, or `stop`."""
        stream = self._stream
        while not (stop.is_set() or self._is_done or self._is_at_end()):
            messages = stream.read(_READ_TIMEOUT)
            self._show(messages, stop)
            if self._request.acknowledge:
                self._acknowledge(stop)
            if not messages:
                stream.ping()
                if _is_abandoned(self._out):
                    return
        if self._request.acknowledge and self._end_lsn != INVALID:
            is_kept = stream.confirm(_STOP_TIMEOUT if stop.is_set() else _CONFIRM_TIMEOUT)
            if not is_kept and not stop.is_set():
                raise SourceError(
                    f"{self._end_lsn} was acknowledged, and the slot does not stand there yet: it moves with"
                    " a whole look (PostgreSQL 10), or the server is slow; ask pg_replication_slots."
                )

    def _is_at_end(self) -> bool:
        return self._until_lsn is not None and self._stream.received_lsn >= self._until_lsn

    def _show(self, messages: Iterable[bytes], stop: threading.Event) -> None:
        lines: list[str] = []
        try:
            for data in messages:
                if self._is_done or stop.is_set():
                    break
                for line in self._take(data):
                    lines.append(line)  # what comes before a broken message is printed before it
        finally:
            if lines:
                self._out.write("\n".join([*lines, ""]))
                self._out.flush()

    def _take(self, data: bytes) -> Iterable[str]:
        try:
            seen = self._reading.read(data, self._stream.session)
        except ProtocolError:
            yield self._writer.write_unknown(data)
            raise
        if seen is None:
            return
        if self._until_lsn is not None and is_past(seen.message, self._until_lsn):
            self._is_done = True
            return
        for chosen in self._selection.select(seen):
            if self._is_done:
                return
            yield self._write(chosen)
        self._end_lsn = max(self._end_lsn, last_end_lsn([data]))

    def _write(self, seen: TailMessage) -> str:
        self._count += 1
        self._is_done = self._count == self._request.limit
        return self._writer.write(seen)

    def _acknowledge(self, stop: threading.Event) -> None:
        """Let the slot forget the transactions that were shown whole."""
        is_all_shown = not (self._is_done or stop.is_set())
        if is_all_shown and self._stream.needs_acknowledgement:
            self._end_lsn = max(self._end_lsn, self._stream.received_lsn)
        if self._end_lsn != INVALID:
            self._stream.acknowledge(self._end_lsn)


def _writer(request: TailOptions, catalog: Connection, out: TextIO) -> TextFormat | JsonFormat:
    @cache
    def type_name(oid: int, modifier: int) -> str:
        return read_type_name(catalog, oid, modifier) or f"type {oid}"

    if request.as_json:
        return JsonFormat(type_name, has_values=request.has_values)
    has_colour = out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        # A terminal that knows less than UTF-8 gets escapes for the rest.
        reconfigure(errors="backslashreplace")
    return TextFormat(
        type_name,
        value_length=request.value_length,
        has_values=request.has_values,
        has_colour=has_colour,
    )


def _is_abandoned(out: TextIO) -> bool:
    """Tell whether stdout is a pipe or terminal whose other side is gone."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False


def _forget(out: TextIO) -> None:
    """Let what is still to be written go nowhere, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)


def _say(sentence: str) -> None:
    with suppress(OSError, ValueError):
        print(f"pgdelta: {sentence}", file=sys.stderr, flush=True)
