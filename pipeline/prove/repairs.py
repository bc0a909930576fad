"""What brings rows that differ back to their source: a copy of their keys, or of the whole table.

It is asked for as `pgdelta resync` asks, and goes the way of every copy: the next ingest reads the rows, the
apply after it puts them in place by one commit.
"""

from pipeline.keys import KeyRange
from pipeline.lake.bronze.copy_states import Request
from pipeline.postgres.rows.canonical import Kind
from pipeline.prove.compared import Compared
from pipeline.prove.ranges import Differences
from pipeline.rules import TableName

MOST_KEYS = 1000  # more are a matter of the whole table
REASON = "it differs from the source"


def plan_repair(name: TableName, found: Differences, compared: Compared) -> Request:
    """Return a request for the keys of the rows that differ, or for all rows where keys do not tell them."""
    forms = [compared.shape.columns[place][1] for place in compared.shape.key]
    has_texts = all(form.kind not in (Kind.REAL, Kind.DOUBLE) for form in forms)  # those are bits
    keys = {tuple(text for text in row.key if text is not None) for row in found.rows}
    is_told = (
        bool(forms)
        and has_texts
        and found.is_whole
        and len(keys) <= MOST_KEYS
        and all(len(key) == len(forms) for key in keys)
    )
    return Request.of(name, REASON, [KeyRange(key, key) for key in sorted(keys)] if is_told else ())


def repair_sentence(request: Request) -> str:
    """Say what is copied anew."""
    if not request.key_ranges:
        return "the whole table is to be copied anew"
    count = len(request.key_ranges)
    return f"the rows of {count:,} key{'' if count == 1 else 's'} are to be copied anew"
