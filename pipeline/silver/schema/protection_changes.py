"""Compare the rules of columns that silver's rows were captured with, with those of later rows. Pure.

Bronze keeps what it has, so a table whose rule for a column changed would have values of both rules. Such a
table needs a resync, which copies all rows under the new rules. A hash is that of a text, so a type that has
other texts for the same values changes it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.config import Config
from pipeline.metadata.registry import RegisteredTable
from pipeline.protected_columns import EXCLUDE, HMAC_SHA256, MISSING, ProtectedColumn, find_protected
from pipeline.silver.schema.schema_operations import RuleNote
from pipeline.silver.types.types import keeps_texts
from pipeline.table_name import TableName

PLAIN = "none"


def changed_rule(
    before: Sequence[ProtectedColumn], numbers: Mapping[str, int | None], relation: SourceRelation
) -> str | None:
    """Return which rule changed, as part of a sentence; None if none did.

    `before` and `numbers` (by name) are the protected columns and all columns of silver's rows. A column that
    was added or dropped at the source changes no rule.
    """
    after = {c.name: c for c in relation.protected if c.name is not None}
    earlier = [c for c in before if c.name is not None]
    for column in relation.columns:
        place = column.name, column.attribute_number
        if find_protected(after.values(), *place) is not None:
            continue
        if found := find_protected(earlier, *place):
            return _sentence(column.name, found.rule, PLAIN)
    taken = {c.attribute_number for c in relation.columns} | {c.attribute_number for c in after.values()}
    for name, new in after.items():
        found = find_protected(earlier, str(name), new.attribute_number)
        if found is not None and new.attribute_number is None and found.attribute_number in taken - {None}:
            found = None  # that column has another name now, and this one is plain in silver, or new
        elif found is None and not _is_known(numbers, str(name), new.attribute_number):
            continue
        earlier_rule = found.rule if found is not None else PLAIN
        if earlier_rule != new.rule:
            change = _sentence(str(name), earlier_rule, new.rule)
            return f"{_guess(new)}, and {change}" if new.is_guess else change
    return None


def retyped_columns(
    before: Sequence[ProtectedColumn], relation: SourceRelation
) -> list[tuple[ProtectedColumn, bool]]:
    """Return the columns whose types have other texts than before, from which values are hashed or masked.

    Each has whether it is part of the key or, with REPLICA IDENTITY FULL, of the row that identifies itself.
    """
    found = []
    for column in relation.protected:
        earlier = find_protected(before, column.name, column.attribute_number)
        types = (earlier.type if earlier else None), column.type
        if types[0] is not None and types[1] is not None and not keeps_texts(types[0], types[1]):
            same = (each for each in relation.columns if column.is_same(each.name, each.attribute_number))
            found.append((column, any(each.is_key for each in same)))
    return found


def rule_to_come(
    config: Config, table: RegisteredTable, relations: Iterable[SourceRelation] = ()
) -> str | None:
    """Return which rule the configuration changes for a silver table, as a sentence; None if none.

    `relations` have the names that the table had before.
    """
    protection = ColumnProtection(config)
    versions = (each for each in relations if each.oid == table.relation_id)
    names = (each.name for each in sorted(versions, key=lambda each: each.lsn, reverse=True))
    rules = protection.rules_under((table.name, *names))
    protected = [column for column in table.protected if column.name is not None]
    named = [(c.name, c.attribute_number) for c in table.columns if c.type_oid is not None]
    named += [(str(c.name), c.attribute_number) for c in protected if c.rule == EXCLUDE]
    for name, number in named:
        found = find_protected(protected, name, number)
        configured = found.configured_name if found else name
        wanted = protection.rule_of(rules, configured) if rules else None
        present = found.rule if found else None
        if wanted != present:
            what = _sentence(name, present or PLAIN, wanted or PLAIN)
            return (
                f"In the configuration, {what}. Rows in bronze and silver stay as they are, and the next "
                f"change holds the table. Run {table.name.command('resync')} to copy it under the new rules."
            )
    return None


def describe_rule(rule: str) -> str:
    """Return a rule in words."""
    kind, _, fingerprint = rule.partition(" ")
    return f"{kind} with the key {fingerprint}" if kind == HMAC_SHA256 else rule


def rule_notes(
    before: Iterable[ProtectedColumn], table: TableName, after: Iterable[ProtectedColumn]
) -> list[RuleNote]:
    """Return notes of rules that name no column of a table, or one that is, or may be, another one."""
    found = []
    known = {(column.name, column.configured_name, column.rule) for column in before}
    for column in after:
        if (column.name, column.configured_name, column.rule) in known:
            continue
        configured = column.configured_name
        if column.rule == MISSING:
            text = (
                f"Table {table} has no column {configured}, which tables[].columns names. Correct the name, "
                "which is case-sensitive."
            )
            found.append(RuleNote(text))
        elif column.is_guess:
            text = (
                f"C{_guess(column)[1:]}. It has the rule {describe_rule(column.rule)} until you run "
                f"{table.command('resync')}."
            )
            found.append(RuleNote(text, "resync"))
        elif column.name is not None and column.name != configured:
            text = (
                f"Column {column.name} has the rule of column {configured}, from which it was renamed or may "
                f"have been. Name {column.name} in tables[].columns too. If it is another column, move its "
                "values to a new one."
            )
            found.append(RuleNote(text))
    return found


def _guess(column: ProtectedColumn) -> str:
    return (
        f"column {column.name} may be column {column.configured_name}, because the table was altered again "
        "before its columns were looked up"
    )


def _is_known(numbers: Mapping[str, int | None], name: str, number: int | None) -> bool:
    if number is not None and number in numbers.values():
        return True
    return name in numbers and (number is None or numbers[name] is None)


def _sentence(name: str, before: str, after: str) -> str:
    if after == EXCLUDE:
        return f"column {name}, whose rule was {describe_rule(before)}, is left out"
    return f"the rule of column {name} changed from {describe_rule(before)} to {describe_rule(after)}"
