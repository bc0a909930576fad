"""The keys that `pgdelta forget` erases or `history` shows, and which rows have one. No input or output.

A key is one text: the texts of its columns in the order of the newest relation version that has a key. Equal
values have equal texts, so `1.0` and `1.00` of a numeric are one. The set of keys is closed under key
changes: an UPDATE from one key to another adds both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.bronze.columnar.protected_values import hash_all
from pipeline.bronze.protection import fingerprint
from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.config.config import Config
from pipeline.errors import ConfigError, LakeError
from pipeline.protected_columns import HMAC_SHA256
from pipeline.reading.key_types import SUPPORTED, KeyFamily, as_printed, family_of, same_spelling
from pipeline.silver.read.missing_tables import no_match
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

if TYPE_CHECKING:
    from pipeline.bronze.log import Bronze

_SEPARATOR = "\0"  # which no text of PostgreSQL has


@dataclass(frozen=True, slots=True)
class ForgottenTable:
    """The source table whose keys are erased, as bronze knows it.

    `oids` are those of all tables that had the name, `names` all names that these tables had. `key` are the
    columns of the key, `families` how their texts compare. `indexes` has, for each relation version, the
    0-based positions of these columns in its tuples.
    """

    name: TableName
    oids: frozenset[int]
    names: frozenset[TableName]
    key: tuple[SourceColumn, ...]
    families: tuple[KeyFamily, ...]
    indexes: Mapping[int, tuple[int, ...]]
    key_names: frozenset[tuple[str, ...]]  # the names that these columns had
    rules: tuple[str | None, ...] = ()  # of the key's columns, None for plain ones

    def hashed(self, keys: Sequence[Sequence[str]], hash_key: str | None) -> list[list[str]]:
        """Return keys as bronze has them: hashed where their columns are; raise LakeError for another key."""
        secret = (hash_key or "").encode()
        for rule in self.rules:
            if rule is not None and rule != f"{HMAC_SHA256} {fingerprint(secret)}":
                raise LakeError(
                    f"The key of {self.name} is hashed with another source.hash_key. Set the one that its "
                    "rows were captured with, then run this command again."
                )
        return [
            [
                text if rule is None else hash_all([text.encode()], secret).decode()
                for text, rule in zip(texts, self.rules, strict=True)
            ]
            if len(texts) == len(self.rules)
            else list(texts)
            for texts in keys
        ]

    def key_of(self, texts: Sequence[str]) -> str:
        """Return the key with these texts, one for each column, however a person or a table spells them.

        Raises ValueError if a text is no value of the column's type.
        """
        spelled = [as_printed(text, family) for text, family in zip(texts, self.families, strict=True)]
        found: str = self.keys_of([pa.array([text], pa.string()) for text in spelled])[0].as_py()
        return found

    def parse_key(self, texts: Sequence[str], argument: str) -> str:
        """Return the key that a person gave in an argument of the command line.

        Raises ConfigError if it has other columns or types.
        """
        if len(texts) != len(self.key):
            names = ", ".join(column.name for column in self.key)
            raise ConfigError(
                f"{argument} has {format_count(len(texts), 'value')}, but the key of {self.name} is "
                f"({names}). Give a value for each of its columns."
            )
        try:
            return self.key_of(texts)
        except ValueError:
            raise ConfigError(
                f"A value of {argument} is not valid for its column's type in {self.name}. Write it as "
                "SELECT prints it."
            ) from None

    def keys_of(self, columns: Sequence[Any]) -> Any:
        """Return the key of each row from the Arrow texts of its columns; NULL if one of them is NULL."""
        same = [same_spelling(each, family) for each, family in zip(columns, self.families, strict=True)]
        return pc.binary_join_element_wise(*same, _SEPARATOR, null_handling="emit_null")

    def key_in_json(self, text: str | None) -> str | None:
        """Return the key in a JSON object of names and texts, None if it has other columns or a NULL."""
        try:
            found = json.loads(text or "{}")
            for names in self.key_names:
                if isinstance(found, dict) and set(found) == set(names) and None not in found.values():
                    return self.key_of([str(found[name]) for name in names])
        except ValueError:
            pass
        return None


def find_table(config: Config, bronze: Bronze, glob: str) -> TableName:
    """Return the one table of bronze that a glob matches; raise ConfigError if none or several do."""
    matches = match_tables([glob])
    found = sorted(name for name in bronze.table_names() if matches(name))
    if not found:
        raise no_match(bronze.lake, config, [glob])
    if len(found) > 1:
        raise ConfigError(f"{glob} matches {format_count(len(found), 'table')}. Name one, as schema.table.")
    return found[0]


def plan_table(
    name: TableName, relations: Iterable[SourceRelation], command: str = "forget"
) -> ForgottenTable:
    """Return the table of a name; raise ConfigError or LakeError if a command cannot tell its rows apart."""
    relations = list(relations)
    oids = frozenset(each.oid for each in relations if each.name == name)
    if not oids:
        raise ConfigError(f"Bronze has no table {name}. Run pgdelta status to list the tables.")
    ours = [each for each in relations if each.oid in oids]
    names = frozenset(each.name for each in ours)
    for each in relations:
        if each.name in names and each.oid not in oids:
            raise LakeError(
                f"The name {each.name} was also that of another table, whose rows cannot be told apart from "
                f"those of {name}. Run pgdelta {command} for {each.name}, which is for all tables that had "
                "the name."
            )
    keyed = [each for each in ours if each.key and each.name == name] or [each for each in ours if each.key]
    if not keyed:
        raise LakeError(
            f"The key of {name} is not known, so its rows cannot be told apart. Give the table a primary key "
            "and REPLICA IDENTITY DEFAULT, or USING INDEX, at the source, and run pgdelta ingest."
        )
    newest = max(keyed, key=lambda each: each.lsn)
    key = tuple(column for column in newest.columns if column.name in newest.key)
    columns = {each.version: _columns_of(each, key, newest, command) for each in ours}
    families = tuple(
        _family_of([of[n][1] for of in columns.values()], name, command) for n in range(len(key))
    )
    return ForgottenTable(
        name,
        oids,
        names,
        key,
        families,
        {version: tuple(index for index, _ in of) for version, of in columns.items()},
        frozenset(tuple(column.name for _, column in of) for of in columns.values()),
        _rules_of(name, ours, columns),
    )


def _rules_of(
    name: TableName,
    relations: Iterable[SourceRelation],
    columns: Mapping[int, list[tuple[int, SourceColumn]]],
) -> tuple[str | None, ...]:
    """Return the rules of the key's columns; raise LakeError if they changed."""
    found = set()
    for relation in relations:
        rules = {column.name: column.rule for column in relation.protected}
        found.add(tuple(rules.get(column.name) for _, column in columns[relation.version]))
    if len(found) > 1:
        raise LakeError(
            f"The rule for the key of {name} changed, so bronze has a row under several keys. Start over "
            "with a new storage.root, or let bronze.retention remove the older changes."
        )
    return found.pop()


def _columns_of(
    relation: SourceRelation, key: Sequence[SourceColumn], newest: SourceRelation, command: str
) -> list[tuple[int, SourceColumn]]:
    """Return the positions and columns of the key in a relation version."""
    found = []
    for wanted in key:
        numbers_are_known = wanted.attribute_number is not None and relation.is_in_catalog
        for index, column in enumerate(relation.columns):
            if relation.oid == newest.oid and numbers_are_known:
                is_same = column.attribute_number == wanted.attribute_number
            else:
                is_same = column.name == wanted.name
            if is_same:
                found.append((index, column))
    names = {column.name for _, column in found}
    if len(found) != len(key) or (relation.key and names != set(relation.key)):
        raise LakeError(
            f"Table {relation.name} had another key before, by which its older changes cannot be told apart. "
            f"pgdelta {command} is for tables that always had the same key columns."
        )
    return found


def _family_of(columns: Sequence[SourceColumn], name: TableName, command: str) -> KeyFamily:
    family = family_of(columns)
    if family is None:
        raise LakeError(
            f"The key of {name} has a type, or had one before, that pgdelta {command} does not support. It "
            f"supports {SUPPORTED}."
        )
    return family


def close_keys(keys: Iterable[str], changes: Iterable[tuple[str, str]]) -> set[str]:
    """Return the keys with all those that key changes, given as (old, new), connect with them."""
    neighbours: dict[str, set[str]] = {}
    for old, new in changes:
        neighbours.setdefault(old, set()).add(new)
        neighbours.setdefault(new, set()).add(old)
    found: set[str] = set()
    waiting = list(keys)
    while waiting:
        key = waiting.pop()
        if key not in found:
            found.add(key)
            waiting += neighbours.get(key, ())
    return found


class SubjectRows:
    """Finds the changes of a table that have one of the keys, or change one key to another."""

    COLUMNS = ("relation_version", "old", "new", "unsent")

    def __init__(self, table: ForgottenTable, keys: Iterable[str] = ()) -> None:
        self._table = table
        self._keys = pa.array(sorted(keys), pa.string())

    def mask(self, rows: pa.Table) -> Any:
        """Return which rows have one of the keys, as an Arrow array of BOOLEAN."""
        found = np.zeros(rows.num_rows, dtype=bool)
        for indexes, old, new in self._keys_by_version(rows):
            is_old, is_new = (pc.is_in(each, value_set=self._keys) for each in (old, new))
            found[indexes] = pc.or_(is_old, is_new).to_numpy(zero_copy_only=False)
        return pa.array(found)

    def keys(self, rows: pa.Table) -> list[tuple[str | None, str | None]]:
        """Return the old and the new key of each row, None where it has none."""
        found: list[tuple[str | None, str | None]] = [(None, None)] * rows.num_rows
        for indexes, old, new in self._keys_by_version(rows):
            for index, *pair in zip(indexes.tolist(), old.to_pylist(), new.to_pylist(), strict=True):
                found[index] = (pair[0], pair[1])
        return found

    def key_changes(self, rows: pa.Table) -> set[tuple[str, str]]:
        """Return the changes of keys in rows, as (old, new)."""
        found: set[tuple[str, str]] = set()
        for _, old, new in self._keys_by_version(rows):
            differ = pc.fill_null(pc.not_equal(old, new), False)
            found.update(zip(old.filter(differ).to_pylist(), new.filter(differ).to_pylist(), strict=True))
        return found

    def _keys_by_version(self, rows: pa.Table) -> Iterable[tuple[Any, Any, Any]]:
        """Yield the positions of the rows of each relation version, and their old and new keys."""
        versions = rows.column("relation_version").combine_chunks()
        for version in pc.unique(versions).to_pylist():
            columns = self._table.indexes.get(version)
            if columns is None:
                continue
            is_version = pc.fill_null(pc.equal(versions, version), False)
            indexes = np.nonzero(is_version.to_numpy(zero_copy_only=False))[0]
            part = rows.take(pa.array(indexes)).combine_chunks()
            old = [_element(part, "old", i) for i in columns]
            new = [_element(part, "new", i) for i in columns]
            new = _with_unsent(part, columns, old, new)
            yield indexes, self._table.keys_of(old), self._table.keys_of(new)


def _element(rows: pa.Table, name: str, index: int) -> Any:
    column = pc.list_element(rows.column(name), index)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _with_unsent(rows: pa.Table, columns: Sequence[int], old: Sequence[Any], new: list[Any]) -> list[Any]:
    """Return the new key's columns, those that are unchanged TOAST from the old tuple."""
    unsent = rows.column("unsent").to_pylist()
    for n, index in enumerate(columns):
        is_unsent = [each is not None and index in each for each in unsent]
        if any(is_unsent):
            if any(flag and not before.is_valid for flag, before in zip(is_unsent, old[n], strict=True)):
                raise LakeError(
                    "Bronze has changes whose key was not sent (unchanged TOAST), so it is unknown whose"
                    " they are. Nothing was done."
                )
            new[n] = pc.if_else(pa.array(is_unsent), old[n], new[n])
    return new
