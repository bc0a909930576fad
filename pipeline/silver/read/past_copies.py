"""Choose the table copy that a rebuild as of an LSN starts from, or explain why there is none. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.bronze.copy_states import DROPPED, CompleteCopy, CopyHistory
from pipeline.bronze.source_relations import SourceRelation
from pipeline.errors import LakeError
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class PastFacts:
    """What bronze records of a table.

    It is complete up to `captured_lsn`, and has every change of the table from `base_lsn` on. Tables of a
    source that `is_copied` have no rows before their first copy.
    """

    name: TableName
    captured_lsn: LSN
    base_lsn: LSN
    history: CopyHistory
    relations: Iterable[SourceRelation]
    is_copied: bool

    @property
    def first_lsn(self) -> LSN:
        """The first LSN at which one of its relation versions was recorded, INVALID if none was."""
        found = (relation.lsn for relation in self.relations if relation.name == self.name)
        return LSN(min(found, default=INVALID))


def copy_as_of(facts: PastFacts, lsn: LSN) -> CompleteCopy | None:
    """Return the copy that a table is built from as of an LSN, None if it is built from its first change.

    Raises LakeError if bronze does not have all rows of the table there.
    """
    name, history = facts.name, facts.history
    if lsn > facts.captured_lsn:
        raise LakeError(
            f"Table {name} cannot be built as of {lsn}, because bronze is complete up to {facts.captured_lsn}"
            " only. Run pgdelta ingest, or choose an LSN up to there."
        )
    if lsn < facts.base_lsn:
        raise _too_old(name, lsn, f"bronze has every change of it from {facts.base_lsn} on only")
    if not INVALID < facts.first_lsn <= lsn:
        since = f"bronze has it from {facts.first_lsn} on" if facts.first_lsn else "bronze does not have it"
        raise _too_old(name, lsn, since)
    copy = history.newest(lsn).get(name)
    for gap in history.gaps:
        is_covered = gap.is_before(copy.lsns[0]) if copy else facts.first_lsn >= gap.end
        if gap.start < lsn and not is_covered and not history.is_compared(name, gap, lsn):
            raise _too_old(name, lsn, f"the stream has a gap from {gap.start} to {gap.end}")
    if copy is None and facts.is_copied:
        copies = (state.copy for state in history.states.get(name, ()))
        ends = [each.end_lsn for each in copies if each and not each.key_ranges]
        since = f"its first copy shows {min(ends)}" if ends else "bronze has no complete copy of it"
        raise _too_old(name, lsn, since)
    for state in history.states.get(name, ()):
        if state.state == DROPPED and state.dropped_at <= lsn and (copy is None or state.id > copy.id):
            raise _too_old(name, lsn, f"it was not published at {state.dropped_at}, and not copied since")
    return copy


def _too_old(name: TableName, lsn: LSN, reason: str) -> LakeError:
    return LakeError(
        f"Table {name} cannot be built as of {lsn}, because {reason}. Choose another LSN; pgdelta as-of may "
        "have a version that shows this one."
    )
