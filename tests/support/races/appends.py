"""A process that appends to a table again and again, for races of several.

`python -m tests.support.races.appends ROOT NAME COUNT` with the options of the storage as JSON on standard
input. Prints the version of each commit that was acknowledged, and what distinguishes it from others.
"""

import json
import sys

from pipeline.config.storage import Storage
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.store.looks import one_look
from pipeline.delta.table import Lake
from pipeline.delta.txn import TableCommit, TxnId
from pipeline.protocol.lsn import LSN

DDL = "writer STRING, number INT"


def main(root: str, name: str, count: int, options: dict[str, str]) -> None:
    """Append rows, each in a commit of its own."""
    table = Lake(Storage(root, options)).table("t")
    for number in range(count):
        commit = TableCommit(TxnId(f"{name}{number}"), LSN(number + 1), {"writer": name, "number": number})
        with one_look():  # as apply does
            retry_conflicts(
                lambda: table.append_rows([{"writer": name, "number": number}], DDL, commit)  # noqa: B023
            )
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.stdin.read()))
