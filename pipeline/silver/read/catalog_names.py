"""The names of silver tables in a catalog. Pure.

A catalog such as Hive's holds names of lower-case letters of ASCII, digits and `_`, and finds a name whatever
its case. A name that it cannot hold is escaped: other characters become `_`, and digits of a hash of the name
follow. Two tables never have the same name: the one that had it first keeps it, and the other is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256

from pipeline.config.jobs import Catalog
from pipeline.metadata.catalog_entries import CatalogName
from pipeline.table_name import TableName

LONGEST = 128
"""The most characters of a name."""
_HOLDABLE = re.compile(rf"[A-Za-z0-9_]{{1,{LONGEST}}}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_HASH_LENGTHS = (8, 16, 32, 64)


def catalog_names(
    rule: Catalog, pipeline: str, tables: Collection[TableName], recorded: Mapping[TableName, CatalogName]
) -> dict[TableName, CatalogName]:
    """Return the name of each table; none if the configuration registers no table.

    A recorded name stays as long as the rule can give it. Of the other tables, those come first whose own
    name is the one in the catalog.
    """
    if rule.schema is None:
        return {}
    candidates = {name: [*_candidates(rule, rule.schema, pipeline, name)] for name in tables}
    names: dict[TableName, CatalogName] = {}
    for name, own in candidates.items():
        if recorded.get(name) in own:
            names[name] = recorded[name]
    taken = set(names.values())
    new = (name for name in tables if name not in names)
    for name in sorted(new, key=lambda name: (candidates[name][0].table != name.table, name)):
        names[name] = next(each for each in candidates[name] if each not in taken)
        taken.add(names[name])
    return names


def _candidates(rule: Catalog, schema: str, pipeline: str, name: TableName) -> Iterator[CatalogName]:
    """Yield the names that a table may have, the preferred one first."""
    values = {"pipeline": pipeline, **name._asdict()}
    rendered_schema, table = _render(schema, values), _render(rule.table, values)
    in_schema = rendered_schema.lower() if _HOLDABLE.fullmatch(rendered_schema) else None
    in_schema = in_schema or _escape(rendered_schema, _digits(rendered_schema)[: _HASH_LENGTHS[0]])
    if _HOLDABLE.fullmatch(table):
        yield CatalogName(in_schema, table.lower())
    digits = _digits(f"{name.schema}\0{name.table}")
    for length in _HASH_LENGTHS:
        yield CatalogName(in_schema, _escape(table, digits[:length]))


def _render(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _digits(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _escape(text: str, digits: str) -> str:
    kept = re.sub("[^a-z0-9_]", "_", text.translate(_LOWER))
    return f"{kept[: LONGEST - len(digits) - 1]}_{digits}"


_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
