"""Names and folders of silver tables: of tables that had several names, and of each table alone.

Folders of silver tables: each is that of one table, and lies in no other's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pyspark.sql import functions as F

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import BronzeOffset, TableSurvey
from pipeline.bronze.relations import SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.config import Config
from pipeline.delta.sql import literal
from pipeline.delta.table import LakeTable
from pipeline.errors import LakeError
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.registry import RegisteredTable
from pipeline.protocol.lsn import LSN
from pipeline.silver.table import SilverTable
from pipeline.silver.versions import resolve_path
from pipeline.table_name import TableName


def refuse_nested_folder(config: Config, name: TableName) -> None:
    """Raise LakeError where a table's folder would lie in another's: VACUUM would take its files away."""
    rule = config.rule_for(name)
    if rule and rule.target is None and any(name[0] == other.target for other in config.tables):
        raise LakeError(
            f"{name} would lie in the folder of the silver table {name[0]}, which is another "
            "table's target: give one of them another target"
        )


def why_folder_is_taken(
    name: TableName, path: str, registered: Mapping[TableName, RegisteredTable], root: str
) -> str | None:
    """Say why a table may not go on in a folder that has rows, None where they are its own.

    All tables record their positions alike, so a folder does not tell whose it is: where tables are on record
    does. Of a folder that is on record for nobody the table was cut off as it began.
    """
    places = {other: resolve_path(table.path, other, root) for other, table in registered.items()}
    if places.get(name) == path:
        return None
    owner = next((other for other, place in sorted(places.items()) if place == path), None)
    if owner is None and name not in places:
        return None
    whose = f"those of {owner}" if owner else f"not those of now, which are in {places[name]}"
    return (
        f"{name} is held: the rows in its folder {path} are {whose}; give it another target, or "
        "move the folder away, and the table begins there anew"
    )


# Changes of a table that came under another name, before others came under its own again.
@dataclass(frozen=True, slots=True)
class ChangesUnderOtherName:
    """The last change of a table that came under another name."""

    lsn: LSN
    name: TableName


def last_changes_under_other_name(
    changes: LakeTable, oid: int, name: TableName, after: LSN, upto: LSN, *, has_rows: bool
) -> ChangesUnderOtherName | None:
    """Return the last change of a table under another name that one under its own follows, between positions.

    With `has_rows` silver has what came before the first position; else what came before the first change
    under the own name is not what it lacks.
    """
    rows = changes.frame().where(
        f"op IN ('I', 'U', 'D', 'T') AND relation_id = {oid} "
        f"AND end_lsn > {int(after)} AND end_lsn <= {int(upto)}"
    )
    is_own = f"(schema_name = {literal(name[0])} AND table_name = {literal(name[1])})"
    place = "struct(commit_lsn, ordinal)"
    first, last = F.expr(f"min({place})").alias("first"), F.expr(f"max({place})").alias("last")
    own = rows.where(is_own).agg(first, last).head()
    if own is None or own["last"] is None:
        return None
    begin = "true" if has_rows else f"{place} > {_place(own['first'])}"
    others = rows.where(f"NOT {is_own} AND {begin} AND {place} < {_place(own['last'])}")
    newest = F.expr("max(struct(commit_lsn, ordinal, schema_name, table_name))").alias("newest")
    for row in others.agg(newest).where("newest IS NOT NULL").collect():
        return ChangesUnderOtherName(
            LSN(row.newest.commit_lsn), TableName(row.newest.schema_name, row.newest.table_name)
        )
    return None


def _place(found: tuple[int, int]) -> str:
    return f"struct({found[0]}L AS commit_lsn, {found[1]}L AS ordinal)"


def replaced_tables(
    found: Mapping[TableName, Sequence[TableSurvey]],
    copies: Mapping[TableName, CompleteCopy],
    registered: Mapping[TableName, RegisteredTable],
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


class OtherNames:
    """Finds what came under other names than a table's own; bronze is asked where there may be something."""

    def __init__(self) -> None:
        self._settled: set[TableName] = set()  # of which all that came so far came under their names

    def update(
        self, names: Mapping[int, Set[TableName]], registered: Mapping[TableName, RegisteredTable]
    ) -> None:
        """Take note of a pass, by the names under which changes of each table came."""
        self._settled -= {n for n, table in registered.items() if names.get(table.relation_id, {n}) - {n}}

    def find(
        self,
        known: RegisteredTable | None,
        point: BronzeOffset,
        names: Mapping[int, Set[TableName]],
        relations: Mapping[int, SourceRelation],
        writer: SilverTable,
    ) -> ChangesUnderOtherName | None:
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

    def _find(self, oid: int, point: BronzeOffset, writer: SilverTable) -> ChangesUnderOtherName | None:
        name, bronze = writer.name, writer.bronze
        copy = writer.history.newest(point.lsn).get(name)
        after = Manifests(bronze.lake).last_before(writer.offset)
        if copy is not None:
            after = max(after, copy.lsns[0])
        return last_changes_under_other_name(
            bronze.changes, oid, name, after, point.lsn, has_rows=copy is not None
        )


def rename_events(
    name: TableName,
    registered: Mapping[TableName, RegisteredTable],
    relations: Mapping[int, SourceRelation],
    surveys: Sequence[Survey],
    astray: ChangesUnderOtherName | None,
) -> Iterator[Event]:
    """Give the events about changes that silver does not have for a rename."""
    known = registered.get(name)
    first = {relations[survey.version].oid: survey.first[0] for survey in reversed(surveys)}
    for other, table in registered.items():
        oid = table.relation_id
        if oid in first and other != name and (known is None or known.relation_id != oid):
            sentence = (
                f"{other} was renamed to {name}: rows from before are in the silver "
                "table of the old name, and only a resync brings them to the new one"
            )
            yield Event(*name, LSN(first[oid]), "resync", sentence)
    if astray is not None:
        sentence = (
            f"the table was called {astray.name} for a while: what changed meanwhile is in bronze "
            "under that name, and only a resync brings it"
        )
        yield Event(*name, astray.lsn, "resync", sentence)
