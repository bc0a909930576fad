"""Text of Spark SQL: names and literals, quoted."""


def literal(text: str) -> str:
    """Return a Spark SQL string literal of any text; Spark would replace `${…}` by variables of the host."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def quoted(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
