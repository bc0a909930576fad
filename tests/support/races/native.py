"""One process of a race that commits as pgdelta does without Spark: see `java/Race.java` for the arguments.

`python -m tests.support.races.native LOG MEETING NUMBER COUNT FIRST RACES` prints each version that it wrote.
"""

import json
import sys
from pathlib import Path

from pipeline.delta.native_commit import create_version
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.store import is_store
from tests.support.races.jobs import Meeting


def main() -> None:
    log, meeting_file = sys.argv[1], sys.argv[2]
    number, count, first, races = map(int, sys.argv[3:])
    meeting = Meeting(meeting_file, number, count)
    store = open_store(log) if is_store(log) else None
    for version in range(first, first + races):
        meeting.wait(version + 1)
        text = json.dumps({"commitInfo": {"txnId": f"{number}-{version}"}}, separators=(",", ":"))
        if store is not None:
            is_written = store.create(f"{version:020}.json", f"{text}\n".encode()) is not None
        else:
            is_written = create_version(Path(log), version, text + "\n")
        if is_written:
            print(version)


if __name__ == "__main__":
    main()
