"""Check the rules of tables that several sources share, and of those that are kept for all readers."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.tables import TABLE_PLACEHOLDER, TableRule
from pipeline.config.yaml_document import Document
from pipeline.table_name import TableGlob

NO_GLOB = "Not a `schema.table` glob. Write schema.table, and double-quote a part that contains a dot."


def check_union(rule: TableRule, index: int, document: Document) -> None:
    """Raise ConfigError for a union that has no parent, no folder or no descendants, or for the reverse."""
    place: tuple[str | int, ...] = ("tables", index, "inheritance")
    fault = None
    if not rule.is_union:
        if rule.descendants:
            place = ("tables", index, "descendants")
            fault = "They are for inheritance: union. Write that too, or leave the key out."
    elif rule.parent is None:
        fault = "A union is of one table and those that inherit from it. Name the table in source."
    elif rule.target is None or TABLE_PLACEHOLDER in rule.target:
        fault = f"A union has a folder of its own. Write a target, such as target: {rule.parent.table}."
    elif not rule.descendants:
        fault = "No table is named that inherits. Write descendants, such as [public.capitals]."
    else:
        for number, text in enumerate(rule.descendants):
            if not TableGlob(text).is_valid:
                place, fault = ("tables", index, "descendants", number), NO_GLOB
    if fault is not None:
        raise document.error(fault, *place)


def check_shared(rule: TableRule, index: int, document: Document, others: Sequence[TableRule]) -> None:
    """Raise ConfigError for what tables that several sources share cannot have, or have to have alike."""
    if not rule.is_shared:
        return
    fault = None
    if rule.dropped_columns == "drop":
        fault = "dropped_columns: drop would drop the column in one source only. Write dropped_columns: keep."
    elif rule.detached_tables == "archive":
        fault = (
            "detached_tables: archive would move the rows of one source only. Write detached_tables: keep."
        )
    elif rule.change_feed:
        fault = "Delta records no change data feed of such a table. Leave change_feed out."
    elif any(other.target == rule.target and other.mode != rule.mode for other in others):
        fault = "Another rule with this target has another mode. Write the same mode in both."
    if fault is not None:
        reason = "Several sources share the tables of a target with {table}"
        if rule.is_union:
            reason = "The tables of a union share one silver table"
        raise document.error(f"{reason}. {fault}", "tables", index, "target")


def check_readers(rule: TableRule, index: int, document: Document) -> None:
    """Raise ConfigError for what tables cannot have that need no table feature of their readers."""
    if rule.readers != "widest":
        return
    place: tuple[str | int, ...] = ("tables", index, "readers")
    if document.get(*place) is None:
        place = ("tables", index)
    if rule.is_shared:
        raise document.error(
            "Tables that several sources share need column mapping for renames. Write readers: spark.",
            *place,
        )
    variant = next((name for name, kind in rule.types.items() if "VARIANT" in kind), None)
    if variant is not None:
        raise document.error(
            f"Readers of column {variant} need variantType. Give it the type STRING, or write readers:"
            " spark.",
            *place,
        )
