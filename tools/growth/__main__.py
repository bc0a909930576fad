"""Print what a batch costs as something else grows: `python -m tools.growth held`."""

from __future__ import annotations

import argparse
import sys

from tools.growth.held import CHANGES_OF_TABLE, CURRENT, ROWS, measure_held

LIMIT = 1.2


def main() -> int:
    """Measure and print a table; return 1 if a batch costs more processor time than it may."""
    parser = argparse.ArgumentParser(prog="python -m tools.growth", description=__doc__)
    parser.add_argument("part", choices=["held"], help="held: tables that their guards hold")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of bronze since then (%(default)s)")
    options = parser.parse_args()
    print(f"A batch of {CURRENT} tables x {CHANGES_OF_TABLE} changes, {options.rows:,} older rows in bronze")
    print("tables held  seconds  CPU seconds  files of bronze  bytes of bronze", flush=True)
    costs = []
    for cost in measure_held(options.rows):
        costs.append(cost)
        print(
            f"{cost.held:11}  {cost.seconds:7.2f}  {cost.cpu_seconds:11.2f}  {cost.files:15.0f}  "
            f"{cost.bytes:15,.0f}",
            flush=True,
        )
    ratio = max(cost.cpu_seconds for cost in costs) / min(cost.cpu_seconds for cost in costs)
    print(f"most to least CPU seconds: {ratio:.2f} (at most {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
