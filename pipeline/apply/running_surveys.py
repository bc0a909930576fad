"""Surveys of a batch: of current tables in the new changes alone, of those that lag behind continued.

Most tables are at the LSN of the manifest, and the changes after it are surveyed for all tables at once. A
table that lags behind is surveyed up to that LSN by itself, once: what is known of it is kept, and the new
changes are added to it. So a table that stays behind costs no more than a current one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.table_input import TableSurvey, merged
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class _Surveyed:
    """What a table has in (start_lsn, end_lsn]."""

    start_lsn: LSN
    end_lsn: LSN
    surveys: tuple[TableSurvey, ...] = ()


class RunningSurveys:
    """Surveys bronze for one batch after the other."""

    def __init__(self, bronze: Bronze) -> None:
        self._bronze = bronze
        self._known: dict[TableName, _Surveyed] = {}

    def survey(
        self,
        end: BronzeOffset,
        manifest_lsn: LSN,
        starts: Mapping[TableName, LSN],
        kept: Collection[TableName] = (),
    ) -> dict[TableName, list[TableSurvey]]:
        """Return what each table has between its start and the end, one entry per relation version.

        `starts` are those of the tables that do not start at the manifest's LSN. Of the tables in `kept` what
        is known is not forgotten, though this batch does not need it.
        """
        known = {name: self._known_from(name, start, end.lsn) for name, start in starts.items()}
        lagging = {name: each.end_lsn for name, each in known.items() if each.end_lsn < manifest_lsn}
        ahead = {name: each.end_lsn for name, each in known.items() if each.end_lsn > manifest_lsn}
        older = self._bronze.survey_tables(lagging, manifest_lsn) if lagging else {}
        newer = self._bronze.survey(end, manifest_lsn, ahead) if end.lsn > manifest_lsn else {}
        found = dict(newer)
        self._known = {name: each for name, each in self._known.items() if name in kept}
        for name, each in known.items():
            surveys = merged([*each.surveys, *older.get(name, ()), *newer.get(name, ())])
            if self._bronze.why_unread(name, starts[name]) is None:
                self._known[name] = _Surveyed(starts[name], max(each.end_lsn, end.lsn), tuple(surveys))
            if surveys:
                found[name] = surveys
        return found

    def _known_from(self, name: TableName, start_lsn: LSN, end_lsn: LSN) -> _Surveyed:
        """Return what is known of a table from a start up to an end at most."""
        known = self._known.get(name)
        if known is None or known.start_lsn != start_lsn or known.end_lsn > end_lsn:
            return _Surveyed(start_lsn, start_lsn)
        return known
