"""From the shape silver has to the shape a relation version says: a list of operations, or a refusal.

`plan_evolution` decides and changes nothing; the operations say what they do as SQL and as a sentence. What
cannot be followed exactly yet (a rename, a changed type, a column dropped and added again under its name)
holds the table with a sentence instead of a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.silver.merge import quoted
from pipeline.silver.relation import SourceRelation
from pipeline.silver.types import SilverType, silver_type

# Delta takes these in a column name only under column mapping.
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Create the silver table empty."""

    columns: tuple[tuple[str, SilverType], ...]

    @property
    def needs_column_mapping(self) -> bool:
        """Say whether a name needs Delta's column mapping, which readers outside Spark may refuse."""
        return any(_NEEDS_MAPPING & set(name) for name, _ in self.columns)


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column behind the others; rows that are there get `backfill`, the source's default for them."""

    name: str
    type: SilverType
    backfill: str | None = None

    @property
    def ddl(self) -> str:
        """Return the column's definition."""
        return f"{quoted(self.name)} {self.type.ddl}"

    @property
    def sentence(self) -> str:
        """Say what happened."""
        return f"column {self.name} was added" + (" with a default" if self.backfill is not None else "")


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop applying this table before the version that cannot be followed."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Note:
    """Go on, and record that silver may not show the source exactly."""

    sentence: str


Operation = CreateTable | AddColumn | Hold | Note


@dataclass(frozen=True, slots=True)
class Known:
    """What is recorded of a silver table: the source table's oid, and each column's attribute number."""

    relation_id: int
    numbers: Mapping[str, int | None]

    def name_of(self, number: int | None) -> str | None:
        """Return the column that had this attribute number."""
        return next((name for name, n in self.numbers.items() if n == number and n is not None), None)

    def after(self, relation: SourceRelation) -> "Known":
        """Return what is known once silver has followed a relation; what its catalog did not say stays."""
        numbers = dict(self.numbers) if relation.oid == self.relation_id else {}
        for column in relation.columns:
            if column.attribute_number is not None or column.name not in numbers:
                numbers[column.name] = column.attribute_number
        return Known(relation.oid, numbers)


def plan_evolution(
    known: Known | None,
    relation: SourceRelation,
    silver: Mapping[str, str] | None,
    overrides: Mapping[str, str],
) -> list[Operation]:
    """Plan what makes silver (column → DDL; None where there is no table) hold `relation`'s rows.

    A column that is in silver but not in `known` was added by a run that ended before it could record it.
    """
    if held := _collision(relation, silver or {}):
        return [held]
    if silver is None:
        return [CreateTable(tuple((c.name, silver_type(c, overrides.get(c.name))) for c in relation.columns))]
    # A table created again under its name numbers its columns anew.
    is_same_table = known is not None and known.relation_id == relation.oid
    operations: list[Operation] = []
    for column in relation.columns:
        wanted = silver_type(column, overrides.get(column.name), silver.get(column.name))
        if column.name in silver and silver[column.name] != wanted.ddl:
            return [
                _held(relation, f"column {column.name} changed from {silver[column.name]} to {wanted.ddl}")
            ]
        if known is None or not is_same_table:
            if column.name not in silver:
                operations.append(AddColumn(column.name, wanted))
            continue
        if column.name in known.numbers:
            numbers = {known.numbers[column.name], column.attribute_number}
            if None not in numbers and len(numbers) == 2:
                return [_held(relation, f"column {column.name} was dropped and added again")]
            continue
        before = known.name_of(column.attribute_number)
        if before is not None and relation.position(before) is None:
            return [_held(relation, f"column {before} was renamed to {column.name}")]
        operations.append(AddColumn(column.name, wanted, column.missing_value))
        if not relation.facts_known:
            operations.append(
                Note(
                    f"column {column.name} appeared while the catalog was ahead of the stream: "
                    "if it was renamed or has a default, silver's older rows do not show it"
                )
            )
    return operations


def _collision(relation: SourceRelation, silver: Mapping[str, str]) -> Hold | None:
    """Delta takes names for equal that differ only in case."""
    seen = {name.lower(): name for name in silver}
    for column in relation.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            sentence = f"columns {other} and {column.name} differ only in case, which Delta cannot hold"
            return _held(relation, sentence)
    return None


def _held(relation: SourceRelation, what: str) -> Hold:
    return Hold(
        f"{relation.schema_name}.{relation.table_name} is held: {what}; "
        "bronze keeps its changes, and silver shows the table as of before that"
    )
