"""Which column is which: silver's columns and those of relation versions, matched by attribute number.

PostgreSQL never gives an attribute number twice in a table, so a column that has another name is still the
same column, and one that was dropped and added again is not. Names are all that the stream itself carries;
where the catalog did not say the number, a column is the one that had its name before.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from pipeline.bronze.relations import PostgresType, SourceColumn, SourceRelation
from pipeline.silver.schema_operations import RenameColumn

_Column: TypeAlias = tuple[str, PostgresType, int | None]  # name, type, attribute number

_UNKNOWN = 0  # no column has this attribute number


@dataclass(frozen=True, slots=True)
class SilverColumns:
    """What is recorded of a silver table: the source table's oid, and each column's attribute number.

    `numbers` names the columns as silver has them now; `source_names` as the source had them when the rows
    that silver holds were written, where that is another name. `types` has those of the columns that the last
    version had; it is empty where they were not recorded.
    """

    relation_id: int
    numbers: Mapping[str, int | None]
    source_names: Mapping[str, int | None] = field(default_factory=dict)
    types: Mapping[str, PostgresType] = field(default_factory=dict)

    def name_of(self, number: int | None) -> str | None:
        """Return the column that has this attribute number."""
        return next((name for name, n in self.numbers.items() if n == number and n is not None), None)

    def after(self, relation: SourceRelation) -> "SilverColumns":
        """Return what is known once silver has followed a relation; what its catalog did not say stays."""
        numbers = dict(self.numbers) if relation.oid == self.relation_id else {}
        types = {}
        for column in relation.columns:
            if column.attribute_number is not None or column.name not in numbers:
                numbers[column.name] = column.attribute_number
            types[column.name] = column.type
            if not column.is_type_known and column.name in self.types:
                types[column.name] = self.types[column.name]
        return SilverColumns(relation.oid, numbers, types=types)

    def renamed(self, renames: Sequence["RenameColumn"]) -> "SilverColumns":
        """Return the same once columns have other names."""
        numbers, types = dict(self.numbers), dict(self.types)
        for rename in renames:
            numbers[rename.to] = numbers.pop(rename.name)
            if rename.name in types:
                types[rename.to] = types.pop(rename.name)
        return replace(self, numbers=numbers, types=types)


@dataclass(frozen=True, slots=True)
class AlignedVersions:
    """The versions of one table under the names of the last; `names` are those, by attribute number.

    `sources` are the names that the source has for them: Delta cannot hold two that differ only in case.
    `certain` says of each version whether it is known which columns it has; `gone` are the names of columns
    that the last version has not. `alike` are the numbers of columns that gave way to one of the same name,
    type and place: the catalog tells them apart, but no message when.
    """

    relations: tuple[SourceRelation, ...]
    names: Mapping[int, str]
    source_names: Mapping[int, str]
    certain: tuple[bool, ...]
    dropped: Mapping[int, str]
    lookalikes: Set[int] = frozenset()


def align_versions(known: SilverColumns | None, relations: Sequence[SourceRelation]) -> AlignedVersions:
    """Give the versions of one table, in order, the names that silver has once it has followed the last.

    A column is the one of its attribute number; where the catalog did not say, of the name it had before. One
    that the last version does not have any more keeps silver's name for it, or gives way to a new column.
    """
    last = relations[-1]
    is_same_table = known is not None and known.relation_id == last.oid
    names: dict[str, int | None] = {**known.numbers, **known.source_names} if known and is_same_table else {}
    numbered: list[list[int | None]] = []
    certain: list[bool] = []
    for i, relation in enumerate(relations):
        later = next((r for r in relations[i:] if r.is_in_catalog), None)
        numbers = [_number(column, names) for column in relation.columns]
        if not relation.is_in_catalog:
            numbers = _ascending(numbers)
        if None in numbers:
            numbers = _between(set(names.values()), relation, later) or numbers
        # A column that was dropped and added again stands last.
        certain.append(None not in numbers and later is not None and _has(later, numbers[-1:]))
        names = {c.name: number for c, number in zip(relation.columns, numbers, strict=True)}
        numbered.append(numbers)
    sources = {n: c.name for n, c in zip(numbered[-1], last.columns, strict=True) if n is not None}
    final = _distinct(sources)
    unnumbered = [c.name for n, c in zip(numbered[-1], last.columns, strict=True) if n is None]
    gone = _gone(known if is_same_table else None, [*final.values(), *unnumbered], set(final))
    for relation, numbers in zip(relations, numbered, strict=True):
        for column, number in zip(relation.columns, numbers, strict=True):
            if number is not None and number not in final and number not in gone:
                gone[number] = _aside(column.name, number, [*final.values(), *unnumbered, *gone.values()])
    given = {**final, **gone}
    alike = (_named(relation, ns, given) for relation, ns in zip(relations, numbered, strict=True))
    looks = [_look(relation, ns) for relation, ns in zip(relations, numbered, strict=True)]
    if known is not None and is_same_table:
        looks.insert(0, _last_look(known))
    return AlignedVersions(tuple(alike), final, sources, tuple(certain), gone, _in_disguise(looks))


def _look(relation: SourceRelation, numbers: Sequence[int | None]) -> list[_Column]:
    return [(c.name, c.type, number) for c, number in zip(relation.columns, numbers, strict=True)]


def _last_look(known: SilverColumns) -> list[_Column]:
    """Return the columns of the last version as its Relation message had them."""
    named = {n: name for name, n in known.numbers.items()} | {n: s for s, n in known.source_names.items()}
    columns = [
        (named[number] if number is not None else name, known.types[name], number)
        for name, number in known.numbers.items()
        if name in known.types
    ]
    return sorted(columns, key=lambda column: column[2] or 0)


def _in_disguise(looks: Sequence[Sequence[_Column]]) -> set[int]:
    found = set()
    for before, after in pairwise(looks):
        if [column[:2] for column in before] == [column[:2] for column in after]:
            pairs = ((old[2], new[2]) for old, new in zip(before, after, strict=True))
            found |= {old for old, new in pairs if old is not None and new is not None and old != new}
    return found


def _named(
    relation: SourceRelation, numbers: Sequence[int | None], given: Mapping[int, str]
) -> SourceRelation:
    told = [given[number] for number in numbers if number is not None]
    untold = [c.name for c, number in zip(relation.columns, numbers, strict=True) if number is None]
    columns = []
    for column, number in zip(relation.columns, numbers, strict=True):
        name = column.name if number is None else given[number]
        if number is None and name in told:
            name = _aside(name, _UNKNOWN, [*told, *untold])
        columns.append(replace(column, name=name))
    return replace(relation, columns=tuple(columns))


def _gone(known: SilverColumns | None, taken: Sequence[str], present: Set[int]) -> dict[int, str]:
    """Name silver's columns that the last version has not, by number: as they are, or out of others' way."""
    kept = {n: name for name, n in known.numbers.items() if n and n not in present} if known else {}
    in_use = {name.lower() for name in taken}
    gone = {number: name for number, name in kept.items() if name.lower() not in in_use}
    for number, name in kept.items():
        if number not in gone:
            gone[number] = _aside(name, number, [*taken, *gone.values()])
    return gone


def _distinct(names: Mapping[int, str]) -> dict[int, str]:
    """Give way where names differ only in case: the column of the lower number keeps its name."""
    distinct: dict[int, str] = {}
    for number in sorted(names):
        distinct[number] = _aside(names[number], number, distinct.values())
    return distinct


def _number(column: SourceColumn, names: Mapping[str, int | None]) -> int | None:
    return names.get(column.name) if column.attribute_number is None else column.attribute_number


def _ascending(numbers: list[int | None]) -> list[int | None]:
    """Take back what names say where it cannot be: a Relation message has its columns in order of numbers."""
    greatest = 0
    found: list[int | None] = []
    for number in numbers:
        found.append(number if number is not None and number > greatest else None)
        greatest = max(greatest, number or 0)
    return found


def _between(
    before: set[int | None], relation: SourceRelation, later: SourceRelation | None
) -> list[int | None] | None:
    """Return the numbers of a version whose columns are all there before and after it, None if they are not.

    A column that was there before and is there after was there in between: where there are as many, it is
    these, in their order.
    """
    if later is None:
        return None
    common = sorted(n for c in later.columns if (n := c.attribute_number) is not None and n in before)
    return [*common] if len(common) == len(relation.columns) else None


def _has(relation: SourceRelation, numbers: Iterable[int | None]) -> bool:
    return {column.attribute_number for column in relation.columns}.issuperset(numbers)


def plan_renames(known: SilverColumns, alike: AlignedVersions) -> list[RenameColumn]:
    """Plan the new names of silver's columns, before anything else is done."""
    last = alike.relations[-1]
    if known.relation_id != last.oid:
        return []
    wanted: dict[str, RenameColumn] = {}
    taken = [column.name for column in last.columns]
    for name, number in known.numbers.items():
        if number is None:
            continue
        to = alike.names.get(number) or alike.dropped[number]
        if to != name and number in alike.names:
            wanted[name] = RenameColumn(name, to, f"column {name} was renamed to {to}")
        elif to != name:
            sentence = f"column {name} was dropped and added again: the values it had are in {to}"
            if number in alike.lookalikes:
                sentence += ", and those of rows that changed about then may be too: no message tells when"
            wanted[name] = RenameColumn(
                name, to, sentence, "diverged" if number in alike.lookalikes else "evolved"
            )
    targets = {rename.to.lower() for rename in wanted.values()}
    for name in known.numbers:
        if name not in wanted and name.lower() in targets:
            to = _aside(name, _UNKNOWN, [*taken, *known.numbers, *targets])
            sentence = (
                f"another column is named {name} now, and which one had that name nobody knows, as the "
                f"catalog was ahead of the stream then: its values are in {to}"
            )
            wanted[name] = RenameColumn(name, to, sentence, "diverged")
    return _in_order(wanted, {name.lower() for name in known.numbers})


def _aside(name: str, number: int, taken: Iterable[str]) -> str:
    """Return the name of a column that is no more: its own, unless another column has that now."""
    names = {other.lower() for other in taken}
    while name.lower() in names:
        name = f"{name}__{number}"
    return name


def _in_order(wanted: dict[str, RenameColumn], present: set[str]) -> list[RenameColumn]:
    """Order renames so that each name is free when it is given; a circle is opened by a name in between.

    `present` are the table's names in lower case: Delta takes names for equal that differ in case only.
    """
    operations: list[RenameColumn] = []
    while wanted:
        name = next((name for name, rename in wanted.items() if rename.to.lower() not in present), None)
        if name is not None:
            done = wanted.pop(name)
        else:
            name = next(iter(wanted))
            rename = wanted.pop(name)
            done = RenameColumn(
                name, _aside(name, _UNKNOWN, present | {r.to for r in wanted.values()} | {rename.to})
            )
            wanted[done.to] = replace(rename, name=done.to)
        operations.append(done)
        present = present - {name.lower()} | {done.to.lower()}
    return operations
