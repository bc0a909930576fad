"""Run tests, and print where their time goes: `python -m tools.suite_profile [pytest's arguments]`.

`--picture FILE` also writes the table as stacked bars (SVG), and `--records FOLDER` prints an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.suite_profile.picture import write_picture
from tools.suite_profile.plugin import FOLDER, KINDS

Record = dict[str, Any]
ORDER = (*KINDS, "other")


def main(arguments: Sequence[str]) -> int:
    """Profile one run; return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.suite_profile", description=__doc__)
    parser.add_argument("--picture", type=Path, help="write stacked bars to this SVG file")
    parser.add_argument("--records", type=Path, help="print the records of an earlier run in this folder")
    parser.add_argument("--slowest", type=int, default=25, help="how many tests and fixtures to list")
    options, rest = parser.parse_known_args(arguments)
    code = 0
    if options.records is None:
        options.records = Path(tempfile.mkdtemp(prefix="suite-profile-"))
        command = [sys.executable, "-m", "pytest", "-p", "tools.suite_profile.plugin", *rest]
        code = subprocess.run(
            command, env={**os.environ, FOLDER: str(options.records)}, check=False
        ).returncode
    records = read_records(options.records)
    if not records:
        print("No test was run.")
        return code or 1
    topics = by_topic(records)
    print("\n".join(topic_lines(topics)))
    print("\n".join(slowest_lines(records, options.slowest)))
    if options.picture:
        write_picture(options.picture, topics, ORDER)
        print(f"picture: {options.picture}")
    return code


def read_records(folder: Path) -> list[Record]:
    """Return what the plugin recorded, a record a test."""
    lines = (line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines]


def by_topic(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the seconds of each topic by kind of work, and the processor seconds of Python and the JVM."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for record in records:
        topic = "/".join(record["test"].partition("::")[0].split("/")[1:3]).removesuffix(".py")
        for kind, seconds in record["kinds"].items():
            found[topic][kind] += seconds
        found[topic]["tests"] += 1
        found[topic]["python"] += record["processor"]
        found[topic]["jvm"] += record.get("jvm", 0.0)
    return dict(sorted(found.items(), key=lambda item: -seconds_of(item[1])))


def seconds_of(topic: dict[str, float]) -> float:
    """Return the seconds of a topic, of all processes of the run."""
    return sum(topic.get(kind, 0.0) for kind in ORDER)


def topic_lines(topics: dict[str, dict[str, float]]) -> list[str]:
    """Return a table: seconds by topic and kind of work, and processor seconds."""
    heads = ["topic", "tests", "s", *ORDER, "cpu", "jvm"]
    rows = [heads]
    total: dict[str, float] = defaultdict(float)
    for name, topic in topics.items():
        for key, value in topic.items():
            total[key] += value
        rows.append(_row(name, topic))
    rows.append(_row("all", total))
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return [
        "  ".join(text.rjust(widths[i]) if i else text.ljust(widths[0]) for i, text in enumerate(row))
        for row in rows
    ]


def _row(name: str, topic: dict[str, float]) -> list[str]:
    kinds = [f"{topic.get(kind, 0.0):.0f}" for kind in ORDER]
    processor = [f"{topic.get(key, 0.0):.0f}" for key in ("python", "jvm")]
    return [name, f"{topic['tests']:.0f}", f"{seconds_of(topic):.0f}", *kinds, *processor]


def slowest_lines(records: Sequence[Record], count: int) -> list[str]:
    """Return the slowest tests, and the fixtures that took most time in all."""
    lines = ["", "slowest tests"]
    for record in sorted(records, key=lambda each: -each["seconds"])[:count]:
        kinds = sorted(record["kinds"].items(), key=lambda item: -item[1])[:2]
        text = ", ".join(f"{kind} {seconds:.0f}" for kind, seconds in kinds if seconds >= 0.5)
        lines.append(f"{record['seconds']:6.1f}  {record['test'].removeprefix('tests/')}  ({text})")
    fixtures: dict[str, float] = defaultdict(float)
    for record in records:
        for name, seconds in record["fixtures"].items():
            fixtures[name] += seconds
    lines += ["", "fixtures"]
    top = sorted(fixtures.items(), key=lambda item: -item[1])[:count]
    return lines + [f"{seconds:6.1f}  {name}" for name, seconds in top if seconds >= 1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
