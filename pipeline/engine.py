r"""The two SQL engines that fold changes and hash rows, Spark SQL and DuckDB: what they spell differently.

Pure. Most SQL is one text for both. What is spelled differently is a method here, so that there is one
implementation of everything above it. Methods take and return SQL; a Python value (a constant, a pattern, an
index, a field's name) is said to be one.

Regular expressions are Java's in Spark and RE2 in DuckDB. Patterns have only what both read alike: `[0-9]`,
`^` at the text's start, `\z` at its end (Java's `$` also matches before a final line break), no look-around.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from pipeline.delta.sql import literal, quoted

_DUCKDB_TYPES: Mapping[str, str] = {
    "STRING": "VARCHAR",
    "BINARY": "BLOB",
    "INT": "INTEGER",
    "TIMESTAMP": "TIMESTAMPTZ",
    "TIMESTAMP_NTZ": "TIMESTAMP",
}
# Spark ignores spaces and control characters around integers, Java those but DEL around other numbers.
_INTEGER = r"^[\x01-\x20\x7F]*([+-]?[0-9]+)[\x01-\x20\x7F]*\z"
_NUMBER = r"^[\x01-\x20]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?[\x01-\x20]*\z"
_INFINITY = r"(?i)^[\x01-\x20]*[+-]?inf(?:inity)?[\x01-\x20]*\z"
_NEGATIVE = r"^[\x01-\x20]*-"
_NAN = r"^[\x01-\x20]*(?:[+-]?NaN|[nN][aA][nN])[\x01-\x20]*\z"
_DECIMAL = re.compile(r"DECIMAL\(([0-9]+),([0-9]+)\)")
_BITS = {
    "FLOAT": ("java.lang.Float", "floatToIntBits", 8),
    "DOUBLE": ("java.lang.Double", "doubleToLongBits", 16),
}
_HEXADECIMAL = r"^[0-9a-fA-F]*\z"


class Engine(enum.Enum):
    """An SQL engine."""

    SPARK = "spark"
    DUCKDB = "duckdb"

    # Constants and types

    def literal(self, text: str) -> str:
        """Return a text as a string literal."""
        if self is Engine.SPARK:
            return literal(text)
        return "'" + text.replace("'", "''") + "'"

    def quoted(self, name: str) -> str:
        """Return a name as a quoted identifier."""
        if self is Engine.SPARK:
            return quoted(name)
        return '"' + name.replace('"', '""') + '"'

    @property
    def nul(self) -> str:
        """The character NUL, which no text of PostgreSQL contains."""
        return r"'\0'" if self is Engine.SPARK else "chr(0)"

    def type_name(self, ddl: str) -> str:
        """Return the engine's name of one of Delta's types."""
        if self is Engine.SPARK:
            return ddl
        if ddl.startswith("ARRAY<"):
            return self.type_name(ddl[len("ARRAY<") : -1]) + "[]"
        return _DUCKDB_TYPES.get(ddl, ddl)

    def cast(self, value: str, ddl: str) -> str:
        """Return SQL for a value as one of Delta's types."""
        return f"CAST({value} AS {self.type_name(ddl)})"

    def null(self, ddl: str) -> str:
        """Return SQL for NULL of one of Delta's types."""
        return self.cast("NULL", ddl)

    def try_cast(self, value: str, ddl: str) -> str:
        """Return SQL like `cast`, NULL if the type cannot hold the value.

        DuckDB reads more texts than Spark, so the form of a text has to be checked before; `integer`,
        `floating` and `rounded` do that.
        """
        return f"try_cast({value} AS {self.type_name(ddl)})"

    # Texts

    def integer(self, text: str, ddl: str) -> str:
        """Return SQL for the integer that any text shows, NULL if it shows none or one too large."""
        if self is Engine.SPARK:
            return self.try_cast(text, ddl)
        return self._checked(text, ddl, r"^-?[0-9]+\z", self.try_cast(self.first_group(text, _INTEGER), ddl))

    def floating(self, text: str, ddl: str) -> str:
        """Return SQL for the FLOAT or DOUBLE nearest to the number that any text shows, else NULL.

        Numbers that are too large are infinite.
        """
        if self is Engine.SPARK:
            # Java also reads 0x1p3.
            is_decimal = f"NOT ({self.contains_text(text, 'x')} OR {self.contains_text(text, 'X')})"
            return f"CASE WHEN {is_decimal} THEN {self.try_cast(text, ddl)} END"
        finite = self.try_cast(self.first_group(text, _NUMBER), ddl)
        nan, least, greatest = (self.cast(f"'{name}'", ddl) for name in ("NaN", "-Infinity", "Infinity"))
        infinite = f"CASE WHEN {self.matches(text, _NEGATIVE)} THEN {least} ELSE {greatest} END"
        is_nan, is_infinite = self.matches(text, _NAN), self.matches(text, _INFINITY)
        other = f"coalesce({finite}, CASE WHEN {is_nan} THEN {nan} WHEN {is_infinite} THEN {infinite} END)"
        return self._checked(text, ddl, r"^-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?\z", other)

    def widened(self, text: str) -> str:
        """Return SQL for a text of the DOUBLE that equals the FLOAT which a text shows, else NULL.

        PostgreSQL casts real to double precision in the same way: 0.1 becomes 0.10000000149011612. Engines
        may spell the number differently.
        """
        spelled = self.cast(self.cast(self.floating(text, "FLOAT"), "DOUBLE"), "STRING")
        # engines spell these in other ways, which are no numbers for types that may overflow
        return f"CASE WHEN {text} IN ('NaN', 'Infinity', '-Infinity') THEN {text} ELSE {spelled} END"

    def _checked(self, text: str, ddl: str, usual: str, other: str) -> str:
        """Return SQL for the cast of texts of the usual form, and another value for all others.

        Extracting a group takes three times as long as matching a pattern.
        """
        return f"CASE WHEN {self.matches(text, usual)} THEN {self.try_cast(text, ddl)} ELSE {other} END"

    def rounded(self, text: str, ddl: str) -> str:
        """Return SQL for the DECIMAL nearest to a decimal number, half away from zero, NULL if out of bounds.

        The text is a number, maybe with an exponent, or `Infinity`.
        """
        if self is Engine.SPARK:
            return self.try_cast(text, ddl)
        # DuckDB reads numbers with exponents inexactly: the point is moved among padded digits instead.
        most = f"length({text}) + 100"
        mantissa = self.first_group(text, "^-?([0-9.]+)[eE]")
        exponent = self.try_cast(self.first_group(text, "[eE]([+-]?[0-9]+)"), "BIGINT")
        digits = f"concat(repeat('0', {most}), replace({mantissa}, '.', ''), repeat('0', {most}))"
        whole = f"{most} + length({self.first_group(mantissa, '^([0-9]*)')})"
        point = f"CAST({whole} + greatest(least({exponent}, {most}), -({most})) AS BIGINT)"
        sign = f"CASE WHEN {self.starts_with(text, '-')} THEN '-' ELSE '' END"
        plain = f"concat({sign}, substr({digits}, 1, {point}), '.', substr({digits}, {point} + 1))"
        number = f"CASE WHEN {self.matches(text, '[eE]')} THEN {plain} ELSE {text} END"
        return self.try_cast(number, ddl)

    def starts_with(self, text: str, prefix: str) -> str:
        """Return SQL that is true if a text begins with a constant."""
        function = "startswith" if self is Engine.SPARK else "starts_with"
        return f"{function}({text}, {self.literal(prefix)})"

    def ends_with(self, text: str, suffix: str) -> str:
        """Return SQL that is true if a text ends with a constant."""
        function = "endswith" if self is Engine.SPARK else "ends_with"
        return f"{function}({text}, {self.literal(suffix)})"

    def contains_text(self, text: str, part: str) -> str:
        """Return SQL that is true if a text contains a constant."""
        return f"contains({text}, {self.literal(part)})"

    def byte_count(self, text: str) -> str:
        """Return SQL for how many bytes a text has in UTF-8."""
        return f"{'octet_length' if self is Engine.SPARK else 'strlen'}({text})"

    def inner(self, text: str) -> str:
        """Return SQL for a text without its first and last character."""
        # DuckDB counts backwards if a length is negative.
        length = f"length({text}) - 2"
        return f"substr({text}, 2, {length if self is Engine.SPARK else f'greatest({length}, 0)'})"

    def matches(self, text: str, pattern: str) -> str:
        """Return SQL that is true if a pattern matches somewhere in a text."""
        if self is Engine.SPARK:
            return f"{text} RLIKE {self.literal(pattern)}"
        return f"regexp_matches({text}, {self.literal(pattern)})"

    def first_group(self, text: str, pattern: str) -> str:
        """Return SQL for what a pattern's first group matches in a text, '' if the pattern does not match."""
        return f"regexp_extract({text}, {self.literal(pattern)}, 1)"

    def all_matches(self, text: str, pattern: str) -> str:
        """Return SQL for the array of all parts of a text that a pattern matches."""
        if self is Engine.SPARK:
            return f"regexp_extract_all({text}, {self.literal(pattern)}, 0)"
        return f"regexp_extract_all({text}, {self.literal(pattern)})"

    def replace_all(self, text: str, pattern: str, replacement: str) -> str:
        r"""Return SQL that replaces every match of a pattern; `\1` in the replacement is its first group."""
        if self is Engine.SPARK:
            replacement = replacement.replace("\\", "$")
            return f"regexp_replace({text}, {self.literal(pattern)}, {self.literal(replacement)})"
        return f"regexp_replace({text}, {self.literal(pattern)}, {self.literal(replacement)}, 'g')"

    def split(self, text: str, delimiter: str) -> str:
        """Return SQL for the array of a text's parts between constants, at least one."""
        if self is Engine.SPARK:
            return f"split({text}, {self.literal(re.escape(delimiter))})"
        return f"string_split({text}, {self.literal(delimiter)})"

    def trimmed(self, text: str, character: str) -> str:
        """Return SQL for a text without those of a character, a constant, that it ends with."""
        if self is Engine.SPARK:
            return f"rtrim({self.literal(character)}, {text})"
        return f"rtrim({text}, {self.literal(character)})"

    def md5(self, text: str) -> str:
        """Return SQL for the MD5 of a text in UTF-8, as hexadecimal digits."""
        return f"md5(CAST({text} AS BINARY))" if self is Engine.SPARK else f"md5({text})"

    def unhex(self, text: str) -> str:
        """Return SQL for the bytes that a text shows as hexadecimal digits, else NULL."""
        if self is Engine.SPARK:
            return f"unhex({text})"
        return f"CASE WHEN {self.matches(text, _HEXADECIMAL)} THEN unhex({text}) END"

    def hex_number(self, text: str) -> str:
        """Return SQL for the number that 1 to 15 hexadecimal digits show; their sum may have more."""
        if self is Engine.SPARK:
            return f"CAST(conv({text}, 16, 10) AS DECIMAL(20,0))"
        return f"CAST(concat('0x', {text}) AS BIGINT)"

    def hex_digits(self, number: str, count: int) -> str:
        """Return SQL for so many hexadecimal digits of a BIGINT that is not negative."""
        if self is Engine.SPARK:
            return f"lpad(lower(hex({number})), {count}, '0')"
        return f"printf('%0{count}x', {number})"

    def number_text(self, value: str, ddl: str) -> str:
        """Return SQL for the text of an integer, DECIMAL, DATE or TIMESTAMP_NTZ as PostgreSQL writes it."""
        text = self.cast(value, "STRING")
        is_fraction = (match := _DECIMAL.fullmatch(ddl)) is not None and match[1] == match[2]
        # DuckDB leaves out the 0 before the point if the type has no digit there
        return self.replace_all(text, "^(-?)[.]", r"\10.") if self is Engine.DUCKDB and is_fraction else text

    def instant_text(self, value: str) -> str:
        """Return SQL for the text of a TIMESTAMP as PostgreSQL writes it in UTC; the session is in UTC."""
        text = self.cast(value, "STRING")
        return f"concat({text}, '+00')" if self is Engine.SPARK else text

    def float_bits(self, value: str, ddl: str) -> str:
        """Return SQL for the bits of a FLOAT or DOUBLE that is not NaN, as hexadecimal digits."""
        if self is Engine.DUCKDB:
            return f"lower(hex(CAST(CAST({value} AS BIT) AS BLOB)))"
        owner, method, digits = _BITS[ddl]
        number = f"CAST(reflect('{owner}', '{method}', coalesce({value}, {self.cast('0', ddl)})) AS BIGINT)"
        return f"right(lpad(lower(hex({number})), 16, '0'), {digits})"

    def timestamp(self, micros: int) -> str:
        """Return SQL for the TIMESTAMP that many microseconds after 1970."""
        function = "timestamp_micros" if self is Engine.SPARK else "make_timestamptz"
        return f"{function}({micros})"

    # Arrays and structs

    def get(self, values: str, index: int) -> str:
        """Return SQL for the element of an array at a 0-based index, NULL if there is none."""
        # In ANSI mode, Spark's values[i] raises an error for a missing element; get() returns NULL.
        return f"get({values}, {index})" if self is Engine.SPARK else f"list_extract({values}, {index + 1})"

    def contains(self, values: str, value: str) -> str:
        """Return SQL that is true if an array has a value, NULL if there is no array."""
        function = "array_contains" if self is Engine.SPARK else "list_contains"
        return f"{function}({values}, {value})"

    def array(self, *values: str) -> str:
        """Return SQL for the array of some values."""
        return f"array({', '.join(values)})" if self is Engine.SPARK else f"[{', '.join(values)}]"

    def size(self, values: str) -> str:
        """Return SQL for the number of an array's elements, NULL if there is no array."""
        return f"size({values})" if self is Engine.SPARK else f"len({values})"

    def transform(self, values: str, element: str, name: str = "e") -> str:
        """Return SQL for the array of an expression's values, in which `name` is an element of another array.

        That hides a column of the name.
        """
        if self is Engine.SPARK:
            return f"transform({values}, {name} -> {element})"
        return f"list_transform({values}, lambda {name}: {element})"

    def joined(self, texts: str, delimiter: str) -> str:
        """Return SQL for the texts of an array, none of them NULL, with a constant between them."""
        function = "array_join" if self is Engine.SPARK else "array_to_string"
        return f"{function}({texts}, {self.literal(delimiter)})"

    def filter(self, values: str, condition: str) -> str:
        """Return SQL for the array of the elements for which a condition on `e` is true."""
        if self is Engine.SPARK:
            return f"filter({values}, e -> {condition})"
        return f"list_filter({values}, lambda e: {condition})"

    def struct(self, fields: Mapping[str, str]) -> str:
        """Return SQL for a struct, given the SQL of each field."""
        if self is Engine.SPARK:
            return f"named_struct({', '.join(f'{literal(name)}, {sql}' for name, sql in fields.items())})"
        return f"struct_pack({', '.join(f'{self.quoted(name)} := {sql}' for name, sql in fields.items())})"

    def latest(self, fields: Mapping[str, str], key: str) -> str:
        """Return SQL of an aggregate: the struct in the row with the greatest key; all keys differ."""
        if self is Engine.SPARK:
            # max of a struct is a third faster than max_by
            return f"max({self.struct({'latest_key': key, **fields})})"
        return f"arg_max({self.struct(fields)}, {key})"

    def explode(self, values: str) -> str:
        """Return SQL that makes one row for each element of an array."""
        return f"explode({values})" if self is Engine.SPARK else f"unnest({values})"

    def numbers(self, last: str) -> str:
        """Return SQL for the array of 1 to a number that is at least 1."""
        return f"sequence(1, {last})" if self is Engine.SPARK else f"generate_series(1, {last})"

    def json_object(self, texts: Sequence[tuple[str, str]]) -> str:
        """Return SQL for the JSON object of names and texts, without those that are NULL."""
        pairs = ", ".join(f"{self.literal(name)}, {text}" for name, text in texts)
        if self is Engine.SPARK:
            return f"to_json(map_filter(map({pairs}), (k, v) -> v IS NOT NULL))"
        return f"CAST(json_merge_patch('{{}}', json_object({pairs})) AS VARCHAR)"

    def to_json(self, value: str) -> str:
        """Return SQL for the JSON text of a value; DuckDB's has `null` where Spark's leaves a field out."""
        return f"to_json({value})" if self is Engine.SPARK else f"CAST(to_json({value}) AS VARCHAR)"


SPARK, DUCKDB = Engine.SPARK, Engine.DUCKDB
