"""Names that several tables had: bronze has changes under the name of their time, silver a table for each."""

from collections.abc import Iterator, Mapping, Sequence

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


def find_astray(
    known: Registered | None, point: Point, relations: Mapping[int, SourceRelation], writer: SilverTable
) -> Astray | None:
    """Return what came last under another name since the table was written, and before its newest change.

    The pass that wrote it may have had such changes behind the last one under its own name: they are looked
    for from where that pass began.
    """
    name, bronze = writer.name, writer.bronze
    if known is None or all(r.oid != known.relation_id or r.name == name for r in relations.values()):
        return None
    copy = bronze.copies.newest(point.lsn).get(name)
    after = Manifests(bronze.lake).last_before(writer.position)
    if copy is not None:
        after = max(after, copy.lsns[0])
    oid, has_rows = known.relation_id, copy is not None
    return last_astray(bronze.changes, oid, name, after, point.lsn, has_rows=has_rows)


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
