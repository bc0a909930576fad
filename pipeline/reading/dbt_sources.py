"""Sources of dbt: where silver's tables are, their columns, comments, keys as tests, and freshness.

What the lake records is read, without Spark and without the source. The same file serves dbt-duckdb, which
reads a table by its path, and dbt-spark, which reads it by its name in the catalog or, unless all tables of a
schema have one, by its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from pipeline.config.config import Config
from pipeline.config.jobs import Catalog
from pipeline.config.yaml_document import write_yaml
from pipeline.delta.schema import SchemaField, TableSchema
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.sql import quoted
from pipeline.delta.store.looks import one_look
from pipeline.delta.table import Lake
from pipeline.errors import ConfigError
from pipeline.metadata.catalog_entries import DONE_STATES, CatalogEntries, CatalogName
from pipeline.metadata.events import EventLog
from pipeline.metadata.manifests import Manifests
from pipeline.metadata.registry import RegisteredTable, TableRegistry
from pipeline.silver.read.catalog_names import catalog_names
from pipeline.silver.read.missing_tables import no_match
from pipeline.silver.schema.schema_operations import COMMENT
from pipeline.silver.write.shared_tables import shared_path
from pipeline.table_name import TableName, match_tables
from pipeline.units import format_count

FreshnessRule = Literal["applied", "changed", "none"]
RULES: Final = ("applied", "changed", "none")
COMMIT_TIME = "_commit_time"
_SAME_NAMES = Catalog("{schema}")
_PERIODS = {"min": "minute", "h": "hour", "d": "day"}
_AGE = re.compile(r"([1-9][0-9]{0,8})\s*(min|h|d)")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEMPLATE = re.compile(r"\{[{%#]")
_RESERVED = re.compile(
    "all|analy[sz]e|and|any|array|asc?|asymmetric|both|case|cast|check|collate|column|constraint|create|default"
    "|deferrable|desc|describe|distinct|do|else|end|except|false|fetch|for|foreign|from|group|having|in"
    "|initially|intersect|into|lambda|lateral|leading|limit|not|null|offset|only|on|order|or|pivot(_longer)?"
    "|pivot_wider|placing|primary|qualify|references|returning|select|show|some|summarize|symmetric|table|then"
    "|to|trailing|true|union|unique|unpivot|using|variadic|when|where|window|with"
)
_TESTABLE = re.compile(r"""[^"'`\\{}]+""")  # dbt quotes names without escaping what they contain
_PLAIN = re.compile(r"[^'\\{}$]+")
_STOPPED = ("held", "refused")


@dataclass(frozen=True, slots=True)
class Freshness:
    """What dbt takes for the time at which a table was loaded, and after which ages it complains."""

    rule: FreshnessRule = "applied"
    warn_after: str = "1h"
    error_after: str = "1d"

    def limits(self) -> dict[str, Any]:
        """Return the ages as dbt has them; raise ConfigError for an age that is none."""
        given = {"--warn-after": self.warn_after, "--error-after": self.error_after}
        return {name[2:].replace("-", "_"): _age(name, text) for name, text in given.items()}


def _age(option: str, text: str) -> dict[str, Any]:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option}: {text!r} is no age. Write a number with min, h or d, such as 90min.")
    return {"count": int(match[1]), "period": _PERIODS[match[2]]}


@dataclass(frozen=True, slots=True)
class DbtTable:
    """A table for dbt: its name and place, its newest columns, and the source tables whose rows it
    has.

    `registered` is None for a table of many sources, which has no key of its own. The name is that in the
    catalog if the table `is_in_catalog`.
    """

    name: CatalogName
    path: str
    fields: tuple[SchemaField, ...]
    comment: str | None
    sources: tuple[TableName, ...]
    registered: RegisteredTable | None = None
    is_in_catalog: bool = False


@dataclass(frozen=True, slots=True)
class DbtSources:
    """The content of a file of sources, and what it leaves out, in sentences by table.

    `unchecked` are tables whose freshness dbt does not check, because no column has it.
    """

    pipeline: str
    content: Mapping[str, Any]
    left_out: Mapping[TableName, str]
    unchecked: Sequence[TableName] = ()

    @property
    def text(self) -> str:
        """The file."""
        head = f"# Written by pgdelta dbt-sources from the lake of the pipeline {self.pipeline}; run it again"
        return (
            f"{head}\n# instead of editing this file. It needs dbt 1.10 or newer.\n{write_yaml(self.content)}"
        )

    def as_json(self) -> dict[str, Any]:
        left_out = [{**name._asdict(), "sentence": sentence} for name, sentence in self.left_out.items()]
        unchecked = [name._asdict() for name in self.unchecked]
        return {**self.content, "left_out": left_out, "unchecked": unchecked}

    def notes(self) -> list[str]:
        """Return a sentence about each table that is left out or not checked."""
        reason = "has no column _commit_time, so dbt does not check its freshness."
        named = {n: text if str(n) in text else f"{n}. {text}" for n, text in self.left_out.items()}
        return [f"left out: {text}" for text in named.values()] + [
            f"Table {name} {reason}" for name in self.unchecked
        ]

    def summary(self, file: str) -> str:
        """Return the closing line for people."""
        sources = self.content["sources"]
        tables = format_count(sum(len(each["tables"]) for each in sources), "table")
        return f"wrote {file}: {tables} in {format_count(len(sources), 'source')}"


def read_dbt_sources(config: Config, globs: Sequence[str], freshness: Freshness) -> DbtSources:
    """Read the sources of the tables that `globs` match, of all tables without globs.

    Raises ConfigError if a glob or an age is not valid, or no table matches; LakeError without a manifest.
    """
    matches = match_tables(globs)
    lake = Lake(config.storage, NoSpark("pgdelta dbt-sources reads without Spark."))
    with one_look():
        tables, left_out = _read_silver(lake, config, matches)
    if globs and not tables and not left_out:
        raise no_match(lake, config, globs, is_offline=True)
    content = describe_sources(config.pipeline, tables, lake.path("_pgdelta", "status"), freshness)
    unchecked = [
        t.sources[0] for t in tables if freshness.rule == "changed" and not _own_column(t, COMMIT_TIME)
    ]
    return DbtSources(config.pipeline, content, left_out, unchecked)


def _read_silver(
    lake: Lake, config: Config, matches: Callable[[TableName], bool]
) -> tuple[list[DbtTable], dict[TableName, str]]:
    """Return silver's tables as they are now, and why others are left out."""
    manifest, registered, newest = Manifests(lake).at(), TableRegistry(lake).read(), EventLog(lake).newest()
    shown = {entry.name for entry in manifest.entries if entry.version >= 0} & registered.keys()
    left_out = {n: f"Silver has no rows of table {n} yet." for n in manifest.by_name if n not in shown}
    left_out |= {n: f"Table {n} is detached: its rows are old." for n in registered if n not in shown}
    left_out |= {n: e.sentence for n, e in newest.tables.items() if e.kind in _STOPPED and n not in shown}
    left_out |= {n: sentence for n, sentence in newest.unpublished.items() if n not in shown}
    paths = {name: registered[name].path for name in sorted(shown)}
    own = [name for name, path in paths.items() if shared_path(path) is None]
    in_catalog = {n: e.catalog_name for n, e in CatalogEntries(lake).read().items() if e.state in DONE_STATES}
    rule = config.catalog if config.catalog.schema is not None else _SAME_NAMES
    names = catalog_names(rule, config.pipeline, own, in_catalog)
    tables: list[DbtTable] = []

    def add(name: CatalogName, path: str, *sources: TableName, **more: Any) -> None:
        snapshot = lake.table_at(path).snapshot()
        if not snapshot.exists:
            left_out.update(
                {source: f"The folder of table {source} has no Delta table." for source in sources}
            )
            return
        fields = TableSchema.of_json(snapshot.schema_string).fields
        tables.append(
            DbtTable(name, path, fields, snapshot.metadata.get("description"), tuple(sources), **more)
        )

    for name in filter(matches, own):
        is_in_catalog = in_catalog.get(name) == names[name]
        add(names[name], paths[name], name, registered=registered[name], is_in_catalog=is_in_catalog)
    shared: dict[TableName, list[TableName]] = {}
    for name in filter(matches, sorted(paths.keys() - names.keys())):
        folder = unquote(str(shared_path(paths[name])).rsplit("/", 1)[-1])
        shared.setdefault(TableName(f"{config.pipeline}_shared", folder), []).append(name)
    names = catalog_names(_SAME_NAMES, config.pipeline, sorted(shared), {})
    for target, sources in shared.items():
        add(names[target], str(shared_path(paths[sources[0]])), *sources)
    return tables, {name: left_out[name] for name in sorted(filter(matches, left_out))}


def describe_sources(
    pipeline: str, tables: Iterable[DbtTable], status: str, freshness: Freshness
) -> dict[str, Any]:
    """Return the content of the file: a source for each schema, one for shared tables, one for the status.

    `status` is the path of `_pgdelta/status`, which says up to which commit each table is applied.
    """
    schemas: dict[str, list[DbtTable]] = {}
    for table in sorted(tables, key=lambda table: table.name):
        schemas.setdefault(table.name.schema, []).append(table)
    ((own, _),) = catalog_names(_SAME_NAMES, pipeline, [TableName(f"{pipeline}_pgdelta", "")], {}).values()
    query = f"select min(commit_time) from {{{{ source({own!r}, 'status') }}}} where "
    sources = [_source(name, tables, freshness, query) for name, tables in schemas.items()]
    if freshness.rule == "applied":
        sources.append({"name": own, **_by_path(), "tables": [{"name": "status", **_place(status)}]})
    return {"version": 2, "sources": sources}


def _source(name: str, tables: Sequence[DbtTable], freshness: Freshness, query: str) -> dict[str, Any]:
    """Return a source; `query` is that of the freshness, up to the condition of a table."""
    is_in_catalog = all(table.is_in_catalog for table in tables)
    found = {"name": name, "loader": "pgdelta", **({} if is_in_catalog else _by_path())}
    if freshness.rule != "none":
        found["config"] = {"freshness": freshness.limits()}
    described = []
    for table in tables:
        place = _place(table.path)
        if is_in_catalog:
            del place["identifier"]
        place["config"] |= _loaded_at(table, freshness, query)
        described.append(_table(table, place))
    return {**found, "tables": described}


def _by_path() -> dict[str, Any]:
    """Return what lets Spark read the tables of a source by their paths."""
    return {"schema": "delta", "quoting": {"identifier": True}}


def _place(path: str) -> dict[str, Any]:
    """Return where a table is: by its path for Spark, by a URL for DuckDB, in which quotes are escaped."""
    scheme, _, rest = path.partition(":")
    url = f"{scheme}://{quote(rest if scheme == 'file' else rest.lstrip('/'))}"
    return {
        "identifier": _text(quoted(path)[1:-1]),
        "config": {"meta": {"external_location": f"delta_scan('{url}')"}},
    }


def _loaded_at(table: DbtTable, freshness: Freshness, query: str) -> dict[str, Any]:
    """Return how dbt finds out when a table was loaded; a table that cannot tell is not checked."""
    if freshness.rule == "applied":
        conditions = (
            f"{_is('schema_name', n.schema)} and {_is('table_name', n.table)}" for n in table.sources
        )
        return {"loaded_at_query": query + " or ".join(conditions)}
    if freshness.rule == "changed":
        column = _own_column(table, COMMIT_TIME)
        return {"freshness": None} if column is None else {"loaded_at_field": column}
    return {}


def _is(column: str, text: str) -> str:
    """Return a condition that DuckDB and Spark read alike, whatever the text is."""
    if _PLAIN.fullmatch(text):
        return f"{column} = '{text}'"
    return f"hex({column}) = '{text.encode().hex().upper()}'"


def _own_column(table: DbtTable, name: str) -> str | None:
    """Return the name that a column of pgdelta has in a table; the source's own columns may be named so."""
    if table.registered is None:
        return next((field.name for field in table.fields if field.name == name), None)
    own = (field for field in table.fields if field.physical_name in table.registered.metadata_columns)
    return next((field.name for field in own if field.name.rstrip("_") == name), None)


def _table(table: DbtTable, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with its columns and tests."""
    found: dict[str, Any] = {"name": table.name.table}
    if table.comment:
        found["description"] = _text(table.comment)
    found |= place
    key, unique, not_null = _key_tests(table)
    if len(key) > 1 and all(map(_is_identifier, key)):
        found["data_tests"] = [{"unique": {"arguments": {"column_name": f"({', '.join(key)})"}, **unique}}]
    tests: list[Any] = [_test("unique", unique)] if len(key) == 1 else []
    tests.append(_test("not_null", not_null))
    found["columns"] = [_column(field, tests if field.name in key else ()) for field in table.fields]
    return found


def _key_tests(table: DbtTable) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return the columns of the key, and to which rows its tests are restricted; no columns, no tests.

    A version of `history` that is over may have the key of a later one, and no value in a column that joined
    the key since; neither has a row of `soft_delete` that is gone. In `append` any row may lack it.
    """
    registered = table.registered
    if registered is None or registered.mode == "append":
        return [], {}, {}
    key = [column.silver_name for column in registered.columns if column.is_key]
    if not all(map(_TESTABLE.fullmatch, key)):
        return [], {}, {}
    is_current, is_deleted = _own_column(table, "_is_current"), _own_column(table, "_deleted")
    if is_current is not None:
        return key, _where(is_current), _where(is_current)
    return key, {}, {} if is_deleted is None else _where(f"not {is_deleted}")


def _is_identifier(name: str) -> bool:
    """Return whether a name needs no quotes, which DuckDB and Spark write differently."""
    return bool(_IDENTIFIER.fullmatch(name)) and not _RESERVED.fullmatch(name.lower())


def _where(condition: str) -> dict[str, Any]:
    return {"config": {"where": condition}}


def _test(name: str, properties: Mapping[str, Any]) -> Any:
    return {name: dict(properties)} if properties else name


def _column(field: SchemaField, tests: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": _text(field.name), "data_type": field.ddl}
    if comment := field.metadata.get(COMMENT):
        found["description"] = _text(comment)
    return {**found, "quote": True, "data_tests": list(tests)} if tests else found


def _text(text: str) -> str:
    """Return a text that dbt's templates leave as it is."""
    return _TEMPLATE.sub(lambda found: f"{{{{ '{found[0]}' }}}}", text)
