"""Names that several tables had: bronze has changes under the name of their time, silver a table for each."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.lake.bronze.tables import TableSurvey
from pipeline.lake.records import Event, Registered
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


def rename_events(
    name: TableName,
    registered: Mapping[TableName, Registered],
    relations: Mapping[int, SourceRelation],
    surveys: Sequence[Survey],
    floor: LSN,
) -> Iterator[Event]:
    """Give the events about changes that a table's input, behind its floor, does not have for a rename."""
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
    if known is None or known.relation_id not in first:
        return
    last = max(survey.last[0] for survey in surveys)
    others = (r for r in relations.values() if r.oid == known.relation_id and r.name != name)
    for relation in sorted(others, key=lambda relation: relation.lsn):
        if floor < relation.lsn < last:
            sentence = (
                f"the table was called {'.'.join(relation.name)} for a while: what changed meanwhile is in "
                "bronze under that name, and only a resync brings it"
            )
            yield Event(*name, LSN(relation.lsn), "resync", sentence)
