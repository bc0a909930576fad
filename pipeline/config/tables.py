"""Rules of the configuration: which source tables become which silver tables, and how.

A rule is one item of the file's list `tables`. Keys, defaults and meanings are those of the README.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from pipeline.config.yaml_document import Section, Value
from pipeline.table_name import TableGlob, TableName

Misfits = Literal["null", "text", "clamp", "error"]
DroppedColumns = Literal["keep", "drop"]
TypeChanges = Literal["hold", "rewrite"]
DetachedTables = Literal["keep", "archive"]
MISFITS = ("null", "text", "clamp", "error")
DROPPED_COLUMNS = ("keep", "drop")
TYPE_CHANGES = ("hold", "rewrite")
DETACHED_TABLES = ("keep", "archive")
MODES = ("mirror",), ("soft_delete", "history", "append")

_SCALAR_TYPE = re.compile(
    r"BOOLEAN|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|STRING|BINARY|DATE|TIMESTAMP|TIMESTAMP_NTZ|VARIANT"
    r"|MAP<STRING,STRING>|DECIMAL\((?P<precision>\d{1,2}),(?P<scale>\d{1,2})\)"
)


@dataclass(frozen=True, slots=True)
class Guards:
    """Say how many deletes and truncates one pass of apply may bring a table; None is no limit."""

    deletes: int | None = None
    truncates: int | None = None


NO_LIMITS = Guards()


@dataclass(frozen=True, slots=True)
class TableRule:
    """Say how the tables that a glob matches become silver tables.

    `misfits` are what becomes of values that do not fit, by column; `misfit` is that of all others.
    """

    source: str
    target: str | None = None
    mode: str = "mirror"
    types: Mapping[str, str] = field(default_factory=dict, hash=False)
    misfits: Mapping[str, Misfits] = field(default_factory=dict, hash=False)
    misfit: Misfits = "null"
    dropped_columns: DroppedColumns = "keep"
    type_changes: TypeChanges = "hold"
    detached_tables: DetachedTables = "keep"
    guards: Guards = NO_LIMITS

    def misfit_of(self, column: str) -> Misfits:
        """Return what becomes of a column's values that do not fit."""
        return self.misfits.get(column, self.misfit)

    def matches(self, name: TableName) -> bool:
        """Return whether the rule is for a table."""
        return TableGlob(self.source).matches(name)


def read_guards(section: Section, general: Guards) -> Guards:
    """Return the guards of a section; what it does not say is that of the general ones."""
    guards = Guards(section.limit("deletes", general.deletes), section.limit("truncates", general.truncates))
    section.finish()
    return guards


def read_rules(value: Value | None, general: TableRule) -> tuple[TableRule, ...]:
    """Return the rules of a file's list; what a rule does not say is that of the general one."""
    if value is None:
        return (general,)
    rules: list[TableRule] = []
    targets: list[Value] = []
    for item in value.items():
        section = item.section()
        source = section.get("source")
        if source is None:
            raise item.error("source is missing; write a `schema.table` glob")
        glob = source.text()
        if not TableGlob(glob).is_valid:
            raise source.error("write schema.table, with a part that holds a dot in double quotes")
        target = section.get("target")
        target_name = None if target is None else target.text()
        if target is not None:
            if "*" in glob or "?" in glob:
                raise target.error(
                    "one target cannot take the many tables of a glob; name the table in source"
                )
            if any(rule.target == target_name for rule in rules):
                raise target.error("another rule has the same target; two tables cannot share one")
        types = section.section("types").values()
        misfits = section.section("misfits").values()
        rules.append(
            TableRule(
                glob,
                target_name,
                section.choice("mode", general.mode, *MODES),
                {column: _read_type(text) for column, text in types.items()},
                {column: cast(Misfits, word.choice(MISFITS)) for column, word in misfits.items()},
                general.misfit,
                cast(
                    DroppedColumns,
                    section.choice("dropped_columns", general.dropped_columns, DROPPED_COLUMNS),
                ),
                cast(TypeChanges, section.choice("type_changes", general.type_changes, TYPE_CHANGES)),
                cast(
                    DetachedTables,
                    section.choice("detached_tables", general.detached_tables, DETACHED_TABLES),
                ),
                read_guards(section.section("guards"), general.guards),
            )
        )
        section.finish()
        if target is not None:
            targets.append(target)
    # a Delta table cannot hold the folders of others
    schemas = {rule.source.partition(".")[0] for rule in rules if rule.target is None}
    for target in targets:
        if target.text() in schemas:
            raise target.error("this is a schema's folder in silver; choose another name")
    return tuple(rules)


def _read_type(value: Value) -> str:
    text = "".join(value.text().upper().split())
    element = text[6:-1] if text.startswith("ARRAY<") and text.endswith(">") else text
    match = _SCALAR_TYPE.fullmatch(element)
    if match is None:
        raise value.error(
            "unknown type; write BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, "
            "BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, VARIANT, MAP<STRING,STRING> or ARRAY<one of these>"
        )
    if match["precision"] is not None:
        precision, scale = int(match["precision"]), int(match["scale"])
        if not (1 <= precision <= 38 and scale <= precision):
            raise value.error("a DECIMAL holds 1 to 38 digits, of which no more than all follow the point")
    return text
