"""Names of tables as PostgreSQL's catalog has them, and globs that match them.

A glob is `schema.table` with `*` and `?`, case-sensitive; a part that contains a dot is in double quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pipeline.errors import ConfigError

_GLOB_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_GLOB = re.compile(rf"{_GLOB_PART}\.{_GLOB_PART}")


class TableName(NamedTuple):
    """Schema and name of a source table, unquoted."""

    schema: str
    table: str

    def __str__(self) -> str:
        """Return the glob that matches this table, and only this one unless its name contains `*` or `?`.

        Every command prints it, and takes it as an argument.
        """
        return ".".join(
            '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in self
        )

    def introduce(self, sentence: str, prefix: str) -> str:
        """Return a sentence about this table, after a prefix unless it names the table itself."""
        is_named = re.search(rf"(?<!\w){re.escape(str(self))}(?!\w)", sentence)
        return sentence if is_named else f"{prefix}{sentence}"

    def command(self, command: str) -> str:
        """Return a `pgdelta` command for this table, quoted for a shell."""
        return f"pgdelta {command} --table {shlex.quote(str(self))}"


@dataclass(frozen=True, slots=True)
class TableGlob:
    """A `schema.table` glob."""

    text: str

    @property
    def is_valid(self) -> bool:
        """Whether the text is a glob: two parts, quoted if necessary."""
        return _patterns(self.text) is not None

    def matches(self, name: TableName) -> bool:
        """Return whether the glob matches a table; an invalid one matches none."""
        return _matches(self.text, name)

    def is_within(self, other: TableGlob) -> bool:
        """Return whether another glob matches all that this one does, as far as their texts show."""
        parts = _parts(self.text)
        return parts is not None and other.matches(TableName(*parts))

    def matches_schema(self, schema: str) -> bool:
        """Return whether the glob matches every table of a schema, whatever its name."""
        patterns = _patterns(self.text)
        return (
            patterns is not None
            and patterns[0].fullmatch(schema) is not None
            and patterns[1] == _compile_glob("*")
        )


def exact_name(text: str) -> TableName | None:
    """Return the table that a glob without wildcards names, None for any other text."""
    parts = _parts(text)
    return None if parts is None or set("*?") & set(text) else TableName(*parts)


def match_tables(globs: Sequence[str] | None) -> Callable[[TableName], bool]:
    """Return a predicate for the tables that any of the globs matches; without globs, all tables.

    The globs come from the command line; raise ConfigError for an invalid one.
    """
    found = [TableGlob(text) for text in globs or ("*.*",)]
    for glob in found:
        if not glob.is_valid:
            raise ConfigError(
                f"{glob.text} is not a `schema.table` glob. Write schema.table, and double-quote a part that"
                f" contains a dot{_example(glob.text)}."
            )
    return lambda name: any(glob.matches(name) for glob in found)


def _example(text: str) -> str:
    """Return an example for a text that is no glob: with a schema, or the name after it in quotes."""
    schema, dot, table = text.partition(".")
    if '"' in text or not schema or (dot and not table):
        return ""
    return f", as in {TableName(schema, table) if dot else TableName('public', text)}"


@lru_cache(maxsize=1 << 16)  # every table, each several times a batch
def _matches(glob: str, name: TableName) -> bool:
    patterns = _patterns(glob)
    return patterns is not None and all(
        pattern.fullmatch(part) is not None for pattern, part in zip(patterns, name, strict=True)
    )


@lru_cache(maxsize=4096)
def _patterns(glob: str) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
    parts = _parts(glob)
    return None if parts is None else (_compile_glob(parts[0]), _compile_glob(parts[1]))


def _parts(glob: str) -> tuple[str, str] | None:
    """Return both parts of a glob, unquoted; None if it is none."""
    match = _GLOB.fullmatch(glob)
    if match is None:
        return None
    schema, table = (
        quoted.replace('""', '"') if quoted else plain
        for quoted, plain in ((match[1], match[2]), (match[3], match[4]))
    )
    return schema, table


def _compile_glob(part: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(letter) or re.escape(letter) for letter in part), re.DOTALL)
