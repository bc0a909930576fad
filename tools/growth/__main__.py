"""Print what a batch costs as something grows: `python -m tools.growth [PART ...]`.

`table`: the table that is changed, with a plot. `held`: what waits for tables that are held. `logs`: old
logs, with maintenance and without. `year`: many commits with maintenance. `many`: the number of tables, with
a real server. Each prints a table and a verdict on its law. Lakes are made below `--folder` and removed
again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.growth.measure import Growth
from tools.growth.parts import PARTS
from tools.growth.parts.held import print_held
from tools.growth.parts.logs import print_logs
from tools.growth.parts.many import print_many
from tools.growth.parts.year import print_year
from tools.growth.plot import write_plot

_PRINTED = {"held": print_held, "logs": print_logs, "year": print_year, "many": print_many}
_NAMES = [*PARTS, *_PRINTED]
_IMAGES = Path("docs/images")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a law does not hold."""
    options = _parse(arguments)
    is_lawful = True
    for name in options.parts or _NAMES:
        if name in _PRINTED:
            is_lawful &= _PRINTED[name](options.scale, options.folder)
            continue
        with tempfile.TemporaryDirectory(prefix="pgdelta-growth-", dir=options.folder) as folder:
            growth = Growth(
                Path(folder), options.scale, options.rounds, options.writer or ["native", "spark"], _say
            )
            print(growth.heading(), flush=True)
            for row in PARTS[name](growth):
                growth.rows.append(row)
                print(row.line(), flush=True)
        for verdict in growth.verdicts():
            print(verdict.line(), flush=True)
            is_lawful &= verdict.is_ok is not False
        if options.plot:
            options.plot.mkdir(parents=True, exist_ok=True)
            write_plot(options.plot / f"growth-{name}.svg", growth.rows)
    return 0 if is_lawful else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.growth", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(_NAMES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full sizes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="batches whose median counts (%(default)s)")
    parser.add_argument("--writer", action="append", choices=("native", "spark"), help="default: both")
    parser.add_argument("--folder", type=Path, help="where lakes are made (default: that of temporary files)")
    parser.add_argument("--plot", type=Path, default=_IMAGES, help="folder of the plots (%(default)s)")
    parser.add_argument("--no-plot", dest="plot", action="store_const", const=None, help="write no plot")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(_NAMES)):
        parser.error(f"no part {', '.join(unknown)}. Choose from {', '.join(_NAMES)}.")
    if options.scale <= 0:
        parser.error("--scale must be above 0.")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1.")
    return options


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
