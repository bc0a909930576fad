"""Read silver live again and again, all rows of all tables: `python -m tools.bench.live_reader CONFIG`.

Two threads read a table each, as a query engine does.

Each read prints a JSON object: the LSN that it shows, the monotonic time at its end, its seconds and rows.
It goes on until SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from pipeline.config.load import load_config
from pipeline.errors import LakeError
from pipeline.reading.live import open_live

PAUSE_SECONDS = 0.1
THREADS = 2


def main(path: str) -> None:
    """Read until a signal."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    reader = open_live(load_config(path))
    with ThreadPoolExecutor(THREADS) as threads:
        while not stop.wait(PAUSE_SECONDS):
            began = time.monotonic()
            try:
                live = reader.read()
            except LakeError:  # bronze is still empty
                continue
            rows = sum(threads.map(lambda table: table.to_table().num_rows, [live[name] for name in live]))
            at = time.monotonic()
            read = {"lsn": int(live.lsn), "at": at, "seconds": at - began, "rows": rows, "tables": len(live)}
            print(json.dumps(read), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
