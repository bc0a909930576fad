"""Every value interpolated into SQL is listed here with the reason why it is safe.

SQL is built by psycopg's `sql`, with parameters, or with quoting (`quote_identifier`, `quoted`, `literal`).
Other interpolated values are listed below. A value that is new fails the test until it is quoted or listed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import FILES, tree_of

CALLS = {"create_waiting", "execute", "exec_", "send_query", "SQL", "sql", "_fetch", "_run"}
BUILDERS = {  # of Spark SQL
    *("statements", "enable_statement", "backfill_statement", "sql"),
    *("statement", "_update", "_updated"),
}
# a file without one of them is not parsed
MAY_HAVE = re.compile(rf"\b(?:{'|'.join(CALLS | BUILDERS)})\(")
# Texts that are constants of the module, chosen by the server's version, or numbers.
SAFE = {
    # `table` is an identifier, types are Spark's own texts, and the value of a type's text is a `literal`
    "pipeline/silver/schema/schema_operations.py": {
        *("table", "quoted(self.name)", "quoted(self.to)", "self.type.ddl"),
        *("self.ddl", "properties", "key", "value"),
        "self.type.value(literal(self.backfill))",
        *("pairs", "literal(key)", "literal(value)", "columns", "quoted(name)", "literal(text)"),
        "', '.join(map(quoted, self.partition_by))",
    },
    "pipeline/silver/fold/write.py": {"self.table", "self.condition", "names", "FOLDED"},
    "pipeline/silver/fold/merge.py": {  # identifiers, and numbered columns or those of pgdelta
        *("target", "source", "on", "self.on", "bounds", "gone", "update", "names", "values"),
        *("quoted(name)", "self.kept[name]", "GONE", "v", "value", "self.values[name]"),
        "', '.join((f't.{quoted(name)} = {value}' for name, value in values.items()))",
        "_update({name: self._updated(name) for name in self.values})",
        "self.truncated.condition",
    },
    "pipeline/silver/compare/clone.py": {"to.identifier", "table.identifier", "version"},
    "pipeline/silver/fold/duckdb_sql.py": {
        "SETTINGS['memory_limit']",
        "name",
        "self.with_defined(query)",
    },  # names and texts of `fold_sql`
    "pipeline/silver/read/query_session.py": {  # quoted names of DuckDB's views
        *("DEFAULT_SCHEMA", "DUCKDB.quoted(name.schema)", "quoted(name)", "rows"),
    },
    "pipeline/silver/write/base_rows.py": {  # numbers, constants, and numbered columns of `fold_sql`
        *("number", "table", "target.version", "keys", "texts", "unsent", "folded", "new", "condition"),
        *("int(copy.lsn)", "version", "ended"),
        "deleted",  # bounds of key ranges are `literal`s
    },
    "pipeline/bronze/changes_scan.py": {"macro"},  # constants
    "pipeline/delta/table.py": {
        *("self.identifier", "_AUTO_COMPACTION"),
        *("key", "value"),  # properties are constants
        "condition",  # of prepared transactions: of `literal`s and numbers
    },
    "pipeline/delta/spark/metastore.py": {
        *("_CATALOG", "name", "pattern"),  # constants, quoted names and a literal
        *("quoted(schema)", "literal(path)"),
    },
    "pipeline/postgres/catalog.py": {
        "WRITTEN_BY.format(row='a', unknown=0)",
        "_COLUMNS.format(missing=missing, not_null=not_null, money=_MONEY, written_by=WRITTEN_BY.format("
        "row='a', unknown=0), snapshot=SNAPSHOT)",
    },
    "pipeline/postgres/checks/source_facts.py": {
        "_TABLES.format(is_publishable=for_server(connection, IS_PUBLISHABLE), family=FAMILY, locked=LOCKED)",
    },
    "pipeline/postgres/column_rules.py": {"_COLUMNS.format(key=for_server(connection, KEY_COLUMNS))"},
    "pipeline/postgres/connection.py": {"timeline"},
    "pipeline/postgres/snapshot/read_table.py": {
        "table.row_filter"
    },  # what pg_get_expr writes; see test_injection
    "pipeline/postgres/publication.py": {
        *("truncate", "via_root"),
        "for_server(connection, IS_PUBLISHABLE)",
        "_PUBLISHED.format(published=published, entries=entries)",
        "_TABLE.format(published=published, row_filter=row_filter)",
        "_COLUMNS.format(published=published, is_published=is_published, key=key, not_null=not_null)",
    },
    "pipeline/postgres/replica_identities.py": {"FAMILY"},
    "pipeline/postgres/replication/slot.py": {"newer", "arguments"},
    "pipeline/postgres/replication/slot_mark.py": {"quote_identifier(publication)", "quote_literal(text)"},
    "pipeline/postgres/snapshot/export.py": {"lsn_function"},
    "pipeline/postgres/replication/temporary_slot.py": {"create", "kind"},
    "pipeline/postgres/watched_tables.py": {
        "_TABLES.format(published=published, generated=generated, columns=columns)"
    },
    "pipeline/postgres/watched_types.py": {"_TYPES.format(published=published, multiranges=multiranges)"},
    "pipeline/postgres/binary_format.py": {"_COLUMNS.format(published=published, is_published=is_published)"},
}


def is_plain_format(node: ast.AST) -> bool:
    """Return whether it is a text's own `%` or `format`; `sql.SQL(…).format(…)`, which quotes, is not."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr == "format" and not isinstance(node.func.value, ast.Call)


def put_in(path: Path) -> set[str]:
    """Return what a file puts into texts of SQL that it runs or builds, other than by psycopg."""
    found: set[str] = set()
    if not MAY_HAVE.search(path.read_text(encoding="utf-8")):
        return found
    for node in ast.walk(tree_of(path)):
        parts: Iterator[ast.AST] = iter(())
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CALLS:
                parts = (inner for argument in node.args for inner in ast.walk(argument))
        elif isinstance(node, ast.FunctionDef) and node.name in BUILDERS:
            parts = ast.walk(node)
        for part in parts:
            if isinstance(part, ast.JoinedStr):
                found |= {ast.unparse(v.value) for v in part.values if isinstance(v, ast.FormattedValue)}
            elif is_plain_format(part):
                found.add(ast.unparse(part))
    return found


@pytest.mark.promise("names are never SQL")
def test_every_value_put_into_a_statement_was_reviewed() -> None:
    found = {path.relative_to(ROOT).as_posix(): put_in(path) for path in FILES}
    assert {name: values for name, values in found.items() if values} == SAFE


def test_the_list_finds_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "connection.execute(f'DROP TABLE {table}')\n"
        "connection.execute('SELECT %s' % column)\n"
        "connection.execute('SELECT {}'.format(other))\n"
        "connection.execute(sql.SQL('SELECT {}').format(sql.Identifier(good)))\n"
    )
    assert put_in(file) == {"table", "'SELECT %s' % column", "'SELECT {}'.format(other)"}
