"""The text of a configuration file, from what a source has and what was chosen. Pure.

Names of the source are written as quoted YAML values, also in comments, so that none of them ends a line. A
glob cannot name `${` or only a `*` or `?`; tables whose globs match others too are left out, and named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.yaml_document import quote_yaml
from pipeline.postgres.checks.source_facts import SourceFacts, SourceTable
from pipeline.table_name import TableGlob, TableName
from pipeline.units import format_count, format_size

AMBIGUOUS = "a name that a glob cannot tell from the names of other tables"
_LARGE = 20 << 30  # bytes of all tables, from which on a limit of the copy's rate is suggested
_LISTED = 40  # tables of a schema


@dataclass(frozen=True, slots=True)
class Choices:
    """What the file has that the source does not decide; an empty `conninfo` is libpq's environment."""

    pipeline: str
    conninfo: str
    root: str
    file: str


@dataclass(frozen=True, slots=True)
class FileRule:
    """A rule of the file: its glob, and those of the tables that it leaves out."""

    glob: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchedTables:
    """The tables that rules match, their rules by schema, and others with why each is left out.

    `globs` are what was asked for, none for all tables.
    """

    tables: tuple[SourceTable, ...]
    rules: Mapping[str, Sequence[FileRule]]
    left_out: tuple[tuple[SourceTable, str], ...]
    globs: tuple[TableGlob, ...] = ()


def select_tables(
    tables: Sequence[SourceTable], wanted: Sequence[str], by_name: Collection[TableName] = ()
) -> MatchedTables:
    """Return the tables that the globs match, all if there are none, but for those with an obstacle.

    Those `by_name` are followed by a rule of their own only, so that a glob with a wildcard leaves them out.
    """
    globs = [TableGlob(text) for text in wanted]
    named = {table.name for table in tables if any(glob.text == str(table.name) for glob in globs)}
    tables = [table for table in tables if table.name not in by_name or table.name in named]
    matched = [each for each in tables if not globs or any(glob.matches(each.name) for glob in globs)]
    left_out = [(each, each.obstacle) for each in matched if each.obstacle]
    chosen = [each for each in matched if not each.obstacle]
    kept = set(chosen)
    excluded = [each.name for each in tables if each not in kept]
    clear = []
    for each in chosen:
        glob = _glob_of(each.name)
        if set("*?") & set(glob.text) and any(glob.matches(name) for name in excluded):
            left_out.append((each, AMBIGUOUS))
        else:
            clear.append(each)
    found = dict.fromkeys(clear)
    own = [each for each in clear if each.name in by_name]
    schemas = dict.fromkeys(table.name.schema for table in clear)
    whole = {schema for schema in schemas if not globs or any(g.matches_schema(schema) for g in globs)}
    rules = {schema: _rules(schema, tables, found, own, is_whole=schema in whole) for schema in schemas}
    return MatchedTables(tuple(clear), rules, tuple(left_out), tuple(globs))


def write_file(choices: Choices, facts: SourceFacts, selection: MatchedTables) -> str:
    """Return the text of the configuration file."""
    return "\n".join([*_head(choices, facts, selection), *_SETTINGS, *_tables(selection), ""])


def _head(choices: Choices, facts: SourceFacts, selection: MatchedTables) -> Iterator[str]:
    total = sum(table.bytes for table in selection.tables)
    file = quote_yaml(choices.file)
    yield f"# Written by pgdelta init for database {quote_yaml(facts.database)}, PostgreSQL {facts.version}."
    yield f"# Commands read it by --config {file}, or by PGDELTA_CONFIG={file} in the environment."
    yield "# docs/reference/configuration.md has every key. Values in comments are the defaults."
    yield ""
    yield "# Names the slot, the publication and the transactions in the lake, so it never changes."
    yield f"pipeline: {quote_yaml(choices.pipeline)}"
    yield ""
    yield "source:"
    if choices.conninfo:
        yield f"  conninfo: {quote_yaml(choices.conninfo)}"
    else:
        yield "  # Without conninfo, libpq's environment says where the server is (PGHOST, PGDATABASE …)."
        yield '  # conninfo: "host=db.example.org dbname=shop user=pgdelta sslmode=verify-full"'
    yield "  # No password belongs here: use PGPASSWORD, PGPASSFILE, or a program that prints one."
    yield "  # password_command: [program, argument]"
    yield "  # walsender reads by a replication connection; sql where a network or pooler does not allow one."
    yield "  # route: walsender"
    yield "  # initial copies the rows that exist; never reads only what changes from now on."
    yield "  # copy: initial"
    yield "  copying:"
    yield "    # Sessions that read the existing rows in parallel."
    yield "    connections: 2"
    if total >= _LARGE:
        yield f"    # {format_size(total)} are to be read. A limit leaves the server room for others."
    yield "    # rate_limit: 20MB  # bytes per second; the default is no limit"
    yield ""
    yield "storage:"
    yield "  # The lake: a folder that this user can write, or an address such as s3://bucket/lake."
    yield f"  root: {quote_yaml(choices.root)}"
    yield ""


_SETTINGS = (
    "silver:",
    "  # mirror has one row per source row; soft_delete keeps rows that are deleted, history every version,",
    "  # append every change. A rule below can have a mode of its own.",
    "  mode: mirror",
    "  # A value that its silver type cannot hold is NULL in silver, and its text in _pgdelta/misfits.",
    '  # misfits: "null"',
    "  # A batch with more deletes or truncates of a table waits until you confirm it.",
    "  # guards: {deletes: none, truncates: none}",
    "",
    "# bronze keeps every change. With 30d, pgdelta maintain compacts older ones.",
    "# bronze: {retention: forever}",
    "",
    "# Rules of the tables to replicate; the first match wins. * and ? are wildcards, and a part with a dot",
    "# is in double quotes. A rule can have a mode, a target, types and more.",
)


def _tables(selection: MatchedTables) -> Iterator[str]:
    yield "tables:"
    for schema, rules in selection.rules.items():
        tables = [table for table in selection.tables if table.name.schema == schema]
        size = format_size(sum(table.bytes for table in tables))
        yield f"  # {quote_yaml(schema)}: {format_count(len(tables), 'table')}, {size}"
        yield from (f"  #   {_describe(table)}" for table in tables[:_LISTED])
        if len(tables) > _LISTED:
            yield f"  #   and {len(tables) - _LISTED:,} more"
        for rule in rules:
            yield f"  - source: {quote_yaml(rule.glob)}"
            if rule.exclude:
                yield "    exclude:"
            yield from (f"      - {quote_yaml(glob)}" for glob in rule.exclude)
    if selection.left_out:
        yield "  # Left out:"
    for table, reason in selection.left_out:
        yield f"  #   {quote_yaml(str(table.name))}: {reason}"


def _describe(table: SourceTable) -> str:
    kind = f"partitioned, {format_size(table.bytes)}" if table.is_partitioned else format_size(table.bytes)
    rows = f", about {format_count(table.rows, 'row')}" if table.rows else ""
    return f"{quote_yaml(table.name.table)}: {kind}{rows}"


def _rules(
    schema: str,
    tables: Sequence[SourceTable],
    chosen: Collection[SourceTable],
    own: Sequence[SourceTable],
    *,
    is_whole: bool,
) -> list[FileRule]:
    """Return the fewest rules that match the chosen tables of a schema and no table that is not chosen.

    Some of a schema may be left out of a rule for it if it `is_whole`: all its tables were asked for.
    """
    of_schema = TableGlob(f"{_part(schema)}.*")
    rest = [table for table in tables if of_schema.matches(table.name) and table not in chosen]
    names = [table for table in chosen if table.name.schema == schema]
    excluded = [_glob_of(table.name) for table in rest]
    is_exact = not any(glob.matches(table.name) for glob in excluded for table in names)
    if not rest or (is_whole and is_exact and len(rest) < len(names)):
        first = [FileRule(_glob_of(table.name).text) for table in own if table.name.schema == schema]
        return [*first, FileRule(of_schema.text, tuple(glob.text for glob in excluded))]
    return [FileRule(_glob_of(table.name).text) for table in names]


def _glob_of(name: TableName) -> TableGlob:
    return TableGlob(f"{_part(name.schema)}.{_part(name.table)}")


def _part(part: str) -> str:
    """Return a part of a glob; the file would read `${` as a variable, so that `?` replaces its `$`."""
    return str(TableName(part.replace("${", "?{"), "_")).removesuffix("._")
