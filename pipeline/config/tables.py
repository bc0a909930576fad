"""Rules of the configuration: which source tables become which silver tables, and how.

A `TableRule` is one item of the file's list `tables`; for what it omits, `load_config` uses the section
`silver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Literal

from pipeline.config.scalars import (
    FileSection,
    Flag,
    Internal,
    Limit,
    Mask,
    Name,
    Retention,
    Seconds,
    SilverType,
    Text,
    Word,
    key,
)
from pipeline.config.schedule import NO_SCHEDULE, Schedule, seconds_at
from pipeline.table_name import TableGlob, TableName, exact_name

Misfits = Annotated[Literal["null", "text", "clamp", "error"], Word]
DroppedColumns = Annotated[Literal["keep", "drop"], Word]
Readers = Annotated[Literal["spark", "widest"], Word]
TypeChanges = Annotated[Literal["hold", "rebuild", "resync"], Word]
DetachedTables = Annotated[Literal["keep", "archive"], Word]
DroppedPartitions = Annotated[Literal["keep", "delete", "resync"], Word]
Inheritance = Literal["parent_only", "refuse"]
RowMode = Literal["mirror", "soft_delete", "append", "history"]
SilverMode = Annotated[RowMode, Word]
OnChange = Annotated[Literal["apply", "ignore"], Word]

#: Keys of a rule that default to the key of the same name in `silver`.
INHERITED = (
    "mode",
    "on_delete",
    "on_truncate",
    "dropped_columns",
    "type_changes",
    "readers",
    "detached_tables",
    "dropped_partitions",
    "inheritance",
    "min_interval",
    "source_comments",
)


@dataclass(frozen=True, slots=True)
class Guards(FileSection):
    """Limits for one batch of one table; None is no limit."""

    deletes: Annotated[Limit, key("Most rows that one batch may delete from a table.", examples=[1000])] = (
        None
    )
    truncates: Annotated[Limit, key("Most TRUNCATEs that one batch may bring to a table.", examples=[0])] = (
        None
    )


NO_LIMITS = Guards()
PIPELINE_RETENTION = 0
"""The retention of a rule that leaves it to `bronze.retention`; no file can contain it."""


TABLE_PLACEHOLDER = "{table}"
"""What a target has for the name of the source table; the table then is shared by several sources."""


@dataclass(frozen=True, slots=True)
class History(FileSection):
    """Which versions tables in the mode `history` have."""

    intermediate: Annotated[
        bool,
        Flag,
        key("Whether each change of a row in a transaction is a version, instead of the last one."),
    ] = False


COMMITTED_VERSIONS = History()


LAST4 = "last4"
"""The mask that keeps the last four characters."""


@dataclass(frozen=True, slots=True)
class ColumnRules(FileSection):
    """Which columns of a table are left out, hashed or masked; `places` are their rules in the file."""

    include: Annotated[
        tuple[Name, ...],
        key(
            "The only columns that are captured. Columns that are added later stay out.",
            default="all columns",
            json_schema_extra={"minItems": 1},
            examples=[["id", "price"]],
        ),
    ] = ()
    exclude: Annotated[
        tuple[Name, ...],
        key(
            "Columns that are not captured, now or when they are added.",
            default="none",
            examples=[["password"]],
        ),
    ] = ()
    hash: Annotated[
        Mapping[str, Annotated[Literal["hmac-sha256"], Word]],
        key(
            "Columns that are captured as a hash with `source.hash_key`, such as `{email: hmac-sha256}`."
            " Columns of the key may be hashed.",
            examples=[{"email": "hmac-sha256"}],
        ),
    ] = field(default_factory=dict, hash=False)
    mask: Annotated[
        Mapping[str, Mask],
        key(
            "Columns that are captured masked: `last4` keeps the last four characters of values that have"
            " eight or more, `null` nothing, and any other text replaces every value.",
            examples=[{"card": "last4", "notes": None, "name": "***"}],
        ),
    ] = field(default_factory=dict, hash=False)
    places: Internal[Mapping[str, str]] = field(default_factory=dict, hash=False, compare=False)

    def __bool__(self) -> bool:
        """Return whether there is a rule for any column."""
        return bool(self.include or self.exclude or self.hash or self.mask)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are named."""
        return tuple(dict.fromkeys((*self.include, *self.exclude, *self.hash, *self.mask)))

    def key_fault(self, column: str, table: str) -> str:
        """Return why a table with a column of its key that is left out or masked cannot be followed."""
        what = "excluded" if self.excludes(column) else "masked"
        return (
            f"{self._place(column)}: Column {column} is {what}, but it is part of the key of table {table}."
        )

    def nothing_left(self, table: str) -> str:
        """Return why a table without a column that is captured cannot be followed."""
        return f"{self._place('')}: No column of table {table} is captured."

    def _place(self, column: str) -> str:
        return self.places.get(column) or next(iter(self.places.values()), "tables[].columns")

    def followed_by(self, earlier: ColumnRules) -> ColumnRules:
        """Return these rules, and the earlier ones of the table for columns that these have no rule for."""
        named = {*self.hash, *self.mask}
        left_out = tuple(name for name in earlier.exclude if name not in named)
        return ColumnRules(
            self.include or earlier.include,
            (*self.exclude, *left_out),
            {**{name: rule for name, rule in earlier.hash.items() if name not in self.mask}, **self.hash},
            {**{name: rule for name, rule in earlier.mask.items() if name not in self.hash}, **self.mask},
            {**earlier.places, **self.places},
        )

    def excludes(self, column: str) -> bool:
        """Return whether a column is kept out of the lake."""
        return column in self.exclude or (bool(self.include) and column not in self.include)


NO_COLUMN_RULES = ColumnRules()


@dataclass(frozen=True, slots=True)
class TableRule(FileSection):
    """How the tables that a glob matches become silver tables."""

    source: Annotated[
        str,
        Text,
        key(
            "Source tables of the rule: a `schema.table` glob with `*` and `?`, in which a part that contains"
            " a dot is double-quoted. Case counts.",
            examples=["public.*", "sales.orders", '"my.schema".orders'],
        ),
    ]
    target: Annotated[
        str | None,
        Text,
        key(
            "Folder of the table in silver, for a rule that matches a single table. With `{table}` for the"
            " name of the source table, the rule may match several: tables of that name in several schemas,"
            " or in several pipelines, are one silver table with the column `_source`.",
            default="`<schema>/<table>`",
            examples=["orders", "{table}"],
        ),
    ] = None
    mode: Annotated[SilverMode, key("How rows are kept in these tables.")] = "mirror"
    history: Annotated[History, key("Which versions these tables have, in the mode `history`.")] = (
        COMMITTED_VERSIONS
    )
    on_delete: Annotated[OnChange, key("What a DELETE does to these tables, in the mode `mirror`.")] = "apply"
    on_truncate: Annotated[OnChange, key("What a TRUNCATE does to these tables, in the mode `mirror`.")] = (
        "apply"
    )
    types: Annotated[
        Mapping[str, SilverType],
        key(
            "Silver types by column in place of the default ones, such as"
            ' `{price: "DECIMAL(20,4)"}`; `VARIANT` for JSON and `ARRAY<FLOAT>` for pgvector are among them.'
            " Digits beyond the scale of a DECIMAL are a misfit, never rounded.",
            examples=[{"price": "DECIMAL(20,4)", "document": "VARIANT", "embedding": "ARRAY<FLOAT>"}],
        ),
    ] = field(default_factory=dict, hash=False)
    misfits: Annotated[
        Mapping[str, Misfits],
        key(
            "What happens to misfits, by column, such as `{day: text, price: error}`.",
            examples=[{"day": "text", "price": "error"}],
        ),
    ] = field(default_factory=dict, hash=False)
    misfit: Internal[Misfits] = "null"  # of the columns that `misfits` does not name
    dropped_columns: Annotated[
        DroppedColumns, key("What happens to columns that are dropped from these tables.")
    ] = "keep"
    type_changes: Annotated[
        TypeChanges, key("What happens at a type change that the silver column cannot hold.")
    ] = "hold"
    readers: Annotated[Readers, key("Which readers these tables are kept for.")] = "spark"
    detached_tables: Annotated[
        DetachedTables, key("What happens to these tables when they are detached.")
    ] = "keep"
    dropped_partitions: Annotated[
        DroppedPartitions,
        key("What happens to the rows of partitions that are dropped or detached from these tables."),
    ] = "delete"
    inheritance: Annotated[
        Literal[Inheritance, "union"],
        Word,
        key(
            "What happens to these tables if others inherit from them (`INHERITS`). With `union`, for a rule"
            " that names one table, its silver table also has the rows of its `descendants`, as `SELECT …"
            " FROM parent` shows them, and the column `_source`."
        ),
    ] = "parent_only"
    descendants: Annotated[
        tuple[Annotated[str, Text], ...],
        key(
            "With `inheritance: union`, globs of the tables that inherit from that of `source`, on all"
            " levels. They follow this rule and have no silver table of their own.",
            default="none",
            json_schema_extra={"minItems": 1},
            examples=[["public.capitals", "public.cities_*"]],
        ),
    ] = ()
    exclude: Annotated[
        tuple[Annotated[str, Text], ...],
        key(
            "Globs of tables that the rule does not apply to, though `source` matches them. A later rule"
            " may.",
            default="none",
            examples=[["public.audit", "public.tmp_*"]],
        ),
    ] = ()
    min_interval: Annotated[
        Seconds, key("Least time between two writes to each of these tables.", examples=["30s", "5min"])
    ] = 0
    retention: Annotated[
        Retention,
        key(
            "How long bronze keeps every change of these tables, such as `30d`.",
            default="`bronze.retention`",
            examples=["30d", "forever"],
        ),
    ] = PIPELINE_RETENTION
    guards: Annotated[Guards, key("Limits for one batch of these tables.")] = NO_LIMITS
    columns: Annotated[
        ColumnRules,
        key("Columns that are kept out of the lake, hashed or masked before anything is written."),
    ] = NO_COLUMN_RULES
    comment: Annotated[
        str | None,
        Text,
        key(
            "Comment of the silver table, in place of the source's.",
            default="the comment on the source table",
        ),
    ] = None
    source_comments: Annotated[
        bool, Flag, key("Whether these tables and their columns get the comments of the source.")
    ] = True
    properties: Annotated[
        Mapping[str, Annotated[str, Text]],
        key(
            "Delta properties of these tables: any that do not begin with `delta.`, and"
            " `delta.dataSkippingNumIndexedCols` and `delta.dataSkippingStatsColumns`, whose columns are"
            " followed when the source renames them. Spark refuses `owner`, `location`, `provider` and"
            " `external`, which it reserves.",
            examples=[{"owner.team": "sales", "delta.dataSkippingNumIndexedCols": "8"}],
        ),
    ] = field(default_factory=dict, hash=False)
    partition_by: Annotated[
        tuple[Name, ...],
        key(
            "Columns by whose values the files of these tables are divided into folders, at most 4: a query"
            " that filters by them opens the files of these values only.",
            default="none",
            json_schema_extra={"minItems": 1},
            examples=[["country"], ["ordered_on", "status"]],
        ),
    ] = ()
    cluster_by: Annotated[
        tuple[Name, ...],
        key(
            "Columns by which maintenance sorts the files of these tables, so that a query that filters by"
            " them opens few files.",
            default="the columns of the key",
            json_schema_extra={"minItems": 1},
            examples=[["customer_id", "ordered_at"]],
        ),
    ] = ()
    change_feed: Annotated[
        bool | None,
        Flag,
        key(
            "Whether Delta records a change data feed of these tables. Only Spark writes such tables.",
            default="as the table is",
        ),
    ] = None

    schedule: Internal[Schedule] = NO_SCHEDULE

    def without_layout(self) -> TableRule:
        """Return the rule for a table that is not read before it is swapped in."""
        return replace(self.without_properties(), comment=None)

    def without_properties(self) -> TableRule:
        """Return the rule without what it says of properties."""
        return replace(self, properties={}, change_feed=None)

    def interval_at(self, now: datetime) -> int:
        """Return the least seconds between two writes that apply at a moment."""
        return seconds_at(self.schedule, self.min_interval, now)

    @property
    def is_shared(self) -> bool:
        """Whether several sources have one silver table."""
        return self.is_union or (self.target is not None and TABLE_PLACEHOLDER in self.target)

    @property
    def is_union(self) -> bool:
        """Whether one silver table has the rows of a table and of those that inherit from it."""
        return self.inheritance == "union"

    @property
    def parent(self) -> TableName | None:
        """The table from which the others of a union inherit, None if there is no union."""
        return exact_name(self.source) if self.is_union else None

    @property
    def needs_key(self) -> bool:
        """Whether rows are kept in a mode that finds them by a key."""
        return self.mode in ("soft_delete", "history")

    @property
    def has_intermediate(self) -> bool:
        """Whether each change of a row in a transaction is a version."""
        return self.mode == "history" and self.history.intermediate

    @property
    def ignores_deletes(self) -> bool:
        """Whether rows that the source deletes stay as they are."""
        return self.mode == "mirror" and self.on_delete == "ignore"

    @property
    def is_cut_by_truncates(self) -> bool:
        """Whether a TRUNCATE removes all rows, so that what came before it does not matter."""
        return self.mode == "mirror" and self.on_truncate == "apply"

    @property
    def keeps_past(self) -> bool:
        """Whether silver has rows that the source no longer has."""
        return self.mode != "mirror" or "ignore" in (self.on_delete, self.on_truncate)

    @property
    def is_comparable(self) -> bool:
        """Whether silver's current rows are those of the source."""
        return self.mode != "append" and (self.mode != "mirror" or not self.keeps_past)

    @property
    def keeps_rows_by_key(self) -> bool:
        """Whether silver has rows under their keys that the source no longer has."""
        return self.keeps_past and self.mode in ("mirror", "soft_delete")

    @property
    def applied_guards(self) -> Guards:
        """The guards against what these tables do not ignore."""
        return Guards(
            deletes=None if self.ignores_deletes or self.mode == "append" else self.guards.deletes,
            truncates=self.guards.truncates if self.is_cut_by_truncates or self.needs_key else None,
        )

    def misfit_of(self, column: str) -> Misfits:
        """Return the policy for misfits of a column."""
        return self.misfits.get(column, self.misfit)

    @property
    def exact_names(self) -> list[str]:
        """What the rule names without `*` and `?`."""
        return [text for text in (self.source, *self.descendants) if not set("*?") & set(text)]

    def is_exact_for(self, name: TableName) -> bool:
        """Return whether the rule names a table, without `*` and `?`."""
        return any(TableGlob(text).matches(name) for text in self.exact_names)

    def matches(self, name: TableName) -> bool:
        """Return whether the rule applies to a table."""
        is_excluded = any(TableGlob(text).matches(name) for text in self.exclude)
        names = (self.source, *self.descendants)
        return not is_excluded and any(TableGlob(text).matches(name) for text in names)

    def matches_schema(self, schema: str) -> bool:
        """Return whether the rule applies to every table of a schema."""
        return not self.exclude and TableGlob(self.source).matches_schema(schema)
