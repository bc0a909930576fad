"""Kinds of the relations that rules match, and which of their rows are followed. Pure.

`KINDS` has a sentence and what to do for each kind of relation whose changes the stream does not carry, or
not under its name. A table that is not here is an ordinary one, and is followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from pipeline.config.config import Config
from pipeline.table_name import TableName
from pipeline.units import format_names


class Reason(NamedTuple):
    """Why ingest does not add or follow a table, and what to do, a sentence each; `…` is for names."""

    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.why} {self.fix}"

    def fix_for(self, names: str) -> str:
        """Return what to do with names of tables, and more about them, for those to add."""
        return self.fix.replace("ADD TABLE …", f"ADD TABLE {names}")


class RelationKind(Enum):
    """A kind of relation that is not what a rule seems to name."""

    VIEW = auto()
    MATERIALIZED_VIEW = auto()
    SEQUENCE = auto()
    FOREIGN_TABLE = auto()
    UNLOGGED = auto()
    PARTITIONED = auto()  # before PostgreSQL 13
    HYPERTABLE = auto()
    ACCESS_METHOD = auto()
    OF_EXTENSION = auto()
    PARENT = auto()  # other tables inherit from it
    NO_DESCENDANT = auto()  # of the parent of its union


#: `{}` is the access method, the extension, the tables that inherit, or the table that this one does not.
KINDS: Mapping[RelationKind, Reason] = {
    RelationKind.VIEW: Reason(
        "It is a view, which has no rows and no changes of its own.", "Name the tables that it reads."
    ),
    RelationKind.MATERIALIZED_VIEW: Reason(
        "It is a materialized view, whose changes are not in the stream.", "Name the tables that it reads."
    ),
    RelationKind.SEQUENCE: Reason(
        "It is a sequence, whose values are not in the stream.", "Leave it out of tables."
    ),
    RelationKind.FOREIGN_TABLE: Reason(
        "It is a foreign table, whose changes are made on another server.", "Replicate it from that server."
    ),
    RelationKind.UNLOGGED: Reason(
        "It is unlogged, so its changes are not in the WAL.", "Run ALTER TABLE … SET LOGGED to follow it."
    ),
    RelationKind.PARTITIONED: Reason(
        "It is partitioned, and PostgreSQL publishes partitioned tables from 13 on.", "Name its partitions."
    ),
    RelationKind.HYPERTABLE: Reason(
        "It is a TimescaleDB hypertable: the stream has its rows under the names of its chunks, so that"
        " silver would be empty.",
        "Leave it out of tables, or copy it into an ordinary table.",
    ),
    RelationKind.ACCESS_METHOD: Reason(
        "Its access method {} is not PostgreSQL's own, so its changes may not be in the stream.",
        "If they are, run ALTER PUBLICATION … ADD TABLE … to follow it.",
    ),
    RelationKind.OF_EXTENSION: Reason(
        "It belongs to the extension {}.", "A rule that names it without * and ? follows it."
    ),
    RelationKind.PARENT: Reason(
        "Tables inherit from it ({}), whose rows SELECT on it shows too, and inheritance is refuse.",
        "Set inheritance: parent_only for its own rows, or end that with ALTER TABLE … NO INHERIT.",
    ),
    RelationKind.NO_DESCENDANT: Reason(
        "It matches descendants of the rule of {}, and does not inherit from that table.",
        "For a silver table of its own, give it a rule before that one.",
    ),
}
_PARTITIONS = {
    RelationKind.FOREIGN_TABLE: "foreign tables, whose changes are made on other servers",
    RelationKind.UNLOGGED: "unlogged, so that their changes are not in the WAL; ALTER TABLE … SET LOGGED"
    " makes them followed",
    RelationKind.ACCESS_METHOD: "not of PostgreSQL's own access method, so that their changes may be missing",
}
_BY_RELKIND = {
    "v": RelationKind.VIEW,
    "m": RelationKind.MATERIALIZED_VIEW,
    "S": RelationKind.SEQUENCE,
    "f": RelationKind.FOREIGN_TABLE,
}
FIRST_WITH_ROOTS = 130000


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """What the catalog has of a relation that is not just an ordinary table.

    `access_method` is None for heap, `extension` for what no extension owns. `heirs` are the tables that
    inherit from it on all levels and are not partitions, `roots` those that it is a partition of.
    """

    name: TableName
    relkind: str
    is_unlogged: bool = False
    access_method: str | None = None
    extension: str | None = None
    is_hypertable: bool = False
    heirs: Sequence[TableName] = ()
    roots: Sequence[TableName] = ()

    def kind(self, version: int) -> RelationKind | None:
        """Return the kind on a server of this version, None for a table that is followed."""
        found = _BY_RELKIND.get(self.relkind)
        if found is None and self.is_unlogged:
            return RelationKind.UNLOGGED
        if found is None and self.relkind == "p" and version < FIRST_WITH_ROOTS:
            return RelationKind.PARTITIONED
        if found is None and self.is_hypertable:
            return RelationKind.HYPERTABLE
        return RelationKind.ACCESS_METHOD if found is None and self.access_method else found


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """A partitioned table or a partition; `above` are the tables that it is a partition of, nearest first."""

    is_partitioned: bool
    above: Sequence[TableName] = ()


class MatchedRelations:
    """The relations that rules match and that are not just ordinary tables, with what to say of each.

    `published` are always the tables that the publication has. `families` are partitioned tables and their
    partitions, which have no members on servers that do not publish partitioned tables.
    """

    def __init__(
        self,
        facts: Sequence[CatalogFacts],
        config: Config,
        version: int,
        families: Mapping[TableName, FamilyMember] = MappingProxyType({}),
    ) -> None:
        self.families = families
        self._facts = facts
        self._config = config
        self._version = version
        self._heirs = {each.name: each.heirs for each in facts}

    def refused(self, published: Collection[TableName] = ()) -> dict[TableName, Reason]:
        """Return the relations that are published or named by a rule, or would be followed, and why not."""
        return {
            facts.name: self._reason(facts, kind)
            for facts, kind in self._unfollowed(published)
            if self._is_refused(facts, kind, published)
        }

    def passed_over(self, published: Collection[TableName] = ()) -> dict[TableName, Reason]:
        """Return the relations that only a wildcard matches and that are not followed, and why."""
        return {
            facts.name: self._reason(facts, kind)
            for facts, kind in self._unfollowed(published)
            if not self._is_refused(facts, kind, published)
            and kind is not RelationKind.SEQUENCE
            and not any(self._config.rule_for(root) for root in facts.roots)
        }

    def notes(self, followed: Collection[TableName]) -> dict[TableName, str]:
        """Return for each of these tables that silver does not show as SELECT on the source does, why."""
        found: dict[TableName, list[str]] = {}
        partitions: dict[TableName, dict[RelationKind, list[TableName]]] = {}
        for facts in self._facts:
            kind = facts.kind(self._version)
            for root in facts.roots if kind in _PARTITIONS else ():
                assert kind is not None
                partitions.setdefault(root, {}).setdefault(kind, []).append(facts.name)
            if kind is RelationKind.ACCESS_METHOD:
                why = KINDS[kind].why.format(facts.access_method)
                found.setdefault(facts.name, []).append(
                    f"{why} Run {facts.name.command('reconcile')} to find out."
                )
            if self._union(facts.name):
                if lacking := self._lacking(facts, followed):
                    found.setdefault(facts.name, []).append(lacking)
            elif facts.heirs:
                found.setdefault(facts.name, []).append(
                    f"Silver has its own rows, as SELECT … FROM ONLY shows them. Tables inherit from it:"
                    f" {format_names(sorted(facts.heirs))}. SELECT shows their rows too; query them with"
                    " UNION ALL."
                )
        for root, kinds in partitions.items():
            found.setdefault(root, []).extend(
                f"Silver has no rows of these partitions: {format_names(sorted(names))}. They are"
                f" {_PARTITIONS[kind]}."
                for kind, names in kinds.items()
            )
        return {
            name: " ".join(sentences)
            for name, sentences in found.items()
            if name in followed and self._config.rule_for(name) is not None
        }

    def without_partitions(self, names: Collection[TableName]) -> list[TableName]:
        """Return the names without those of partitions of other ones among them."""
        known = set(names)
        return [
            name for name in names if name not in self.families or known.isdisjoint(self.families[name].above)
        ]

    def _unfollowed(self, published: Collection[TableName]) -> Iterator[tuple[CatalogFacts, RelationKind]]:
        """Yield what rules match and ingest does not follow."""
        for facts in self._facts:
            rule = self._config.rule_for(facts.name)
            if rule is None:
                continue
            kind = facts.kind(self._version)
            if kind is RelationKind.ACCESS_METHOD and facts.name in published:
                kind = None
            if facts.extension and not rule.is_exact_for(facts.name) and facts.name not in published:
                kind = RelationKind.OF_EXTENSION
            if kind is None and facts.heirs and rule.inheritance == "refuse":
                kind = RelationKind.PARENT
            if kind is None and (union := self._union(facts.name)) and facts.name not in union:
                kind = RelationKind.NO_DESCENDANT
            if kind is not None:
                yield facts, kind

    def _is_refused(self, facts: CatalogFacts, kind: RelationKind, published: Collection[TableName]) -> bool:
        rule = self._config.rule_for(facts.name)
        is_exact = rule is not None and rule.is_exact_for(facts.name)
        return is_exact or facts.name in published or kind in _EXPECTED

    def _reason(self, facts: CatalogFacts, kind: RelationKind) -> Reason:
        detail: object = facts.access_method
        if kind is RelationKind.PARENT:
            detail = format_names(sorted(facts.heirs))
        elif kind is RelationKind.OF_EXTENSION:
            detail = facts.extension
        elif kind is RelationKind.NO_DESCENDANT:
            detail = self._union(facts.name)[0]
        why, fix = KINDS[kind]
        return Reason(why.format(detail), fix)

    def _union(self, name: TableName) -> Sequence[TableName]:
        """Return the tables of the union that a table's rule is for, the parent first."""
        rule = self._config.rule_for(name)
        parent = rule and rule.parent
        return (parent, *self._heirs.get(parent, ())) if parent else ()

    def _lacking(self, facts: CatalogFacts, followed: Collection[TableName]) -> str | None:
        """Return which rows of its descendants the union of a parent lacks; None for others."""
        rule = self._config.rule_for(facts.name)
        if rule is None or rule.parent != facts.name:
            return None
        others = [name for name in facts.heirs if self._config.rule_for(name) != rule]
        unfollowed = [name for name in facts.heirs if name not in followed and name not in others]
        sentences = []
        if others:
            sentences.append(
                f"Silver lacks the rows of tables that inherit from it: {format_names(sorted(others))}. Name"
                " them in descendants of its rule, and let no rule before it match them."
            )
        if unfollowed:
            sentences.append(
                f"Silver lacks the rows of tables that inherit from it and are not followed:"
                f" {format_names(sorted(unfollowed))}. pgdelta status says why."
            )
        return " ".join(sentences) or None


_EXPECTED = (RelationKind.HYPERTABLE, RelationKind.ACCESS_METHOD, RelationKind.PARENT)
"""Kinds that a person takes for tables, so that one that is not followed is missed."""
