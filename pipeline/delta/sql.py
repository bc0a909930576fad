"""Quoting for Spark SQL: identifiers and string literals."""


def literal(text: str) -> str:
    """Return a text as a Spark SQL string literal, `$` escaped: Spark replaces `${…}` by host variables."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def quoted(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
