"""Print each figure with its limit: `python -m tools.bench [PART ...]`, or one comparison by `--only`.

The rows go to stdout as they are measured, progress to stderr. Everything runs on a server and in a folder of
its own, which are gone afterwards, however that ends.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pipeline
from pipeline.postgres.embedded import EmbeddedServer, start_server
from tools.bench.limits import Row, heading, rows_missing, rows_of
from tools.bench.parts import PARTS
from tools.bench.rig import Rig

# named here because only a comparison needs to import Spark
COMPARISONS = ("capture", "sync", "apply", "memory", "delay", "streams", "copy", "join", "layout", "modes")
SETTINGS = {"max_wal_size": "8GB", "shared_buffers": "512MB"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a part failed, or under --strict if a limit was missed."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    _compile_modules()
    with _server() as (server, folder):
        if options.only:
            from tools.bench.comparisons import print_comparison

            print_comparison(options.only, server, folder, options.scale)
            return 0
        rig = Rig(server, folder, options.scale, _say)
        try:
            return run_parts(rig, options.parts or list(PARTS), as_json=options.json, strict=options.strict)
        finally:
            rig.ideal.stop()


def run_parts(rig: Rig, names: Sequence[str], *, as_json: bool, strict: bool) -> int:
    """Run parts one after the other and print their rows; a part that fails does not end the others."""
    rows: list[Row] = []
    has_failed = False
    if not as_json:
        print(heading(), flush=True)
    for name in names:
        own: list[Row] = []
        rig.say(f"{name}:")
        try:
            for row in rows_of(PARTS[name](rig)):
                own.append(row)
                _show(row, as_json)
        except Exception as error:
            has_failed = True
            rig.say(f"{name} failed: {error or type(error).__name__}")
            for row in rows_missing(name, own):
                own.append(row)
                _show(row, as_json)
        rows += own
    if as_json:
        print(json.dumps({"scale": rig.scale, "figures": [row.as_json() for row in rows]}), flush=True)
    if rig.scale != 1:
        rig.say(f"scale {rig.scale:g}: the limits are for scale 1")
    missed = sum(row.is_ok is False for row in rows)
    return int(has_failed or (strict and missed > 0))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}, in this order"
    )
    parser.add_argument("--only", choices=COMPARISONS, help="one comparison without a limit, no part")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full sizes (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is missed")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.parts) - PARTS.keys())
    if unknown:
        parser.error(f"no part {', '.join(unknown)}. Choose from {', '.join(PARTS)}.")
    if options.only and (options.parts or options.json or options.strict):
        parser.error("--only takes neither parts nor --json nor --strict.")
    if options.scale <= 0:
        parser.error("--scale must be above 0.")
    return options


@contextmanager
def _server() -> Iterator[tuple[EmbeddedServer, Path]]:
    with tempfile.TemporaryDirectory(prefix="pgdelta-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = start_server(folder / "server", settings=SETTINGS)
        try:
            yield server, folder
        finally:
            server.stop()


def _compile_modules() -> None:
    """Let every process find compiled modules, as after an installation, whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir(Path(pipeline.__path__[0]), quiet=2)


def _show(row: Row, as_json: bool) -> None:
    if not as_json:
        print(row.line(), flush=True)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
