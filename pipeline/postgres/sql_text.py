"""Quote names and values as PostgreSQL's SQL does, in statements that are text.

For what is not run through psycopg's query interface: replication commands, postgresql.conf, and statements
that a message suggests. Queries use parameters or are composed with `psycopg.sql`, which quotes itself.
"""

THIS_DATABASE = "(SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
"""The OID of the session's database, in a query of locks."""


def quote_identifier(*names: str) -> str:
    """Return a quoted identifier; several names are joined by dots, as in `"schema"."table"`."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def quote_literal(value: str) -> str:
    """Return a quoted string with quotes doubled, the only escape of the replication grammar."""
    return "'" + value.replace("'", "''") + "'"
