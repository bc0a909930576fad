r"""Names of the folders of a table's partitions: `column=value`, escaped as Hive, Spark and others do it.

A value is read from the table's log, but writers pass it through such a name. So a text that a name cannot
hold is no value of a partition column.
"""

from __future__ import annotations

from urllib.parse import unquote

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What a name has for NULL, which no text may be."""
ESCAPED = "".join(map(chr, range(1, 32))) + "\"#%'*/:=?\\{[]^\x7f"
"""The characters that a name has as `%` and two digits."""
MAX_TEXT_BYTES = 190
"""The most bytes of an escaped value; a name has 255 at most, with the column."""
MAX_NAME_BYTES = 63
"""The most bytes of an escaped name of a column."""


def escaped(text: str | None) -> str:
    """Return a column's name or a value as a part of a folder's name."""
    if text is None:
        return NULL_FOLDER
    return "".join(f"%{ord(c):02X}" if c in ESCAPED else c for c in text)


def values_in(path: str) -> dict[str, str | None]:
    """Return the values by column in the names of the folders in a path."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, separator, value = folder.partition("=")
        if separator:
            found[unquote(name)] = None if value == NULL_FOLDER else unquote(value)
    return found


def name_fits(name: str) -> bool:
    """Return whether folders can have the name of a column."""
    return len(escaped(name).encode()) <= MAX_NAME_BYTES
