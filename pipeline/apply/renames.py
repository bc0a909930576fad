"""Names that several tables had: bronze has changes under the name of their time, silver a table for each."""

from collections.abc import Iterator, Mapping, Sequence, Set

from pipeline.lake.bronze.arrivals import Point
from pipeline.lake.bronze.astray import Astray, last_astray
from pipeline.lake.bronze.tables import TableSurvey
from pipeline.lake.manifests import Manifests
from pipeline.lake.records import Event, Registered
from pipeline.lake.silver.table import SilverTable
from pipeline.protocol.lsn import LSN
from pipeline.rules import TableName
from pipeline.silver.copies import Copy
from pipeline.silver.plan import Survey
from pipeline.silver.relation import SourceRelation


def replaced_tables(
    found: Mapping[TableName, Sequence[TableSurvey]],
    copies: Mapping[TableName, Copy],
    registered: Mapping[TableName, Registered],
    relations: Mapping[int, SourceRelation],
) -> set[TableName]:
    """Return the names whose input has changes of another table than was copied: its rows are not there yet.

    It was created again under the name, or renamed. Of a name without a copy the table in silver counts.
    """
    replaced = set()
    for name, surveys in found.items():
        copy, known = copies.get(name), registered.get(name)
        shown = relations[copy.version].oid if copy else known.relation_id if known else None
        oids = {relations[each.survey.version].oid for each in surveys}
        if shown is not None and oids - {shown}:
            replaced.add(name)
    return replaced


def names_by_table(
    found: Mapping[TableName, Sequence[TableSurvey]], relations: Mapping[int, SourceRelation]
) -> dict[int, set[TableName]]:
    """Return the names under which changes of each table came, by its oid."""
    names: dict[int, set[TableName]] = {}
    for name, surveys in found.items():
        for each in surveys:
            names.setdefault(relations[each.survey.version].oid, set()).add(name)
    return names


class Detours:
    """Finds what came under other names than a table's own; bronze is asked where there may be something."""

    def __init__(self) -> None:
        self._settled: set[TableName] = set()  # of which all that came so far came under their names

    def note(self, names: Mapping[int, Set[TableName]], registered: Mapping[TableName, Registered]) -> None:
        """Take note of a pass, by the names under which changes of each table came."""
        self._settled -= {n for n, table in registered.items() if names.get(table.relation_id, {n}) - {n}}

    def find(
        self,
        known: Registered | None,
        point: Point,
        names: Mapping[int, Set[TableName]],
        relations: Mapping[int, SourceRelation],
        writer: SilverTable,
    ) -> Astray | None:
        """Return what came last under another name since the table was written, and before its newest change.

        The pass that wrote it may have had such changes behind the last one under its own name: they are
        looked for from where that pass began.
        """
        name = writer.name
        if known is None or name in self._settled:
            return None
        oid, found = known.relation_id, None
        if any(r.oid == oid and r.name != name for r in relations.values()):
            found = self._find(oid, point, writer)
        if names.get(oid, {name}) == {name}:
            self._settled.add(name)
        return found

    def _find(self, oid: int, point: Point, writer: SilverTable) -> Astray | None:
        name, bronze = writer.name, writer.bronze
        copy = writer.history.newest(point.lsn).get(name)
        after = Manifests(bronze.lake).last_before(writer.position)
        if copy is not None:
            after = max(after, copy.lsns[0])
        return last_astray(bronze.changes, oid, name, after, point.lsn, has_rows=copy is not None)


def rename_events(
    name: TableName,
    registered: Mapping[TableName, Registered],
    relations: Mapping[int, SourceRelation],
    surveys: Sequence[Survey],
    astray: Astray | None,
) -> Iterator[Event]:
    """Give the events about changes that silver does not have for a rename."""
    known = registered.get(name)
    first = {relations[survey.version].oid: survey.first[0] for survey in reversed(surveys)}
    for other, table in registered.items():
        oid = table.relation_id
        if oid in first and other != name and (known is None or known.relation_id != oid):
            sentence = (
                f"{'.'.join(other)} was renamed to {'.'.join(name)}: rows from before are in the silver "
                "table of the old name, and only a resync brings them to the new one"
            )
            yield Event(*name, LSN(first[oid]), "resync", sentence)
    if astray is not None:
        sentence = (
            f"the table was called {'.'.join(astray.name)} for a while: what changed meanwhile is in bronze "
            "under that name, and only a resync brings it"
        )
        yield Event(*name, astray.lsn, "resync", sentence)
