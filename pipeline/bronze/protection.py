"""Columns that are kept out of the lake, hashed or masked, and bronze's record of them. Pure.

A rule names a column as the configuration does. It follows the column through renames, by its attribute
number, and a table by its oid, also if the source moved to a server where both are others: a renamed column
or table never becomes plain. Rules for the new name of a table come first, and those for its earlier names
hold for all other columns. A column of the stream that is not known to be another one has the rule of the
protected column that it may be, the strictest of several (`column_numbers.py`). The values themselves are
replaced in `columnar/protected_values.py`, before anything is written.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pipeline.bronze.column_numbers import CatalogHorizons, possible_numbers
from pipeline.bronze.schema import storable
from pipeline.bronze.source_moves import SourceMoves
from pipeline.bronze.source_relations import FIRST_USER_OID
from pipeline.config.config import Config
from pipeline.config.tables import LAST4, ColumnRules
from pipeline.protected_columns import (
    EXCLUDE,
    HMAC_SHA256,
    LAST4_MASK,
    MISSING,
    NULL_MASK,
    POSSIBLE,
    TEXT_MASK,
    ProtectedColumn,
)
from pipeline.protocol.pg_types import PgType
from pipeline.table_name import TableName

if TYPE_CHECKING:
    from pipeline.bronze.source_relations import SourceRelation
    from pipeline.postgres.attributes import TableAttributes
    from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
    from pipeline.protocol.lsn import LSN
    from pipeline.protocol.messages import Column, Relation

_STRICTEST = (EXCLUDE, NULL_MASK, TEXT_MASK, HMAC_SHA256, LAST4_MASK)


@dataclass(frozen=True, slots=True)
class Protection:
    """The rule of each column of a relation as the server sends it, None for a plain one.

    `is_known` is whether no column may be another one, so that the facts of the catalog are of these columns.
    """

    rules: tuple[str | None, ...]
    columns: tuple[ProtectedColumn, ...]
    key: bytes = field(default=b"", repr=False, compare=False)
    is_known: bool = True

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

    def loses_key(self, sent: Relation) -> bool:
        """Return whether what is captured of a row does not identify it, because of a rule for its key.

        A column of the key that only may be a protected one is no such rule.
        """
        guesses = {column.name for column in self.columns if column.is_guess}
        return sent.replica_identity != "f" and any(
            column.is_key
            and rule is not None
            and not rule.startswith(HMAC_SHA256)
            and storable(column.name) not in guesses
            for column, rule in zip(sent.columns, self.rules, strict=True)
        )

    def hashes_key(self, sent: Relation) -> bool:
        """Return whether a column of the key is hashed."""
        return any(c.is_key and rule for c, rule in zip(sent.columns, self.rules, strict=True))

    def relation(self, sent: Relation) -> Relation:
        """Return the relation as bronze has it, without identity if its key is left out or masked."""
        columns = tuple(_column(sent.columns[i], self.rules[i]) for i in self.kept)
        if self.loses_key(sent):
            columns = tuple(replace(column, is_key=False) for column in columns)
            return replace(sent, columns=columns, replica_identity="n")
        return replace(sent, columns=columns)

    def catalog(self, sent: Relation, found: CatalogRelation | None) -> CatalogRelation | None:
        """Return what the catalog has of the columns that bronze has; None if it may be of others."""
        if found is None or not self.is_known:
            return None
        names = {sent.columns[i].name for i in self.kept}
        is_whole = names.issuperset(found.primary_key) and not self.loses_key(sent)
        key = found.primary_key if is_whole else ()
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
    return replace(sent, type_oid=PgType.TEXT, type_modifier=-1) if is_text(rule) else sent


def _catalog_column(found: CatalogColumn, rule: str | None, key: bytes) -> CatalogColumn:
    if rule is None:
        return found
    value = found.missing_value
    if value is not None:
        made = protected_text(value.encode("utf-8", "surrogateescape"), rule, key)
        value = None if made is None else made.decode()
    found = replace(found, missing_value=value)
    if rule == NULL_MASK:  # it has NULL in all rows
        return replace(found, has_default=False, not_null=False)
    return replace(
        found,
        type_schema="pg_catalog",
        type_name="text",
        type_kind="b",
        base_oid=PgType.TEXT,
        base_modifier=-1,
        element_oid=None,
        element_kind=None,
        element_base_oid=None,
        output="textout",
        delimiter=None,
    )


@dataclass(slots=True)
class _Known:
    """What is known of a table with rules: its names that have rules, newest first, and its columns.

    `by_number` has the configured names of columns that have, or may have, an attribute number. `unnumbered`
    are columns of which no number is known, and `names` all columns of the last version.
    """

    tables: tuple[TableName, ...] = ()
    by_number: dict[int, str] = field(default_factory=dict)
    unnumbered: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


class ColumnProtection:
    """Finds the rules of relations; may be shared by threads."""

    def __init__(
        self,
        config: Config,
        recorded: Iterable[SourceRelation] = (),
        moves: SourceMoves = SourceMoves(),  # noqa: B008 - it is immutable
        horizons: CatalogHorizons | None = None,
    ) -> None:
        """Continue after the versions that are recorded, which have the oids and numbers of the lake."""
        self._config = config
        self._moves = moves
        self._key = (config.source.hash_key or "").encode()
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()
        self.horizons = horizons or CatalogHorizons()
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

    def concerns(self, relation: Relation) -> bool:
        """Return whether a relation has rules, by its name or an earlier one."""
        with self._lock:
            return self.is_configured and self._find(relation)[2] is not None

    def protect(self, relation: Relation, catalog: CatalogRelation | None) -> Protection | None:
        """Return the protection of a relation that was read from the catalog, None if no rule concerns it."""
        numbers = [[number] for number in catalog.attribute_numbers] if catalog else None
        return self._protect(relation, catalog, numbers, {})

    def protect_sent(
        self, relation: Relation, catalog: CatalogRelation | None, table: TableAttributes | None, lsn: LSN
    ) -> Protection | None:
        """Return the protection of a relation as a transaction that commits at an LSN sent it.

        `table` was read for the transaction later; it is None if the table does not exist any more.
        """
        names = [column.name for column in relation.columns]
        numbers = possible_numbers(names, table, self.horizons.before(lsn)) if table else None
        now = {each.number: each.name for each in table.columns if each.name is not None} if table else {}
        return self._protect(relation, catalog, numbers, now)

    def _protect(
        self,
        relation: Relation,
        catalog: CatalogRelation | None,
        numbers: Sequence[Sequence[int]] | None,
        now: Mapping[int, str],
    ) -> Protection | None:
        """Return the protection, given the attribute numbers that a column may have, and their names now."""
        if not self.is_configured:
            return None
        with self._lock:
            name, known, rules = self._find(relation)
            if rules is None:
                return None
            known = self._known.setdefault(self._moves.lake_id(relation.oid), known or _Known())
            found = self._protection(rules, relation, catalog, numbers, now, known)
            self._remember(known, name, relation, found)
        return found

    def _find(self, relation: Relation) -> tuple[TableName, _Known | None, ColumnRules | None]:
        name = TableName(storable(relation.namespace) or "pg_catalog", storable(relation.name))
        known = self._known.get(self._moves.lake_id(relation.oid))
        return name, known, self.rules_under((name, *(known.tables if known else ())))

    def _protection(
        self,
        rules: ColumnRules,
        relation: Relation,
        catalog: CatalogRelation | None,
        numbers: Sequence[Sequence[int]] | None,
        now: Mapping[int, str],
        known: _Known,
    ) -> Protection:
        found: list[str | None] = []
        columns = []
        for i, sent in enumerate(relation.columns):
            name = storable(sent.name)
            possible = numbers[i] if numbers is not None else None
            before = self._names_before(rules, relation, name, possible, now, known)
            configured = self._strictest(rules, name, before)
            rule = self.rule_of(rules, configured) if configured is not None else None
            number = possible[0] if possible is not None and len(possible) == 1 else None
            if possible is not None and number is None and self.rule_of(rules, name) is not None:
                columns += [ProtectedColumn(None, name, each, POSSIBLE) for each in possible]
            if rule is not None and number is None and configured != name:
                is_in_key = sent.is_key and relation.replica_identity != "f"
                if possible is None or (is_in_key and not rule.startswith(HMAC_SHA256)):
                    rule = NULL_MASK  # it stays in its place
            found.append(rule)
            if rule is not None and configured is not None:
                is_same = catalog is not None and catalog.attribute_numbers[i] == number
                kind = _type_of(relation, catalog if is_same else None, i, rule)
                columns.append(ProtectedColumn(name, configured, number, rule, *kind))
        if all(rule == EXCLUDE for rule in found):  # a row has a column at least
            found = [NULL_MASK for _ in found]
            columns = [replace(c, rule=NULL_MASK) if c.rule == EXCLUDE else c for c in columns]
        is_known = numbers is not None and not any(column.is_guess for column in columns)
        present = {*(storable(c.name) for c in relation.columns), *(c.configured_name for c in columns)}
        columns += [ProtectedColumn(None, n, None, MISSING) for n in rules.names if n not in present]
        if catalog is not None and numbers is not None:
            pairs = zip(catalog.attribute_numbers, numbers, strict=True)
            is_known = is_known and all(number in each for number, each in pairs)
        return Protection(tuple(found), tuple(columns), self._key, is_known)

    def _names_before(
        self,
        rules: ColumnRules,
        relation: Relation,
        name: str,
        possible: Sequence[int] | None,
        now: Mapping[int, str],
        known: _Known,
    ) -> set[str]:
        """Return the names that a column may have had, or may have now."""
        if possible is None:
            return {*rules.names, *known.by_number.values(), *known.unnumbered}
        found = {storable(now[number]) for number in possible if number in now}
        lake = (self._moves.lake_number(relation.oid, number)[1] for number in possible)
        found |= {known.by_number[number] for number in lake if number in known.by_number}
        return found if name in known.names else found | known.unnumbered

    def _strictest(self, rules: ColumnRules, name: str, before: Iterable[str]) -> str | None:
        """Return which of a column's names has the strictest rule, None if none has one."""
        with_rules = [
            (rule, each) for each in (name, *before) if (rule := self.rule_of(rules, each)) is not None
        ]
        return (
            min((_strictness(rule), each != name, each) for rule, each in with_rules)[2]
            if with_rules
            else None
        )

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

    def _remember(self, known: _Known, name: TableName, relation: Relation, protection: Protection) -> None:
        names = [storable(column.name) for column in relation.columns]
        columns = [
            replace(column, attribute_number=self._moves.lake_number(relation.oid, number)[1])
            if (number := column.attribute_number) is not None
            else column
            for column in protection.columns
        ]
        self._update(known, name, names, columns)

    def _add(self, relation: SourceRelation) -> None:
        rules = self.rules_of(relation.name)
        # with include, a table may have rules and no column that they concern yet
        if relation.protected or (rules is not None and rules.include):
            known = self._known.setdefault(relation.oid, _Known())
            names = [column.name for column in relation.columns]
            self._update(known, relation.name, names, relation.protected)

    def _update(
        self, known: _Known, name: TableName, names: Iterable[str], columns: Iterable[ProtectedColumn]
    ) -> None:
        if self.rules_of(name) is not None:
            known.tables = (name, *(table for table in known.tables if table != name))
        present = [column for column in columns if column.name is not None]
        known.names = {*names, *(str(column.name) for column in present)}
        for column in columns:
            if column.attribute_number is not None:
                known.by_number[column.attribute_number] = column.configured_name
        configured = {column.configured_name for column in present}
        known.unnumbered = (known.unnumbered | configured).difference(known.by_number.values())


def _strictness(rule: str) -> int:
    return next(i for i, kind in enumerate(_STRICTEST) if rule.startswith(kind))


def fingerprint(key: bytes) -> str:
    """Return eight digits that tell one key from another, and do not give it away."""
    return hmac.digest(key, b"pgdelta hash_key", "sha256").hex()[:8]


def digest_of(protection: Protection) -> str:
    """Return what tells two protections of one shape apart, for the id of a relation version."""
    parts = repr([astuple(column) for column in protection.columns])
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
