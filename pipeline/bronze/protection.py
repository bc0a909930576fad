"""Which columns of a table are kept out of the lake, hashed or masked, and what bronze records of it. Pure.

A rule names a column as the configuration does. It follows the column through renames, by its attribute
number, and a table by its oid, also if the source moved to a server where both are others: a renamed column
or table never becomes plain. Rules for the new name of a table come first, and those for its earlier names
hold for all other columns. If the catalog does not say which column was renamed, every column with a new name
has the rule of that column. The values themselves are replaced in `columnar/protected_values.py`, before
anything is written.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pipeline.bronze.schema import storable
from pipeline.bronze.source_moves import SourceMoves
from pipeline.bronze.source_relations import FIRST_USER_OID
from pipeline.config.config import Config
from pipeline.config.tables import LAST4, ColumnRules
from pipeline.errors import ConfigError
from pipeline.protected_columns import (
    EXCLUDE,
    HMAC_SHA256,
    LAST4_MASK,
    MISSING,
    NULL_MASK,
    TEXT_MASK,
    ProtectedColumn,
)
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.bronze.source_relations import SourceRelation
    from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
    from pipeline.protocol.messages import Column, Relation

_TEXT_OID = 25


@dataclass(frozen=True, slots=True)
class Protection:
    """The rule of each column of a relation as the server sends it, None for a plain one."""

    rules: tuple[str | None, ...]
    columns: tuple[ProtectedColumn, ...]
    key: bytes = field(default=b"", repr=False, compare=False)

    @property
    def is_plain(self) -> bool:
        """Whether no column of the relation has a rule."""
        return not any(self.rules)

    @property
    def kept(self) -> tuple[int, ...]:
        """The positions of the columns that are captured."""
        return tuple(i for i, rule in enumerate(self.rules) if rule != EXCLUDE)

    def of_kept(self) -> Protection:
        """Return the protection of rows that were read without the columns that are left out."""
        return replace(self, rules=tuple(self.rules[i] for i in self.kept))

    def hashes_key(self, sent: Relation) -> bool:
        """Return whether a column of the key is hashed."""
        return any(c.is_key and rule for c, rule in zip(sent.columns, self.rules, strict=True))

    def relation(self, sent: Relation) -> Relation:
        """Return the relation as bronze has it."""
        columns = tuple(_column(sent.columns[i], self.rules[i]) for i in self.kept)
        return replace(sent, columns=columns)

    def catalog(self, sent: Relation, found: CatalogRelation | None) -> CatalogRelation | None:
        """Return what the catalog has of the columns that bronze has."""
        if found is None:
            return None
        names = {sent.columns[i].name for i in self.kept}
        key = found.primary_key if names.issuperset(found.primary_key) else ()
        columns = tuple(_catalog_column(found.columns[i], self.rules[i], self.key) for i in self.kept)
        return replace(found, columns=columns, primary_key=key)


def protected_text(value: bytes, rule: str, key: bytes) -> bytes | None:
    """Return what replaces a value, which is not NULL; None for NULL."""
    if rule.startswith(HMAC_SHA256):
        return hmac.digest(key, value, "sha256").hex().encode()
    if rule == NULL_MASK:
        return None
    if rule == LAST4_MASK:
        return mask_all_but_last4(value.decode("utf-8", "surrogateescape")).encode()
    assert rule.startswith(TEXT_MASK), rule
    return rule.removeprefix(TEXT_MASK).encode()


def mask_all_but_last4(text: str) -> str:
    """Return four asterisks and the last four characters; of a text of less than eight the asterisks."""
    return "****" + (storable(text[-4:]) if len(text) >= 8 else "")


def is_text(rule: str | None) -> bool:
    """Return whether values with a rule are texts, whatever the type of the column."""
    return rule is not None and rule != NULL_MASK


def _type_of(
    relation: Relation, catalog: CatalogRelation | None, i: int, rule: str
) -> tuple[int | None, int | None]:
    """Return oid and modifier of the type of a column, if its values depend on texts and it is known."""
    if not rule.startswith((HMAC_SHA256, LAST4_MASK)):
        return None, None
    if catalog is not None:
        return catalog.columns[i].base_oid, catalog.columns[i].base_modifier
    sent = relation.columns[i]
    return (sent.type_oid, sent.type_modifier) if sent.type_oid < FIRST_USER_OID else (None, None)


def _column(sent: Column, rule: str | None) -> Column:
    return replace(sent, type_oid=_TEXT_OID, type_modifier=-1) if is_text(rule) else sent


def _catalog_column(found: CatalogColumn, rule: str | None, key: bytes) -> CatalogColumn:
    if rule is None:
        return found
    value = found.missing_value
    if value is not None:
        made = protected_text(value.encode("utf-8", "surrogateescape"), rule, key)
        value = None if made is None else made.decode()
    found = replace(found, missing_value=value, has_missing=value is not None)
    if rule == NULL_MASK:  # it has NULL in all rows
        return replace(found, has_default=False, not_null=False)
    return replace(
        found,
        type_schema="pg_catalog",
        type_name="text",
        type_kind="b",
        base_oid=_TEXT_OID,
        base_modifier=-1,
        element_oid=None,
        element_kind=None,
        element_base_oid=None,
        output="textout",
    )


@dataclass(slots=True)
class _Known:
    """What is known of a table with rules: its columns, and its names that have rules, newest first."""

    tables: tuple[TableName, ...] = ()
    names: set[str] = field(default_factory=set)  # of all columns in the last version
    configured: dict[str, str] = field(default_factory=dict)  # by the names of columns with a rule
    by_number: dict[int, str] = field(default_factory=dict)


class ColumnProtection:
    """Finds the rules of relations; may be shared by threads."""

    def __init__(
        self,
        config: Config,
        recorded: Iterable[SourceRelation] = (),
        moves: SourceMoves = SourceMoves(),  # noqa: B008 - it is immutable
    ) -> None:
        """Continue after the versions that are recorded, which have the oids and numbers of the lake."""
        self._config = config
        self._moves = moves
        self._key = (config.source.hash_key or "").encode()
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()
        self.is_configured = any(rule.columns for rule in config.tables)
        for relation in sorted(recorded, key=lambda each: each.lsn) if self.is_configured else ():
            self._add(relation)

    def rules_of(self, name: TableName) -> ColumnRules | None:
        """Return the rules for the columns of a table, None if there are none."""
        rule = self._config.rule_for(name)
        return rule.columns if rule is not None and rule.columns else None

    def rules_under(self, names: Iterable[TableName]) -> ColumnRules | None:
        """Return the rules for the columns of a table that had these names, newest first."""
        found = [rules for rules in map(self.rules_of, dict.fromkeys(names)) if rules is not None]
        return reduce(ColumnRules.followed_by, found) if found else None

    def is_known(self, oid: int, name: TableName) -> bool:
        """Return whether a version of a table was recorded, or seen in this run, with the rules of a name."""
        with self._lock:
            known = self._known.get(self._moves.lake_id(oid))
        return known is not None and TableName(*map(storable, name)) in known.tables

    def protect(self, relation: Relation, catalog: CatalogRelation | None) -> Protection | None:
        """Return the protection of a relation, None if no rule concerns it.

        Raises ConfigError if a column of its key is excluded or masked.
        """
        if not self.is_configured:
            return None
        name = TableName(storable(relation.namespace) or "pg_catalog", storable(relation.name))
        with self._lock:
            known = self._known.get(self._moves.lake_id(relation.oid))
            rules = self.rules_under((name, *(known.tables if known else ())))
            if rules is None:
                return None
            found = self._protection(rules, relation, catalog, known)
            self._remember(name, relation, found)
        _refuse_key(rules, relation, found)
        return found

    def _protection(
        self,
        rules: ColumnRules,
        relation: Relation,
        catalog: CatalogRelation | None,
        known: _Known | None,
    ) -> Protection:
        names = [storable(column.name) for column in relation.columns]
        sent: Sequence[int | None] = catalog.attribute_numbers if catalog else [None] * len(names)
        numbers = [self._lake_number(relation, number) for number in sent]
        configured: dict[int, str] = {}  # by position
        for i, (name, number) in enumerate(zip(names, numbers, strict=True)):
            if self.rule_of(rules, name) is not None:
                configured[i] = name
            elif known is not None:
                before = known.by_number.get(number) if number is not None else None
                before = before or (known.configured.get(name) if number is None else None)
                before = before or _unnumbered(known, name)
                if before is not None and self.rule_of(rules, before) is not None:
                    configured[i] = before
        if known is not None:
            lost = self._lost(rules, known, names, numbers, configured)
            if lost is not None:
                for i, name in enumerate(names):
                    if i not in configured and name not in known.names:
                        configured[i] = lost
        found = [self.rule_of(rules, configured[i]) if i in configured else None for i in range(len(names))]
        columns = []
        for i in sorted(configured):
            kind = _type_of(relation, catalog, i, str(found[i]))
            columns.append(ProtectedColumn(names[i], configured[i], sent[i], str(found[i]), *kind))
        present = {*names, *configured.values()}
        columns += [ProtectedColumn(None, n, None, MISSING) for n in rules.names if n not in present]
        return Protection(tuple(found), tuple(columns), self._key)

    def _lost(
        self,
        rules: ColumnRules,
        known: _Known,
        names: Sequence[str],
        numbers: Sequence[int | None],
        configured: Mapping[int, str],
    ) -> str | None:
        """Return the rule's name of a column that may have been renamed to any new one, the strictest."""
        numbered = set(known.by_number.values())
        gone = [
            before
            for name, before in known.configured.items()
            if name not in names
            and before not in configured.values()
            # with numbers on both sides a column that is gone was dropped
            and not (before in numbered and None not in numbers)
        ]
        found = [(rule, name) for name in gone if (rule := self.rule_of(rules, name)) is not None]
        order = (EXCLUDE, NULL_MASK)
        return min(found, key=lambda each: (each[0] not in order, each))[1] if found else None

    def rule_of(self, rules: ColumnRules, name: str) -> str | None:
        """Return the rule of a column by the name that the configuration has for it."""
        if rules.excludes(name):
            return EXCLUDE
        if name in rules.hash:
            return f"{HMAC_SHA256} {fingerprint(self._key)}"
        if name in rules.mask:
            mask = rules.mask[name]
            if mask is None:
                return NULL_MASK
            return LAST4_MASK if mask == LAST4 else TEXT_MASK + mask
        return None

    def _remember(self, name: TableName, relation: Relation, protection: Protection) -> None:
        names = [storable(column.name) for column in relation.columns]
        columns = [
            replace(column, attribute_number=self._lake_number(relation, column.attribute_number))
            for column in protection.columns
        ]
        self._update(self._moves.lake_id(relation.oid), name, names, columns)

    def _lake_number(self, relation: Relation, number: int | None) -> int | None:
        return number and self._moves.lake_number(relation.oid, number)[1]

    def _add(self, relation: SourceRelation) -> None:
        rules = self.rules_of(relation.name)
        # with include, a table may have rules and no column that they concern yet
        if relation.protected or (rules is not None and rules.include):
            names = [column.name for column in relation.columns]
            self._update(relation.oid, relation.name, names, relation.protected)

    def _update(
        self, oid: int, name: TableName, names: Iterable[str], columns: Iterable[ProtectedColumn]
    ) -> None:
        known = self._known.setdefault(oid, _Known())
        if self.rules_of(name) is not None:
            known.tables = (name, *(table for table in known.tables if table != name))
        found = [column for column in columns if column.name is not None]
        known.names = {*names, *(str(column.name) for column in found)}
        known.configured = {str(column.name): column.configured_name for column in found}
        for column in found:
            if column.attribute_number is not None:
                known.by_number[column.attribute_number] = column.configured_name


def _unnumbered(known: _Known, name: str) -> str | None:
    """Return the configured name of a column whose number was not known."""
    before = known.configured.get(name)
    return before if before is not None and before not in known.by_number.values() else None


def fingerprint(key: bytes) -> str:
    """Return eight digits that tell one key from another, and do not give it away."""
    return hmac.digest(key, b"pgdelta hash_key", "sha256").hex()[:8]


def _refuse_key(rules: ColumnRules, relation: Relation, protection: Protection) -> None:
    """Raise ConfigError if a column of the key is excluded or masked, or no column is left."""
    configured = {column.name: column.configured_name for column in protection.columns}
    has_key = relation.replica_identity != "f"
    for column, rule in zip(relation.columns, protection.rules, strict=True):
        if has_key and column.is_key and rule is not None and not rule.startswith(HMAC_SHA256):
            raise ConfigError(rules.key_fault(configured[storable(column.name)], storable(relation.name)))
    if not protection.kept:
        raise ConfigError(rules.nothing_left(storable(relation.name)))


def digest_of(protection: Protection) -> str:
    """Return what tells two protections of one shape apart, for the id of a relation version."""
    parts = repr([astuple(column) for column in protection.columns])
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
