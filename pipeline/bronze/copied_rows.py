"""What a copy of a table is, as bronze has it: its rows (op R), and which changes these hold already.

A copy was read under one snapshot; under several where it was cut off and went on. Its rows stand at the
position of theirs. Of the transactions before that position a snapshot lacks those in `late`: they ended in
the log, but nobody could see them yet. Rows of one snapshot are followed by every change that it does not
hold; rows of several are inserts among the changes, so that the newest row of a key and what came after it
count. A patch is a copy of some keys: at its place its rows are put for all that silver has of them, and
every change behind it follows, those that it holds already once more, which leaves the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.key_ranges import KeyRange
from pipeline.protocol.lsn import INVALID, LSN


@dataclass(frozen=True, slots=True)
class CompleteCopy:
    """One complete copy; `lsns` are the positions of its snapshots, in order."""

    id: int
    version: int  # the relation version of its rows
    lsns: tuple[LSN, ...]
    row_count: int
    invisible_commits: tuple[LSN, ...] = ()  # commit LSNs; of a copy under several snapshots there are none
    key_ranges: tuple[KeyRange, ...] = ()  # of a patch

    @property
    def is_whole(self) -> bool:
        """Say whether all rows are of one snapshot, so that no two have the same key."""
        return len(self.lsns) == 1

    @property
    def end_lsn(self) -> LSN:
        """Return the position of the last snapshot: bronze has to be complete beyond it."""
        return self.lsns[-1]

    @property
    def lsn(self) -> LSN:
        """Return where the rows stand among the changes: those of one snapshot before all that it lacks."""
        return LSN(min((self.lsns[0], *(lsn - 1 for lsn in self.invisible_commits))))

    def condition(self) -> str:
        """Return SQL that is true for the copy's rows and for the changes that follow them."""
        if self.key_ranges:
            return f"op = 'R' AND copy_id = {self.id} AND commit_lsn = {int(self.end_lsn)}"
        late = f" OR commit_lsn IN ({_numbers(self.invisible_commits)})" if self.invisible_commits else ""
        return (
            f"commit_lsn >= {int(self.lsn)} AND CASE WHEN op = 'R' THEN copy_id = {self.id} "
            f"AND commit_lsn IN ({_numbers(self.lsns)}) ELSE commit_lsn > {int(self.lsns[0])}{late} END"
        )

    def commit_lsn(self) -> str:
        """Return SQL for the position by which rows and changes are in order."""
        if not self.invisible_commits:
            return "commit_lsn"
        return f"CASE WHEN op = 'R' THEN {int(self.lsn)} ELSE commit_lsn END"


@dataclass(frozen=True, slots=True)
class InputStart:
    """Where a table's input begins: behind a position, or with the rows of a copy."""

    offset: LSN = INVALID
    copy: CompleteCopy | None = None


def _numbers(lsns: Sequence[LSN]) -> str:
    return ", ".join(str(int(lsn)) for lsn in lsns)
