"""Names of tables, schema and table, as the catalog has them, and the globs that match them.

A glob is `schema.table` with `*` and `?`; a part that holds a dot is in double quotes. Case counts.
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
    """A table of the source."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def glob(self) -> str:
        """The glob that matches this table and no other, unless its name holds `*` or `?`."""
        return ".".join(
            '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in self
        )

    def command(self, command: str) -> str:
        """Return a command of `pgdelta` for this table, as a shell takes it."""
        return f"pgdelta {command} --table {shlex.quote(self.glob)}"


@dataclass(frozen=True, slots=True)
class TableGlob:
    """A `schema.table` glob."""

    text: str

    @property
    def is_valid(self) -> bool:
        """Whether the text is a glob of two parts."""
        return _patterns(self.text) is not None

    def matches(self, name: TableName) -> bool:
        """Return whether the glob matches a table."""
        patterns = _patterns(self.text)
        return patterns is not None and all(
            pattern.fullmatch(part) is not None for pattern, part in zip(patterns, name, strict=True)
        )


def match_tables(globs: Sequence[str] | None) -> Callable[[TableName], bool]:
    """Return a predicate for tables that one of the globs of a command line matches; no glob matches all."""
    found = [TableGlob(text) for text in globs or ("*.*",)]
    for glob in found:
        if not glob.is_valid:
            raise ConfigError(f"--table {glob.text}: write schema.table, and quote a part that holds a dot")
    return lambda name: any(glob.matches(name) for glob in found)


@lru_cache(maxsize=4096)
def _patterns(glob: str) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
    match = _GLOB.fullmatch(glob)
    if match is None:
        return None
    schema, table = (
        quoted.replace('""', '"') if quoted else plain
        for quoted, plain in ((match[1], match[2]), (match[3], match[4]))
    )
    return _compile_glob(schema), _compile_glob(table)


def _compile_glob(part: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(letter) or re.escape(letter) for letter in part), re.DOTALL)
