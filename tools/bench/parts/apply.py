"""Apply: 100,000 net changes into a table of a million rows, beside one ideal MERGE of the same rows.

Both write to tables of equal content, in turn and warm: the first round does not count. The seconds of apply
are those that its log gives for the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from tools.bench.limits import Measured
from tools.bench.rig import Rig, Source

ROWS, CHANGES, ROUNDS = 1_000_000, 100_000, 3
CREATE = (
    "CREATE TABLE big (id int PRIMARY KEY, v text, n numeric(12,2), at timestamptz)",
    "INSERT INTO big SELECT g, 'value ' || g, g / 7.0, now() FROM generate_series(1, {}) g",
)


def measure_apply(rig: Rig) -> Iterator[Measured]:
    """Change the table some times and merge each time both ways."""
    rows, changes, rounds = rig.size(ROWS, 1000), rig.size(CHANGES, 100), rig.size(ROUNDS)
    ours, theirs = [], []
    with rig.source("apply") as source:
        source.execute(*(statement.format(rows) for statement in CREATE))
        config = rig.configure(source)
        rig.say(f"first load of {rows:,} rows")
        rig.ingest(config)
        silver, ideal = rig.silver("apply", "big"), rig.root("apply") / "ideal"
        with rig.follow("apply", ["big"]) as logs, rig.job("apply", config) as apply:
            logs.wait(0, apply.check)
            rig.ideal.copy_table(silver, ideal)
            for number in range(rounds + 1):
                rig.say(f"round {number} of {rounds}" if number else "warm-up")
                lsn = source.lsn()
                _change(source, rows, changes, number)
                rig.ingest(config)
                ours.append(rig.wait_for_batch(apply, lsn))
                net = rig.root("apply") / f"net_{number}"
                rig.ideal.write_net_changes(ideal, silver, "id", net)
                theirs.append(rig.ideal.merge({ideal: net}, "id"))
            apply.stop()
            logs.check_rows({"big": source.count("big")})
    yield Measured("apply_ideal", median(theirs[1:]))
    yield Measured("apply_batch", median(ours[1:]))
    yield Measured("apply_ratio", median(ours[1:]) / median(theirs[1:]))


def _change(source: Source, rows: int, changes: int, number: int) -> None:
    """Change random rows in one transaction: of ten, eight are updated, one is deleted, one inserted."""
    first = rows * (number + 2)
    source.transaction(
        f"SELECT setseed({number / 100})",
        "CREATE TEMP TABLE picked ON COMMIT DROP AS SELECT id, row_number() OVER () AS number "
        f"FROM (SELECT id FROM big ORDER BY random() LIMIT {changes * 9 // 10}) each",
        f"DELETE FROM big WHERE id IN (SELECT id FROM picked WHERE number <= {changes // 10})",
        f"UPDATE big SET v = 'changed ' || {number}, at = now() WHERE id IN (SELECT id FROM picked)",
        f"INSERT INTO big SELECT g, 'new', 1, now() FROM generate_series({first}, "
        f"{first + changes // 10 - 1}) g",
    )
