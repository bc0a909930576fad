"""Match silver's columns with those of relation versions, and plan the renames.

PostgreSQL never reuses an attribute number in a table: a column with another name may still be the same
column, and a column that was dropped and added again is another one. If the catalog did not have the number
of a column, the column is the one with its name in the previous version, because the stream itself contains
only names.

If a column of the source has the name of one of pgdelta's own, such as `_commit_lsn`, trailing underscores
are added to the latter. With the policy `text`, a column has a sidecar `<name>__text` for texts
that its silver type cannot hold; it is NULL if the value fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from pipeline.bronze.source_relations import PostgresType, Relations, SourceColumn, SourceRelation
from pipeline.config.tables import TableRule
from pipeline.protected_columns import ProtectedColumn, with_known_types
from pipeline.silver.schema.schema_operations import RenameColumn
from pipeline.silver.types.types import column_type

COMMIT_NAMES = ("_commit_lsn", "_commit_time")


_Column: TypeAlias = tuple[str, PostgresType, int | None]  # name, type, attribute number

_NO_NUMBER = 0  # no column has this attribute number


@dataclass(frozen=True, slots=True)
class SilverColumns:
    """The registered columns of a silver table: the source table's oid, and each column's attribute number.

    `numbers` has the columns under silver's names. `source_names` has those that the source named differently
    in the version whose rows silver shows. `types` are those of the last version's columns, as far as
    registered. `protected` are those that are left out, hashed or masked in the rows. `key` has the columns
    by which rows are found, and is empty if there are none or they are not known.
    """

    relation_id: int
    numbers: Mapping[str, int | None]
    source_names: Mapping[str, int | None] = field(default_factory=dict)
    types: Mapping[str, PostgresType] = field(default_factory=dict)
    protected: tuple[ProtectedColumn, ...] = ()
    key: frozenset[str] = frozenset()

    def after(self, relation: SourceRelation) -> SilverColumns:
        """Return the columns once silver has followed a version; what its catalog lacked stays as it was."""
        numbers = dict(self.numbers) if relation.oid == self.relation_id else {}
        types = {}
        for column in relation.columns:
            if column.attribute_number is not None or column.name not in numbers:
                numbers[column.name] = column.attribute_number
            types[column.name] = column.type
            if not column.is_type_known and column.name in self.types:
                types[column.name] = self.types[column.name]
        key = frozenset(relation.key)
        protected = with_known_types(self.protected, relation.protected)
        return SilverColumns(relation.oid, numbers, types=types, protected=protected, key=key)

    def renamed(self, renames: Sequence[RenameColumn]) -> SilverColumns:
        """Return the columns under their new names."""
        numbers, types = dict(self.numbers), dict(self.types)
        names = {rename.name: rename.to for rename in renames}
        key = frozenset(names.get(name, name) for name in self.key)
        for rename in renames:
            numbers[rename.to] = numbers.pop(rename.name)
            if rename.name in types:
                types[rename.to] = types.pop(rename.name)
        return replace(self, numbers=numbers, types=types, key=key)


@dataclass(frozen=True, slots=True)
class AlignedVersions:
    """The relation versions of one table, with their columns under silver's names as of the last version.

    `names` has the last version's columns by attribute number, `source_names` their names at the source
    (Delta cannot hold two names that differ only in case), and `dropped` the names of columns that the last
    version does not have. `certain` is, for each version, whether its columns are certain. `lookalikes` are
    the numbers of columns that were replaced by one with the same name, type and order: only the catalog
    distinguishes them, and no message carries the time of the change.
    """

    relations: tuple[SourceRelation, ...]
    names: Mapping[int, str]
    source_names: Mapping[int, str]
    certain: tuple[bool, ...]
    dropped: Mapping[int, str]
    lookalikes: Set[int] = frozenset()

    @property
    def column_names(self) -> set[str]:
        """The names of the columns of all versions."""
        return {column.name for relation in self.relations for column in relation.columns}


def align_versions(recorded: SilverColumns | None, relations: Sequence[SourceRelation]) -> AlignedVersions:
    """Return the versions of one table, in order, under the names that silver has after the last one.

    A dropped column keeps silver's name for it, unless a new column has that name.
    """
    last = relations[-1]
    silver = recorded if recorded is not None and recorded.relation_id == last.oid else None
    names: dict[str, int | None] = {**silver.numbers, **silver.source_names} if silver else {}
    numbered: list[list[int | None]] = []
    certain: list[bool] = []
    for i, relation in enumerate(relations):
        later = next((r for r in relations[i:] if r.is_in_catalog), None)
        numbers = [_number(column, names) for column in relation.columns]
        if not relation.is_in_catalog:
            numbers = _ascending(numbers, relation)
        if None in numbers:
            numbers = _numbers_between(set(names.values()), relation, later) or numbers
        # A column that was dropped and added again is the last one.
        certain.append(None not in numbers and later is not None and _has_numbers(later, numbers[-1:]))
        names = {c.name: number for c, number in zip(relation.columns, numbers, strict=True)}
        numbered.append(numbers)
    source_names = {n: c.name for n, c in zip(numbered[-1], last.columns, strict=True) if n is not None}
    final = _distinct(source_names)
    unnumbered = [c.name for n, c in zip(numbered[-1], last.columns, strict=True) if n is None]
    dropped = _name_dropped(silver, [*final.values(), *unnumbered], set(final))
    for relation, numbers in zip(relations, numbered, strict=True):
        for column, number in zip(relation.columns, numbers, strict=True):
            if number is not None and number not in final and number not in dropped:
                used = [*final.values(), *unnumbered, *dropped.values()]
                dropped[number] = _free_name(column.name, number, used)
    all_names = {**final, **dropped}
    aligned = (_rename(relation, ns, all_names) for relation, ns in zip(relations, numbered, strict=True))
    shapes = [
        [(column.name, column.type, number) for column, number in zip(relation.columns, ns, strict=True)]
        for relation, ns in zip(relations, numbered, strict=True)
    ]
    if silver is not None:
        shapes.insert(0, _recorded_columns(silver, relations[0]))
    return AlignedVersions(tuple(aligned), final, source_names, tuple(certain), dropped, _lookalikes(shapes))


def with_last_names(
    versions: Sequence[SourceRelation], relations: Relations, recurring: Collection[int] = ()
) -> Relations:
    """Return relation versions; those of one table, given in order, have the names as of its last one.

    They are as they are if one that is `recurring`, after others, has columns that were dropped and whose
    numbers the catalog did not have: a column that was added again may be the same in it. So is a version in
    which names differ only in case.
    """
    aligned = align_versions(None, versions)
    last = {name: aligned.source_names[number] for number, name in aligned.names.items()}
    found = dict(relations)
    for each in aligned.relations:
        is_known = each.is_in_catalog or each.version not in recurring
        if not is_known and any(column.name not in last for column in each.columns):
            return relations
        columns = tuple(replace(column, name=last.get(column.name, column.name)) for column in each.columns)
        if len({column.name.lower() for column in columns}) == len(columns):
            found[each.version] = replace(each, columns=columns)
    return found


def _recorded_columns(silver: SilverColumns, following: SourceRelation) -> list[_Column]:
    """Return the columns of the last followed version, as a Relation message of the next one has them."""
    names = {n: name for name, n in silver.numbers.items()} | {n: s for s, n in silver.source_names.items()}
    columns = [
        (names[number] if number is not None else name, silver.types[name], number)
        for name, number in silver.numbers.items()
        if name in silver.types
    ]
    return sorted(columns, key=lambda column: (column[2] and following.server_number(column[2])) or 0)


def _lookalikes(shapes: Sequence[Sequence[_Column]]) -> set[int]:
    """Return the numbers of columns that the next version has under another number, all else being equal."""
    found = set()
    for before, after in pairwise(shapes):
        if [column[:2] for column in before] == [column[:2] for column in after]:
            pairs = ((old[2], new[2]) for old, new in zip(before, after, strict=True))
            found |= {old for old, new in pairs if old is not None and new is not None and old != new}
    return found


def _rename(
    relation: SourceRelation, numbers: Sequence[int | None], names: Mapping[int, str]
) -> SourceRelation:
    """Return a version with silver's names; a column without a number keeps its name, if that is free."""
    numbered = [names[number] for number in numbers if number is not None]
    unnumbered = [c.name for c, number in zip(relation.columns, numbers, strict=True) if number is None]
    columns = []
    for column, number in zip(relation.columns, numbers, strict=True):
        name = column.name if number is None else names[number]
        if number is None and name in numbered:
            name = _free_name(name, _NO_NUMBER, [*numbered, *unnumbered])
        columns.append(replace(column, name=name))
    return replace(relation, columns=tuple(columns))


def _name_dropped(silver: SilverColumns | None, used: Sequence[str], present: Set[int]) -> dict[int, str]:
    """Return names, by number, of silver's columns that are not present: unchanged, if not used."""
    kept = {n: name for name, n in silver.numbers.items() if n and n not in present} if silver else {}
    in_use = {name.lower() for name in used}
    dropped = {number: name for number, name in kept.items() if name.lower() not in in_use}
    for number, name in kept.items():
        if number not in dropped:
            dropped[number] = _free_name(name, number, [*used, *dropped.values()])
    return dropped


def _distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Return names that differ not only in case: the column with the lower number keeps its name."""
    distinct: dict[int, str] = {}
    for number in sorted(names):
        distinct[number] = _free_name(names[number], number, distinct.values())
    return distinct


def _number(column: SourceColumn, names: Mapping[str, int | None]) -> int | None:
    return names.get(column.name) if column.attribute_number is None else column.attribute_number


def _ascending(numbers: list[int | None], relation: SourceRelation) -> list[int | None]:
    """Remove numbers, inferred from names, that cannot be: a Relation message has the server's ascending."""
    greatest = 0
    ascending: list[int | None] = []
    for number in numbers:
        place = 0 if number is None else relation.server_number(number)
        ascending.append(number if place > greatest else None)
        greatest = max(greatest, place)
    return ascending


def _numbers_between(
    before: set[int | None], relation: SourceRelation, later: SourceRelation | None
) -> list[int | None] | None:
    """Return the numbers of a version all of whose columns exist before and after it, None for any other.

    A column that exists before and after also exists in between; if there are as many, it is these, in order.
    """
    if later is None:
        return None
    common = [n for c in later.columns if (n := c.attribute_number) is not None and n in before]
    common.sort(key=relation.server_number)
    return [*common] if len(common) == len(relation.columns) else None


def _has_numbers(relation: SourceRelation, numbers: Iterable[int | None]) -> bool:
    return {column.attribute_number for column in relation.columns}.issuperset(numbers)


def plan_renames(
    recorded: SilverColumns, aligned: AlignedVersions, silver: Collection[str] = ()
) -> list[RenameColumn]:
    """Plan the renames of silver's columns that precede all other operations.

    `silver` are the names of the table's columns, also of those that are not registered.
    """
    last = aligned.relations[-1]
    if recorded.relation_id != last.oid:
        return []
    renames: dict[str, RenameColumn] = {}
    used = [column.name for column in last.columns]
    for name, number in recorded.numbers.items():
        if number is None:
            continue
        to = aligned.names.get(number) or aligned.dropped[number]
        if to != name and number in aligned.names:
            renames[name] = RenameColumn(name, to, f"Column {name} was renamed to {to}.")
        elif to != name:
            is_lookalike = number in aligned.lookalikes
            sentence = f"Column {name} was dropped and added again. Its former values are in {to}."
            if is_lookalike:
                sentence += (
                    " Values of rows that changed at about that time may also be there, because no message "
                    "of the stream says when. Run a resync to copy them."
                )
            renames[name] = RenameColumn(name, to, sentence, "diverged" if is_lookalike else "evolved")
    targets = {rename.to.lower() for rename in renames.values()}
    for name in recorded.numbers:
        if name not in renames and name.lower() in targets:
            to = _free_name(name, _NO_NUMBER, [*used, *recorded.numbers, *targets, *silver])
            sentence = (
                f"Another column is named {name} now. Which column had that name before is unknown, because "
                f"the catalog was ahead of the stream. Its values are in {to}."
            )
            renames[name] = RenameColumn(name, to, sentence, "diverged")
    return _in_order(renames, {name.lower() for name in recorded.numbers}, silver)


def taken_name(renames: Sequence[RenameColumn], silver: Iterable[str]) -> tuple[str, str] | None:
    """Return a column that another writer added, and the one that needs its name; None if there is none.

    `silver` are the table's names. Renames are planned for the registered columns, and free their names.
    """
    present = {name.lower(): name for name in silver}
    for rename in renames:
        present.pop(rename.name.lower(), None)
        if (theirs := present.get(rename.to.lower())) is not None:
            return theirs, rename.name
        present[rename.to.lower()] = rename.to
    return None


def _free_name(name: str, number: int, used: Iterable[str]) -> str:
    """Return a name, with `__<number>` appended as often as needed to differ from the used ones."""
    names = {other.lower() for other in used}
    while name.lower() in names:
        name = f"{name}__{number}"
    return name


def _in_order(
    renames: dict[str, RenameColumn], present: set[str], silver: Collection[str]
) -> list[RenameColumn]:
    """Order renames so that each target is free at its turn; an intermediate name breaks a cycle.

    `present` are the registered names in lower case, since Delta ignores case in names. No intermediate name
    is one of `silver`.
    """
    operations: list[RenameColumn] = []
    while renames:
        name = next((name for name, rename in renames.items() if rename.to.lower() not in present), None)
        if name is not None:
            operation = renames.pop(name)
        else:
            name = next(iter(renames))
            rename = renames.pop(name)
            used = present | {other.to for other in renames.values()} | {rename.to, *silver}
            operation = RenameColumn(name, _free_name(name, _NO_NUMBER, used))
            renames[operation.to] = replace(rename, name=operation.to)
        operations.append(operation)
        present = present - {name.lower()} | {operation.to.lower()}
    return operations


def free_names(used: Iterable[str], own: Sequence[str] = COMMIT_NAMES) -> list[str]:
    """Return names for pgdelta's own columns that no other column has; Delta ignores case in names."""
    names = {name.lower() for name in used}
    return [free_name(base, names) for base in own]


def find_metadata_columns(
    columns: Sequence[str],
    recorded: Collection[str],
    source_names: Collection[str],
    own: Sequence[str] = COMMIT_NAMES,
) -> list[str]:
    """Find pgdelta's own columns among a table's columns if a crash prevented their registration.

    `recorded` are the columns that are registered as the source's; `source_names` are the names of the
    source's relation versions, which the run that ended early may have added.
    """
    return [_find(base, columns, recorded, source_names) for base in own]


def _find(base: str, columns: Sequence[str], recorded: Collection[str], source_names: Collection[str]) -> str:
    candidates = [n for n in columns if n.lower().rstrip("_") == base and n not in recorded]
    candidates = [n for n in candidates if n not in source_names] or candidates
    return max(candidates, key=len, default=free_name(base, {name.lower() for name in columns}))


def plan_metadata_renames(
    metadata_columns: Sequence[str],
    silver: Iterable[str],
    targets: Iterable[str],
    own: Sequence[str] = COMMIT_NAMES,
) -> list[RenameColumn]:
    """Plan the renames of pgdelta's own columns that free the names which the source's columns will have.

    `silver` are the current names of the table's other columns, `targets` their future names.
    """
    targets = {name.lower() for name in targets}
    used = {*targets, *(name.lower() for name in (*silver, *metadata_columns))}
    renames = []
    for name, base in zip(metadata_columns, own, strict=False):
        if name.lower() in targets:
            to = free_name(base, used)
            sentence = (
                f"Column {name} of pgdelta was renamed to {to}, because the source has a column {name}."
            )
            renames.append(RenameColumn(name, to, sentence))
    return renames


def free_name(name: str, used: Collection[str]) -> str:
    """Return a name, with underscores after it while it is used."""
    while name in used:
        name += "_"
    return name


SUFFIX = "__text"


def sidecars(relation: SourceRelation, rule: TableRule) -> dict[str, str]:
    """Return the sidecars of a relation version: name → the column whose texts it has."""
    return {
        column.name + SUFFIX: column.name
        for column in relation.columns
        if rule.misfit_of(column.name) == "text" and not column_type(column, rule).is_total
    }


def present_sidecars(silver: Collection[str], numbers: Collection[str]) -> dict[str, str]:
    """Return the sidecars that silver has: name → its column. The policy may be another one by now.

    `numbers` are the registered columns of the source, one of them possibly with the name of a sidecar.
    """
    names = (n for n in silver if n.endswith(SUFFIX) and n not in numbers)
    found = {name: name.removesuffix(SUFFIX) for name in names}
    return {name: column for name, column in found.items() if column in numbers and column in silver}


def with_sidecars(
    renames: Sequence[RenameColumn], silver: Iterable[str], numbers: Collection[str] = ()
) -> list[RenameColumn]:
    """Return the renames, each followed by the rename of its column's sidecar if silver has one.

    `numbers` are the registered columns of the source, which are no sidecars. A sidecar whose name a column
    gets is renamed first.
    """
    present = set(silver)
    both: list[RenameColumn] = []
    for rename in renames:
        both.append(rename)
        before, to = rename.name + SUFFIX, rename.to + SUFFIX
        if before in present and before not in numbers:
            both.append(RenameColumn(before, to))
            present = present - {before} | {to}
    targets = {rename.to.lower() for rename in renames}
    first = [each for each in both if each not in renames and each.name.lower() in targets]
    return [*first, *(each for each in both if each not in first)]


def plan_leftovers(
    renames: Sequence[RenameColumn],
    silver: Collection[str],
    numbers: Collection[str],
    aligned: AlignedVersions,
    rule: TableRule,
) -> list[RenameColumn]:
    """Plan the renames of sidecars that no version needs, and whose names columns of the source have now.

    `numbers` are the registered columns of the source; `renames` are those of columns and their sidecars.
    """
    names = aligned.column_names
    taken = {name.lower() for name in names}
    needed = {name.lower() for relation in aligned.relations for name in sidecars(relation, rule)}
    kept = {*numbers, *(rename.name for rename in renames)}
    found: list[RenameColumn] = []
    for name in silver:
        if name.endswith(SUFFIX) and name not in kept and name.lower() in taken - needed:
            to = _free_name(name, _NO_NUMBER, [*silver, *names, *(rename.to for rename in renames)])
            sentence = f"Another column is named {name} now. The texts that were in it are in {to}."
            found.append(RenameColumn(name, to, sentence))
    return found
