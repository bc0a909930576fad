"""Detect source tables whose name changed, and check that each folder of silver belongs to one table.

Bronze records a change under the name that its table had at that time; silver follows names. This module
finds changes that were recorded under another name and tables that took over a name, and makes the events
that say what silver lacks. A folder that belongs to another table, or lies in another table's folder, is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.log import Bronze, BronzeOffset
from pipeline.bronze.source_relations import Relations
from pipeline.bronze.surveys import is_table, sequence_key
from pipeline.bronze.table_input import Survey, TableSurvey
from pipeline.config.config import Config
from pipeline.errors import LakeError
from pipeline.metadata.events import Event
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.registry import RegisteredTable
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.silver.write.shared_tables import shared_path
from pipeline.silver.write.table import SilverTable
from pipeline.table_name import TableName

_COLUMNS = ("relation_version", "schema_name", "table_name", "commit_lsn", "end_lsn", "ordinal")


def refuse_nested_folder(
    config: Config, name: TableName, names: Iterable[TableName], path: Callable[[TableName], str]
) -> None:
    """Raise LakeError if a table's folder would lie in another table's: VACUUM would delete its files.

    `names` are all tables; `path` is asked for theirs only if a rule is for several sources.
    """
    rule = config.rule_for(name)
    if any(rule.is_shared for rule in config.tables):
        _refuse_shared_folder(name, {each: path(each) for each in names})
    if rule and rule.target is None and any(name[0] == other.target for other in config.tables):
        raise LakeError(
            f"Table {name} would lie in the folder of the silver table {name[0]}, which is the target of "
            "another rule. Give one of them another target."
        )


def _refuse_shared_folder(name: TableName, paths: Mapping[TableName, str]) -> None:
    """Raise LakeError if a table that is not shared has the folder of a shared one, above or below it."""
    own = shared_path(paths[name])
    folder = f"{own or paths[name]}/"
    for path in paths.values():
        shared = shared_path(path)
        if (shared is None) == (own is None):
            continue
        other = f"{shared or path}/"
        if folder.startswith(other) or other.startswith(folder):
            raise LakeError(
                f"Table {name} would have the folder {folder[:-1]}, which is that of {other[:-1]}, above or "
                "below it: one of them is for several sources. Give one of them another target."
            )


def why_folder_is_taken(
    name: TableName, path: str, registered: Mapping[TableName, RegisteredTable]
) -> str | None:
    """Return why a table may not use a folder that has rows, None if the rows are its own.

    A folder does not name its table, because all tables record their offsets under the same transaction id;
    `registered` does. A folder that is registered for no table belongs to a run that ended before it could
    register it.
    """
    own = registered.get(name)
    if own is not None and own.path == path:
        return None
    owner = min((other for other, table in registered.items() if table.path == path), default=None)
    if owner is not None:
        whose = f"those of {owner}"
    elif own is not None:
        whose = f"outdated, its current rows are in {own.path}"
    else:
        return None
    return (
        f"Table {name} is held: the rows in its folder {path} are {whose}. Give it another target, or move "
        "the folder away to have it rebuilt there."
    )


@dataclass(frozen=True, slots=True)
class ChangesUnderOtherName:
    """The last change of a table that was recorded under another name, before others under its own name."""

    lsn: LSN
    name: TableName


def last_changes_under_other_name(
    bronze: Bronze,
    versions: Collection[int],
    name: TableName,
    start_lsn: LSN,
    end_lsn: LSN,
    *,
    own_lsn: LSN = INVALID,
    has_rows: bool,
) -> ChangesUnderOtherName | None:
    """Return the last change of a table under another name before one under its own name, or `own_lsn`.

    `versions` are the table's relation versions. Only transactions that end in (start_lsn, end_lsn] count. At
    `own_lsn` the table had its own name, by a change or by the catalog. With `has_rows`, silver has the rows
    from before `start_lsn`; otherwise changes before the first one under its own name are not missing.
    """
    own = is_table(name)
    sql = f"""
        SELECT schema_name, table_name, sequence_key FROM (
            SELECT schema_name, table_name, sequence_key, commit_lsn, is_own,
                min(CASE WHEN is_own THEN sequence_key END) OVER () AS first_own,
                max(CASE WHEN is_own THEN sequence_key END) OVER () AS last_own
            FROM (
                SELECT *, {own} AS is_own, {{key}} AS sequence_key
                FROM {{changes}} WHERE relation_version IN ({", ".join(map(str, versions))})
            )
        )
        WHERE NOT is_own AND (sequence_key < last_own OR commit_lsn < {int(own_lsn)})
            {"" if has_rows else "AND (first_own IS NULL OR sequence_key > first_own)"}
        ORDER BY sequence_key DESC, schema_name DESC, table_name DESC LIMIT 1
    """
    for schema, table, key in bronze.select(sql, _COLUMNS, start_lsn, end_lsn):
        return ChangesUnderOtherName(LSN(sequence_key(key)[0]), TableName(schema, table))
    return None


def replaced_tables(
    found: Mapping[TableName, Sequence[TableSurvey]],
    copies: Mapping[TableName, CompleteCopy],
    registered: Mapping[TableName, RegisteredTable],
    relations: Relations,
) -> set[TableName]:
    """Return the names whose input has changes of another table than the one that was copied.

    Another table was created or renamed to the name, and silver lacks its rows. Without a copy, the table
    that is registered for silver counts.
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
    found: Mapping[TableName, Sequence[TableSurvey]], relations: Relations
) -> dict[int, set[TableName]]:
    """Return the names under which changes of each table were recorded, by its oid."""
    names: dict[int, set[TableName]] = {}
    for name, surveys in found.items():
        for each in surveys:
            names.setdefault(relations[each.survey.version].oid, set()).add(name)
    return names


class OtherNames:
    """Finds changes that were recorded under another name; reads bronze only if there may be some."""

    def __init__(self) -> None:
        self._settled: set[TableName] = set()  # all their changes so far have their own names
        self._newest: Mapping[int, Set[TableName]] = {}  # the names of the newest batch

    def update(
        self, names: Mapping[int, Set[TableName]], registered: Mapping[TableName, RegisteredTable]
    ) -> None:
        """Record the names under which a batch has changes of each table."""
        self._newest = names
        self._settled -= {n for n, table in registered.items() if names.get(table.relation_id, {n}) - {n}}

    def find(
        self,
        known: RegisteredTable | None,
        point: BronzeOffset,
        names: Mapping[int, Set[TableName]],
        relations: Relations,
        writer: SilverTable,
        surveys: Iterable[Survey],
        *,
        is_behind: bool,
    ) -> ChangesUnderOtherName | None:
        """Return the last change under another name since the table was written and before its newest change.

        The batch that wrote the table may have had such changes after the last one under its own name, so the
        search starts where that write started, or at the LSN of the manifest before it. `names` are those of
        the batch that writes the table; a newer one may have others, and so may earlier ones if the table
        `is_behind`. `surveys` are of what the input has under the table's own name.
        """
        name = writer.name
        if known is None or name in self._settled:
            return None
        oid, found = known.relation_id, None
        if any(r.oid == oid and r.name != name for r in relations.values()):
            versions = [r.version for r in relations.values() if r.oid == oid]
            own_lsn = LSN(max((survey.last[0] for survey in surveys), default=INVALID))
            found = self._find(versions, point, writer, own_lsn)
        if not is_behind and names is self._newest and names.get(oid, {name}) == {name}:
            self._settled.add(name)
        return found

    def _find(
        self, versions: Collection[int], point: BronzeOffset, writer: SilverTable, own_lsn: LSN
    ) -> ChangesUnderOtherName | None:
        name, bronze = writer.name, writer.bronze
        copy = writer.history.newest(point.lsn).get(name)
        start_lsn = min(Manifests(bronze.lake).last_before(writer.offset), writer.last_start_lsn)
        if copy is not None:
            start_lsn = max(start_lsn, copy.lsns[0])
        return last_changes_under_other_name(
            bronze, versions, name, start_lsn, point.lsn, own_lsn=own_lsn, has_rows=copy is not None
        )


def rename_events(
    name: TableName,
    registered: Mapping[TableName, RegisteredTable],
    relations: Relations,
    surveys: Sequence[Survey],
    other_name: ChangesUnderOtherName | None,
) -> Iterator[Event]:
    """Yield the events about rows and changes that silver lacks because of a rename."""
    known = registered.get(name)
    first = {relations[survey.version].oid: survey.first[0] for survey in reversed(surveys)}
    for other, table in registered.items():
        oid = table.relation_id
        if oid in first and other != name and (known is None or known.relation_id != oid):
            sentence = (
                f"Table {other} was renamed to {name}. Earlier rows are in the silver table of the old name. "
                f"Run {name.command('resync')}."
            )
            yield Event(*name, LSN(first[oid]), "resync", sentence)
    if other_name is not None:
        sentence = (
            f"Table {name} was called {other_name.name} for a while. Its changes of that time are in bronze "
            f"under that name. Run {name.command('resync')}."
        )
        yield Event(*name, other_name.lsn, "resync", sentence)
