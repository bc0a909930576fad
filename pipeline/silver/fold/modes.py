"""The modes of silver tables: the columns of pgdelta in each, and how a row that is gone is marked. Pure.

`mirror` has the rows of the source, and a row that is gone is removed. `soft_delete` keeps it and marks it.
`history` has a row for each version of a row that a commit left, and marks the versions that are over.
`append` has a row for each change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.bronze.table_input import TruncatedAt
from pipeline.config.tables import RowMode, TableRule
from pipeline.engine import Engine
from pipeline.errors import LakeError
from pipeline.metadata.registry import RegisteredTable
from pipeline.table_name import TableName


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column of pgdelta: its name in silver unless the source has it, its name in folded rows, its type."""

    name: str
    source: str
    ddl: str


@dataclass(frozen=True, slots=True)
class MetadataNames:
    """The names of pgdelta's columns in a silver table; the two of the commit are None if it has none."""

    commit_lsn: str | None
    commit_time: str | None
    own: tuple[tuple[str, str], ...] = ()  # the same for the columns that only the table's mode has

    def pairs(self) -> list[tuple[str, str]]:
        """Return pairs of the silver name and the source frame's name."""
        named = ((self.commit_lsn, "commit_lsn"), (self.commit_time, "commit_time"))
        return [(name, source) for name, source in named if name is not None] + [*self.own]

    def name_of(self, source: str) -> str:
        """Return the silver name of a column, given its name in the source frame."""
        return next(name for name, other in self.pairs() if other == source)


_COMMIT_COLUMNS = (
    MetadataColumn("_commit_lsn", "commit_lsn", "BIGINT"),
    MetadataColumn("_commit_time", "commit_time", "TIMESTAMP"),
)
_ORDINAL = MetadataColumn("_valid_from_ordinal", "valid_from_ordinal", "BIGINT")
_INTERMEDIATE = " with intermediate versions"
_OWN_COLUMNS: Mapping[RowMode, tuple[MetadataColumn, ...]] = {
    "mirror": (),
    "soft_delete": (
        MetadataColumn("_deleted", "is_deleted", "BOOLEAN"),
        MetadataColumn("_deleted_at", "deleted_at", "TIMESTAMP"),
    ),
    "history": (
        MetadataColumn("_valid_from_lsn", "valid_from_lsn", "BIGINT"),
        MetadataColumn("_valid_from_time", "valid_from_time", "TIMESTAMP"),
        MetadataColumn("_valid_to_lsn", "valid_to_lsn", "BIGINT"),
        MetadataColumn("_valid_to_time", "valid_to_time", "TIMESTAMP"),
        MetadataColumn("_is_current", "is_current", "BOOLEAN"),
    ),
    "append": (
        MetadataColumn("_op", "change_op", "STRING"),
        MetadataColumn("_ordinal", "ordinal", "BIGINT"),
        MetadataColumn("_old", "old_values", "STRING"),
        MetadataColumn("_unchanged", "unchanged", "ARRAY<STRING>"),
    ),
}


def metadata_columns(
    mode: RowMode, *, has_commit: bool, has_intermediate: bool = False
) -> tuple[MetadataColumn, ...]:
    """Return the columns of pgdelta, in order; `has_commit` is whether rows have the commit that wrote it."""
    if mode == "history":  # whose versions have the commits between which they are valid
        return (*_OWN_COLUMNS[mode], *((_ORDINAL,) if has_intermediate else ()))
    has_commit |= mode == "append"  # it is part of the order of changes
    return (*(_COMMIT_COLUMNS if has_commit else ()), *_OWN_COLUMNS[mode])


def own_columns(mode: RowMode, *, has_intermediate: bool = False) -> tuple[str, ...]:
    """Return the columns that only this mode has, under their names in folded rows."""
    found = tuple(column.source for column in _OWN_COLUMNS[mode])
    return (*found, _ORDINAL.source) if has_intermediate else found


def kept_as(rule: TableRule) -> str:
    """Return how rows are kept by a rule, as it is registered."""
    return rule.mode + (_INTERMEDIATE if rule.has_intermediate else "")


def inserted_values(
    mode: RowMode, engine: Engine, *, has_intermediate: bool = False, ordinal: str = "ordinal"
) -> dict[str, str]:
    """Return SQL for the mode's own columns of a row that is inserted and not gone."""
    values = {
        "is_deleted": "false",
        "deleted_at": engine.null("TIMESTAMP"),
        "valid_from_lsn": "commit_lsn",
        "valid_from_time": "commit_time",
        "valid_to_lsn": engine.null("BIGINT"),
        "valid_to_time": engine.null("TIMESTAMP"),
        "is_current": "true",
        "valid_from_ordinal": ordinal,
    }
    return {name: values[name] for name in own_columns(mode, has_intermediate=has_intermediate)}


def mode_changed(name: TableName, before: str, mode: str) -> str:
    """Return the sentence about a table whose rows are kept in another mode than its rule's."""
    return (
        f"Table {name} is held: silver has its rows in mode {before}, and its rule has mode {mode}. Run "
        f"{name.command('rebuild')} to write them again, or restore the mode. Until then bronze keeps the "
        "changes."
    )


def keeps_past(name: TableName, rule: TableRule) -> str:
    """Return the sentence about a table with rows that a complete copy would remove."""
    kept = (
        f"in mode {rule.mode}" if rule.mode != "mirror" else "because its rule ignores deletes or truncates"
    )
    return (
        f"Table {name} is held: a copy of the source's rows is complete, and silver has rows {kept} that the "
        f"copy does not have. Run {name.command('rebuild')} to begin again with the copy. Until then bronze "
        "keeps the changes."
    )


@dataclass(frozen=True, slots=True)
class Marking:
    """How rows that are gone are marked: the columns that are set, and the one that shows which are current.

    Columns have their names in folded rows.
    """

    columns: tuple[str, ...]
    current_column: str
    current_value: str  # SQL after the column that is true for current rows

    def is_current(self, column: str) -> str:
        """Return SQL that is true for rows that are not gone, given the SQL of the column."""
        return f"{column} {self.current_value}"


MARKINGS: Mapping[RowMode, Marking] = {
    "soft_delete": Marking(
        ("commit_lsn", "commit_time", "is_deleted", "deleted_at"), "is_deleted", "= false"
    ),
    # files have statistics of the LSN, and none of a BOOLEAN
    "history": Marking(("valid_to_lsn", "valid_to_time", "is_current"), "valid_to_lsn", "IS NULL"),
}


def current_rows(registered: RegisteredTable, names: Mapping[str, str], engine: Engine) -> str | None:
    """Return SQL that is true for rows that are not gone, None if the table has no others.

    `names` are the names of silver's columns by physical name.
    """
    mode = row_mode(registered.mode)
    if mode not in MARKINGS:
        return None
    has_intermediate = registered.mode.endswith(_INTERMEDIATE)
    own, marking = own_columns(mode, has_intermediate=has_intermediate), MARKINGS[mode]
    physical = registered.metadata_columns[-len(own) :][own.index(marking.current_column)]
    return marking.is_current(engine.quoted(names[physical]))


def why_not_comparable(rule: TableRule) -> str | None:
    """Return why the rows of a table are not those of the source, None if they are."""
    if rule.is_comparable:
        return None
    if rule.mode == "append":
        return "In mode append a row of silver is a change, so there are no rows to compare."
    return "The rule of the table ignores deletes or truncates, so silver has rows that are gone."


def row_mode(word: str) -> RowMode:
    """Return the mode that a word names."""
    for mode in _OWN_COLUMNS:
        if mode == word.removesuffix(_INTERMEDIATE):
            return mode
    raise LakeError(f"Mode {word} of a silver table is not known. Update pgdelta.")


def truncate_marks(mode: RowMode, truncate: TruncatedAt, engine: Engine) -> dict[str, str]:
    """Return SQL for what a TRUNCATE sets in the columns of current rows."""
    lsn = engine.cast(str(truncate.commit_lsn), "BIGINT")
    time = engine.timestamp(truncate.micros)
    values = {
        "commit_lsn": lsn,
        "commit_time": time,
        "is_deleted": "true",
        "deleted_at": time,
        "valid_to_lsn": lsn,
        "valid_to_time": time,
        "is_current": "false",
    }
    return {name: values[name] for name in MARKINGS[mode].columns}
