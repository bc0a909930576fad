"""Try readers on a lake and write their page: `python -m tools.readers ENVIRONMENTS`, by `make readers`.

ENVIRONMENTS is the folder of the readers' own environments; Spark 4 is that of this one. Exits with 1 if a
reader does not read what the page said that it reads, or reads something wrongly that the page did not name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import DOCS
from tools.readers import read
from tools.readers.lake import Wanted, make_lake
from tools.readers.page import LACKS, REFUSES, WRONG, Cell, compared, page, worse

PAGE = DOCS / "reference" / "readers.md"
_OWN = {"Spark 3.5": "spark3", "Spark 4": None}  # the others share an environment
_SECONDS = 300


def try_reader(
    name: str, environments: Path, wanted: Sequence[Wanted], folder: Path
) -> tuple[str, list[Cell]]:
    """Return a reader's version and what it did; one that ends early refuses what is left."""
    place = _OWN.get(name, "others")
    python = sys.executable if place is None else str(environments.absolute() / place / "bin" / "python")
    requests, results = folder / "requests.json", folder / f"{name}.jsonl"
    requests.write_text(json.dumps([each.request for each in wanted]), encoding="utf-8")
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key and key != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(read.__file__), name, str(requests), str(results)],
        cwd=folder,  # ClickHouse reads files below its working directory only
        env=environ,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    if not lines:
        raise SystemExit(f"{name} does not start: {done.stderr[-2000:]}")
    version, *found = map(json.loads, lines)
    found += [{"error": f"The reader ended with {done.returncode}."}] * (len(wanted) - len(found))
    cells = []
    for each, result in zip(wanted, found, strict=True):
        if "rows" in result:
            cells.append(compared(each.rows, result["rows"]))
        else:
            cells.append(Cell(LACKS) if "lacks" in result else Cell(REFUSES, result["error"]))
    return f"{name} ({version['version']})", cells


def main(environments: str) -> int:
    """Write the page; return 1 if a reader does worse than it said."""
    with tempfile.TemporaryDirectory(prefix="pgdelta-readers-") as name:
        folder = Path(name)
        wanted = make_lake(folder)
        columns: dict[str, list[Cell]] = {}
        for reader in read.READERS:
            label, cells = try_reader(reader, Path(environments), wanted, folder)
            columns[label] = cells
            print(f"{label}: {', '.join(cell.state for cell in cells)}", flush=True)
            for each, cell in zip(wanted, cells, strict=True):
                if cell.state == WRONG:
                    print(f"WRONG: {label}, {each.feature.title}: {cell.why}", flush=True)
    text = page(columns, [each.feature.title for each in wanted])
    print(f"\n{text}")
    faults = worse(PAGE.read_text(encoding="utf-8"), text) if PAGE.exists() else []
    PAGE.write_text(text, encoding="utf-8")
    for fault in faults:
        print(f"WORSE: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
