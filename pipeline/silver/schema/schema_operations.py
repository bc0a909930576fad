"""The operations of schema evolution: frozen values with their SQL, their cost and what they lose.

`schema_evolution` plans them from relation versions alone, `SchemaWriter` carries them out by running
`statements`, and `pgdelta plan` prints the same. `features` are the table features that readers need
afterwards. `Hold`, `NeedsResync`, `NeedsRebuild`, `RuleNote` and `SchemaNote` change no column.
"""

from dataclasses import dataclass, field

from pipeline.delta.sql import literal, quoted
from pipeline.delta.table import Feature, features_of, needs_column_mapping
from pipeline.silver.types.text_parsers import SilverType
from pipeline.units import format_count

_METADATA_ONLY = "no data is written"
CHANGE_FEED, COMMENT = "delta.enableChangeDataFeed", "comment"
LAYOUT = "layout"
"""The operation in the user metadata of a commit that sets properties or comments."""


class SchemaOperation:
    """One operation on a silver table; what a class does not say is what most of them have."""

    __slots__ = ()

    @property
    def sentence(self) -> str | None:
        """What happens, as the sentence of an event; None if it is not worth one."""
        return None

    @property
    def kind(self) -> str:
        """The kind of the event."""
        return "evolved"

    @property
    def loses(self) -> str | None:
        """What silver loses, None if nothing."""
        return None

    @property
    def features(self) -> tuple[Feature, ...]:
        """The table features that readers need afterwards."""
        return ()

    def statements(self, table: str) -> tuple[str, ...]:
        """Return the Spark SQL for a table, given by its identifier; none if no column changes."""
        return ()

    def cost(self, rows: int, changes: int) -> str:
        """Return what the operation costs in a table of so many rows and changes in bronze."""
        return _METADATA_ONLY


@dataclass(frozen=True, slots=True)
class CreateTable(SchemaOperation):
    """Create the silver table, empty, with pgdelta's columns last."""

    columns: tuple[tuple[str, SilverType], ...]
    metadata_columns: tuple[tuple[str, str], ...] = ()  # (name, DDL)
    partition_by: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The definitions of all columns."""
        types = [*((name, kind.ddl) for name, kind in self.columns), *self.metadata_columns]
        return ", ".join(f"{quoted(name)} {ddl}" for name, ddl in types)

    @property
    def is_native(self) -> bool:
        """Whether the table can be created without Spark."""
        return all(kind.is_native for _, kind in self.columns)

    @property
    def features(self) -> tuple[Feature, ...]:
        names = [name for name, _ in (*self.columns, *self.metadata_columns)]
        return (Feature.COLUMN_MAPPING,) if needs_column_mapping(names) else ()

    def statements(self, table: str) -> tuple[str, ...]:
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in (f.value for f in self.features))
        return (
            f"CREATE TABLE IF NOT EXISTS {table} ({self.ddl}) USING delta"
            + (f" PARTITIONED BY ({', '.join(map(quoted, self.partition_by))})" if self.partition_by else "")
            + (f" TBLPROPERTIES ({properties})" if properties else ""),
        )


@dataclass(frozen=True, slots=True)
class AddColumn(SchemaOperation):
    """Add a column as the last one; existing rows get `backfill`, the source's default for them.

    `number` is its attribute number, None if the catalog did not have it; then there is no backfill.
    """

    name: str
    type: SilverType
    backfill: str | None = None
    number: int | None = None

    @property
    def sentence(self) -> str:
        return f"Column {self.name} was added{' with a default' if self.backfill is not None else ''}."

    @property
    def features(self) -> tuple[Feature, ...]:
        mapping = (Feature.COLUMN_MAPPING,) if needs_column_mapping([self.name]) else ()
        return (*mapping, *features_of(self.type.ddl))

    def statements(self, table: str) -> tuple[str, ...]:
        return (f"ALTER TABLE {table} ADD COLUMNS ({quoted(self.name)} {self.type.ddl})",)

    def backfill_statement(self, table: str) -> str | None:
        """Return the UPDATE that sets the default in existing rows, None if there is none."""
        if self.backfill is None:
            return None
        return f"UPDATE {table} SET {quoted(self.name)} = {self.type.value(literal(self.backfill))}"

    def cost(self, rows: int, changes: int) -> str:
        return _METADATA_ONLY if self.backfill is None else f"sets the default in {format_count(rows, 'row')}"


@dataclass(frozen=True, slots=True)
class SetProperties(SchemaOperation):
    """Set properties of the table, and comments on columns; its own comment is Spark's property `comment`."""

    properties: tuple[tuple[str, str], ...]
    comments: tuple[tuple[str, str], ...] = ()  # (column, comment)

    @property
    def is_native(self) -> bool:
        """Whether the properties ask nothing more of those who write the table."""
        return CHANGE_FEED not in dict(self.properties)

    @property
    def enables_change_feed(self) -> bool:
        """Whether the table has a change data feed afterwards, which it did not have before."""
        return dict(self.properties).get(CHANGE_FEED) == "true"

    def statements(self, table: str) -> tuple[str, ...]:
        pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in self.properties)
        columns = ", ".join(f"{quoted(name)} COMMENT {literal(text)}" for name, text in self.comments)
        return (
            *((f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})",) if pairs else ()),
            *((f"ALTER TABLE {table} ALTER COLUMN {columns}",) if columns else ()),
        )


@dataclass(frozen=True, slots=True)
class RenameColumn(SchemaOperation):
    """Rename a column; without a sentence it is an intermediate step of another rename."""

    name: str
    to: str
    sentence: str | None = None
    kind: str = "evolved"  # or diverged
    features: tuple[Feature, ...] = (Feature.COLUMN_MAPPING,)

    def statements(self, table: str) -> tuple[str, ...]:
        return (f"ALTER TABLE {table} RENAME COLUMN {quoted(self.name)} TO {quoted(self.to)}",)

    def cost(self, rows: int, changes: int) -> str:
        return f"{_METADATA_ONLY}; readers need column mapping"


@dataclass(frozen=True, slots=True)
class WidenColumn(SchemaOperation):
    """Change a column's type to one that holds all values of its current type."""

    name: str
    type: SilverType
    before: str

    @property
    def sentence(self) -> str:
        return (
            f"Column {self.name} was widened from {self.before} to {self.type.ddl}. If ALTER TABLE … USING "
            "computed new values, run a resync to copy them, because the stream does not carry them."
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        return (*features_of(self.type.ddl), Feature.TYPE_WIDENING)

    def statements(self, table: str) -> tuple[str, ...]:
        return (f"ALTER TABLE {table} ALTER COLUMN {quoted(self.name)} TYPE {self.type.ddl}",)

    def cost(self, rows: int, changes: int) -> str:
        return f"{_METADATA_ONLY}; readers need type widening"


@dataclass(frozen=True, slots=True)
class LeaveFeatures(SchemaOperation):
    """Write the table again without column mapping and type widening, which an earlier rule let it need."""

    sentence: str = (
        "The table was written again without column mapping and type widening, because its rule has readers:"
        " widest."
    )

    def cost(self, rows: int, changes: int) -> str:
        return rewrite_cost(rows)


def rewrite_cost(rows: int) -> str:
    """Return what it costs to change columns of a table that is kept for all readers."""
    return f"writes {format_count(rows, 'row')} again, in one commit for all columns"


@dataclass(frozen=True, slots=True)
class DropColumn(SchemaOperation):
    """Drop a column that the source no longer has, and its values."""

    name: str
    loses: str = "the column's values"
    features: tuple[Feature, ...] = (Feature.COLUMN_MAPPING,)

    @property
    def sentence(self) -> str:
        return f"Column {self.name} was dropped."

    def statements(self, table: str) -> tuple[str, ...]:
        return (f"ALTER TABLE {table} DROP COLUMN {quoted(self.name)}",)

    def cost(self, rows: int, changes: int) -> str:
        return f"{_METADATA_ONLY}; readers need column mapping"


NEEDS_FEATURES = (RenameColumn, WidenColumn, DropColumn, LeaveFeatures)
"""The operations that write a table again if its readers are to need no table feature."""


@dataclass(frozen=True, slots=True)
class _Note(SchemaOperation):
    """What changes no column: an event that says why."""

    sentence: str = field()  # required, although the base has a property of this name
    kind: str = "evolved"
    loses: str | None = None


@dataclass(frozen=True, slots=True)
class NeedsRebuild(_Note):
    """Rebuild the table from bronze with the types of the newest relation version."""

    def cost(self, rows: int, changes: int) -> str:
        return f"reads {format_count(changes, 'change')} again, replaces {format_count(rows, 'row')}"


@dataclass(frozen=True, slots=True)
class Hold(_Note):
    """Hold the table before the relation version that silver cannot follow."""

    kind: str = "held"  # or resync

    def cost(self, rows: int, changes: int) -> str:
        return "nothing is applied after it"


@dataclass(frozen=True, slots=True)
class NeedsResync(Hold):
    """Hold the table before the relation version that silver cannot follow, until it is copied again."""

    kind: str = "resync"

    def cost(self, rows: int, changes: int) -> str:
        return f"copies the table again, replaces {format_count(rows, 'row')}"


@dataclass(frozen=True, slots=True)
class RuleNote(_Note):
    """Record that a rule names no column of the table, or one under its former name, or keeps a column."""


@dataclass(frozen=True, slots=True)
class SchemaNote(_Note):
    """Continue, and record that silver may differ from the source."""

    kind: str = "diverged"  # or resync
    loses: str | None = "values that only a resync copies"
