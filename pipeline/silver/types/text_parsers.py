r"""Silver types: a Delta type, and the SQL that reads PostgreSQL's text into it, in Spark and in DuckDB.

A parser is an SQL expression over the text; it returns NULL for a misfit, a text that the type cannot
hold. Nothing is rounded or guessed: casts accept more than PostgreSQL prints (`2024`, `now`, a BC date as
AD), and each engine's something else, so dates and numbers are checked before they are cast. Only a `clamped`
type has the nearest value instead, and its misfits are recorded all the same.

Both engines give the same value for every text, whether PostgreSQL prints it or not. There is one description
of each type; `engine` spells it. Most texts are printed for values that the Delta type holds. They are read
with fewer checks (`of_printed`): a small batch takes a third less time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.engine import SPARK, Engine
from pipeline.partition_folders import ESCAPED, MAX_TEXT_BYTES, NULL_FOLDER

Parser = Callable[[Engine, str], str]


@dataclass(frozen=True, slots=True)
class SilverType:
    """A Delta type and its parser; `is_total` if every text of the source type has a value.

    `nearest` gives the closest value of the type for a misfit, NULL if there is none; `lenient` is the parser
    of a clamped type. `is_native` is False for types that only Spark can read and write. `printed` is
    what `of_printed` gives.
    """

    ddl: str
    parser: Parser
    is_total: bool = False
    element: SilverType | None = None
    delimiter: str = ","  # of the elements in an array's text
    nearest: Parser | None = None
    lenient: Parser | None = None
    is_native: bool = True
    printed: SilverType | None = None

    @property
    def of_printed(self) -> SilverType:
        """The type for texts that PostgreSQL prints for values of it, or of a type that it holds."""
        return self.printed or self

    def parse(self, text: str, engine: Engine = SPARK) -> str:
        """Return SQL for the exact value of a text, NULL if it is a misfit."""
        return self.parser(engine, text)

    def value(self, text: str, engine: Engine = SPARK) -> str:
        """Return SQL for the value of a text in silver, NULL if it has none."""
        return (self.lenient or self.parser)(engine, text)

    def misfit(self, text: str, value: str, engine: Engine = SPARK) -> str | None:
        """Return SQL that is true if the value of a text, or of an element, is lost; None if none can be.

        `value` is the SQL of the value in silver.
        """
        if self.is_total:
            return None
        exact = f"({self.parse(text, engine)})" if self.lenient else value
        lost = f"({text} IS NOT NULL AND {exact} IS NULL)"
        if self.element is None or self.element.is_total:
            return lost
        sent_nulls = engine.size(engine.filter(_tokens(engine, text, self.delimiter), "e = 'NULL'"))
        kept_nulls = engine.size(engine.filter(exact, "e IS NULL"))
        return f"({lost} OR {sent_nulls} <> {kept_nulls})"

    def kept_text(self, text: str, value: str) -> str:
        """Return SQL for the text as far as `misfit` needs it: NULL where the value shows that it fits."""
        needs_all = self.lenient is not None or not (self.element is None or self.element.is_total)
        return text if needs_all else f"CASE WHEN {value} IS NULL THEN {text} END"

    @property
    def clamped(self) -> SilverType:
        """The type that has the nearest value instead of NULL for a misfit."""
        if self.element is not None and not self.element.is_total:
            return replace(self, lenient=_array_parser(self.element.clamped, self.delimiter))
        if (nearest := self.nearest) is None:
            return self

        def lenient(engine: Engine, text: str) -> str:
            return f"coalesce({self.parse(text, engine)}, {nearest(engine, text)})"

        return replace(self, lenient=lenient)

    @property
    def text_of_misfit(self) -> SilverType:
        """The type of a sidecar column: the text of a misfit, else NULL."""

        def parse(engine: Engine, text: str) -> str:
            misfit = self.misfit(text, f"({self.parse(text, engine)})", engine)
            return f"CASE WHEN {misfit} THEN {text} END" if misfit else engine.null("STRING")

        return SilverType("STRING", parse, is_total=True, is_native=self.is_native)

    def canonical(self, text: str, engine: Engine = SPARK) -> str:
        """Return SQL for a string that is equal for equal values of the type, and differs for -0 and 0.

        Strings of different engines are not comparable.
        """
        return self.canonical_value(self.value(text, engine), engine)

    def canonical_value(self, value: str, engine: Engine = SPARK) -> str:
        """Return the same as `canonical` for a value instead of its text."""
        if self.ddl == "STRING":
            return value
        if self.ddl == "BINARY":
            return f"hex({value})"
        if self.element is None and self.is_comparable:
            return engine.cast(value, "STRING")
        # JSON would round timestamps to milliseconds.
        values = value
        if self.element is not None and self.element.ddl == "BINARY":
            values = engine.transform(value, "hex(e)")
        elif self.element is not None and self.element.is_comparable:
            values = engine.cast(value, "ARRAY<STRING>")
        return f"CASE WHEN {value} IS NOT NULL THEN {engine.to_json(engine.array(values))} END"

    @property
    def is_comparable(self) -> bool:
        """Whether Spark can compare values of the type."""
        return not any(word in self.ddl for word in ("MAP<", "VARIANT"))

    def comparable(self, value: str, engine: Engine = SPARK) -> str:
        """Return SQL by which values of the type compare as keys."""
        return value if self.is_comparable else self.canonical_value(value, engine)

    def key_text(self, text: str, engine: Engine = SPARK, *, has_many_spellings: bool = False) -> str:
        """Return SQL for the one text of a key's value, of those that PostgreSQL prints for equal values.

        With `has_many_spellings`, the column had other types before: `1.0` and `1.00` of a DECIMAL, a date
        without time or zone of a timestamp, a widened FLOAT. Of a DOUBLE, engines may spell it differently.
        """
        if has_many_spellings and self.ddl == "DOUBLE":
            value = engine.floating(text, "DOUBLE")
            spelled = f"CASE WHEN {value} = 0 THEN '0' ELSE {engine.cast(value, 'STRING')} END"
            return f"coalesce({spelled}, {text})"
        if has_many_spellings and self.ddl in {"TIMESTAMP", "TIMESTAMP_NTZ"}:
            text = engine.replace_all(text, r"( 00:00:00)?(\+00)?\z", "")
        elif has_many_spellings:
            text = engine.replace_all(text, r"^(-?[0-9]+\.[0-9]*?)0+\z", r"\1")
            text = engine.replace_all(text, r"\.\z", "")
        if self.ddl in {"FLOAT", "DOUBLE"}:
            # -0 and 0 are equal in PostgreSQL's unique index.
            text = f"CASE WHEN {text} = '-0' THEN '0' ELSE {text} END"
        if self.ddl in {"ARRAY<FLOAT>", "ARRAY<DOUBLE>"}:
            # Neighbours share a comma: the first two find all between them.
            for zero in (",-0,", ",-0,", "{-0,", ",-0}", "{-0}"):
                text = f"replace({text}, '{zero}', '{zero.replace('-', '')}')"
        return text


_NOT_FINITE = r"^(-?Infinity|NaN)\z"
_NUMBER = r"^-?(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|Infinity)\z"


def _sign(engine: Engine, text: str, least: str, greatest: str) -> str:
    return f"CASE WHEN {engine.starts_with(text, '-')} THEN {least} ELSE {greatest} END"


def _number(ddl: str, least: str, greatest: str, parser: Parser) -> SilverType:
    """Return a numeric type: the nearest value of a number outside its bounds is the bound, NaN has none."""
    rounded = ddl if ddl.startswith("DECIMAL") else "DECIMAL(38,0)"

    def nearest(engine: Engine, text: str) -> str:
        # Both engines round half away from zero, as PostgreSQL's numeric does.
        value = engine.try_cast(engine.rounded(text, rounded), ddl)
        bound = _sign(engine, text, engine.cast(least, ddl), engine.cast(greatest, ddl))
        is_small = f"abs({engine.try_cast(text, 'DOUBLE')}) < 1"
        outside = f"CASE WHEN {is_small} THEN {engine.cast('0', ddl)} ELSE {bound} END"
        return f"CASE WHEN {engine.matches(text, _NUMBER)} THEN coalesce({value}, {outside}) END"

    printed = _printed(ddl, is_total=not ddl.startswith("DECIMAL"))  # NaN is none
    return SilverType(ddl, parser, nearest=nearest, printed=replace(printed, nearest=nearest))


def _printed(ddl: str, *, is_total: bool) -> SilverType:
    """Return the type whose engines read all texts that PostgreSQL prints, or give NULL."""
    return SilverType(ddl, lambda engine, text: engine.try_cast(text, ddl), is_total)


def _integer(ddl: str, bits: int) -> SilverType:
    return _number(
        ddl, f"-{2 ** (bits - 1)}", str(2 ** (bits - 1) - 1), lambda engine, text: engine.integer(text, ddl)
    )


def _floating(ddl: str) -> SilverType:
    printed = _printed(ddl, is_total=True)
    return SilverType(ddl, lambda engine, text: engine.floating(text, ddl), printed=printed)


def finite(ddl: str, greatest: str) -> SilverType:
    """Return FLOAT or DOUBLE for numbers that may overflow: they do not become infinite."""

    def parse(engine: Engine, text: str) -> str:
        value = engine.floating(text, ddl)
        infinity = engine.cast("'Infinity'", ddl)
        is_not_finite = engine.matches(text, _NOT_FINITE)
        return f"CASE WHEN abs({value}) < {infinity} OR {is_not_finite} THEN {value} END"

    def nearest(engine: Engine, text: str) -> str:
        bound = _sign(engine, text, engine.cast(f"'-{greatest}'", ddl), engine.cast(f"'{greatest}'", ddl))
        return f"CASE WHEN {engine.matches(text, _NUMBER)} THEN {bound} END"

    return SilverType(ddl, parse, nearest=nearest, printed=_printed(ddl, is_total=True))


_YMD = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MINUTE = rf"{_YMD}[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]"
_SECOND = rf"{_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,9}})?"
# PostgreSQL's zones are within 16 hours of UTC.
_ZONE = "Z|[+-](?:0[0-9]|1[0-5])(?::[0-5][0-9](?::[0-5][0-9])?)?"
_MOMENT = rf"^(?:{_YMD}|{_MINUTE}|({_SECOND})(?:{_ZONE})?)\z"


def _dated(ddl: str, shape: str, greatest: str) -> SilverType:
    """Return a type for dates or timestamps of years 1 to 9999, without `infinity` or BC."""

    def parse(engine: Engine, text: str) -> str:
        has_shape = f"{engine.matches(text, shape)} AND NOT {engine.starts_with(text, '0000')}"
        if ddl != "TIMESTAMP_NTZ":
            return f"CASE WHEN {has_shape} THEN {engine.try_cast(text, ddl)} END"
        # A local time is what the text shows, whatever its zone.
        signs = ((text, "+"), (text, "Z"), (f"substr({text}, 11)", "-"))
        has_zone = " OR ".join(engine.contains_text(part, sign) for part, sign in signs)
        local = f"CASE WHEN {has_zone} THEN {engine.first_group(text, shape)} ELSE {text} END"
        return f"CASE WHEN {has_shape} THEN {engine.try_cast(local, ddl)} END"

    def nearest(engine: Engine, text: str) -> str:
        least = "0001-01-01" + greatest[len("9999-12-31") :].replace("23:59:59.999999", "00:00:00")
        first, last = (engine.cast(engine.literal(bound), ddl) for bound in (least, greatest))
        is_earlier = f"{text} = '-infinity' OR {engine.ends_with(text, ' BC')}"
        is_later = f"{text} = 'infinity' OR {engine.matches(text, '^[0-9]{5,}-')}"
        return f"CASE WHEN {is_earlier} THEN {first} WHEN {is_later} THEN {last} END"

    def printed(engine: Engine, text: str) -> str:
        has_four_digits = f"substr({text}, 5, 1) = '-' AND NOT {engine.ends_with(text, ' BC')}"
        return f"CASE WHEN {has_four_digits} THEN {engine.try_cast(text, ddl)} END"

    return SilverType(ddl, parse, nearest=nearest, printed=SilverType(ddl, printed, nearest=nearest))


def _boolean(engine: Engine, text: str) -> str:
    return f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END"


def _binary(engine: Engine, text: str) -> str:
    is_hexadecimal = engine.starts_with(text, r"\x")
    return f"CASE WHEN {is_hexadecimal} THEN {engine.unhex(f'substr({text}, 3)')} END"


_ESCAPED = rf"[\x01-\x1F{re.escape(ESCAPED[31:])}]"


def _partition_text(engine: Engine, text: str) -> str:
    size = engine.byte_count(engine.replace_all(text, _ESCAPED, "%00"))
    is_held = f"{text} NOT IN ('', '{NULL_FOLDER}') AND {size} <= {MAX_TEXT_BYTES}"
    return f"CASE WHEN {is_held} THEN {text} END"


STRING = SilverType("STRING", lambda engine, text: text, is_total=True)
PARTITION_STRING = SilverType("STRING", _partition_text)
"""STRING of a partition column: values are in Delta's log, where the empty text is NULL, and in folders."""
NO_MISFIT = SilverType("STRING", lambda engine, _: engine.null("STRING"), is_total=True)
"""The type of a sidecar whose column keeps no texts any more."""
BOOLEAN = SilverType(
    "BOOLEAN",
    _boolean,
    printed=SilverType("BOOLEAN", lambda engine, text: f"{text} = 't'", is_total=True),
)
BINARY = SilverType(
    "BINARY",
    _binary,
    printed=SilverType("BINARY", lambda engine, text: f"unhex(substr({text}, 3))", is_total=True),
)
SMALLINT, INT, BIGINT = _integer("SMALLINT", 16), _integer("INT", 32), _integer("BIGINT", 64)
FLOAT, DOUBLE = _floating("FLOAT"), _floating("DOUBLE")
WIDENED_FLOAT = SilverType("DOUBLE", lambda engine, text: engine.floating(engine.widened(text), "DOUBLE"))
"""The DOUBLE that equals the FLOAT which a text shows."""
DATE = _dated("DATE", rf"^{_YMD}\z", "9999-12-31")
TIMESTAMP_NTZ = _dated("TIMESTAMP_NTZ", _MOMENT, "9999-12-31 23:59:59.999999")
TIMESTAMP = _dated("TIMESTAMP", _MOMENT, "9999-12-31 23:59:59.999999+00")


def decimal(precision: int, scale: int) -> SilverType:
    """Return DECIMAL(precision, scale); a text with more digits after the point is a misfit, not rounded."""
    ddl = f"DECIMAL({precision},{scale})"
    exact = rf"^-?[0-9]*(\.[0-9]{{0,{scale}}}0*)?\z"
    greatest = f"'{'9' * (precision - scale)}.{'9' * scale}'"
    return _number(
        ddl,
        f"'-{greatest[1:]}",
        greatest,
        lambda engine, text: f"CASE WHEN {engine.matches(text, exact)} THEN {engine.try_cast(text, ddl)} END",
    )


def array_of(element: SilverType, delimiter: str = ",") -> SilverType:
    """Return ARRAY<element> with one dimension and bounds from 1; an element that is a misfit is NULL."""
    parser = _array_parser(element, delimiter)
    ddl, is_native = f"ARRAY<{element.ddl}>", element.is_native
    printed = None if element.printed is None else array_of(element.printed, delimiter)
    return SilverType(ddl, parser, element=element, delimiter=delimiter, is_native=is_native, printed=printed)


def _array_parser(element: SilverType, delimiter: str) -> Parser:
    def parse(engine: Engine, text: str) -> str:
        # a damaged text may end within quotes
        is_quoted = f"{engine.starts_with('e', chr(34))} AND {engine.ends_with('e', chr(34))}"
        item = f"CASE WHEN {is_quoted} THEN {_unmarked(engine, 'e')} WHEN e = 'NULL' THEN NULL ELSE e END"
        values = engine.transform(_tokens(engine, text, delimiter), item)
        if element.ddl != "STRING":
            values = engine.transform(values, element.value("e", engine))
        has_one_dimension = f"{engine.starts_with(text, '{')} AND NOT {engine.starts_with(text, '{{')}"
        return f"CASE WHEN {has_one_dimension} THEN {values} END"

    return parse


def _tokens(engine: Engine, text: str, delimiter: str) -> str:
    """Return SQL for the elements of PostgreSQL's array text, with quotes, and with escapes marked."""
    return engine.all_matches(_marked(engine, engine.inner(text)), f'"[^"]*"|[^{re.escape(delimiter)}]+')


def _marked(engine: Engine, text: str) -> str:
    r"""Return SQL for a text without the escapes `\"` and `\\`.

    PostgreSQL escapes nothing else between quotes, and text never contains NUL, so NUL can mark the escapes.
    The result can be split without a recursive regular expression.
    """
    backslash, quote = _marks(engine)
    return (
        f"replace(replace({text}, {engine.literal(2 * chr(92))}, {backslash}), "
        f"{engine.literal(chr(92) + chr(34))}, {quote})"
    )


def _unmarked(engine: Engine, quoted: str) -> str:
    """Return SQL for the original text between the quotes of a marked text."""
    backslash, quote = _marks(engine)
    inner = engine.inner(quoted)
    return f"replace(replace({inner}, {quote}, '\"'), {backslash}, {engine.literal(chr(92))})"


def _marks(engine: Engine) -> tuple[str, str]:
    """Return SQL for the marks of an escaped backslash and quote."""
    return f"concat({engine.nul}, 'b')", f"concat({engine.nul}, 'q')"


def _vector(engine: Engine, text: str) -> str:
    """Return SQL that reads pgvector's `[1,2.5]`."""
    numbers = engine.transform(engine.split(engine.inner(text), ","), engine.floating("e", "FLOAT"))
    is_vector = f"{engine.starts_with(text, '[')} AND NOT {engine.contains_text(text, '=')}"
    return f"CASE WHEN {is_vector} THEN {numbers} END"


def _hstore(engine: Engine, text: str) -> str:
    """Return Spark SQL that reads hstore's `"key"=>"value", "other"=>NULL`; a key may contain `=>`."""
    marked = _marked(engine, text)
    pairs = engine.all_matches(marked, '"[^"]*"=>(?:"[^"]*"|NULL)')
    key = engine.first_group("e", '^("[^"]*")=>')
    value = f"substr(e, length({key}) + 3)"
    keys = engine.transform(pairs, _unmarked(engine, key))
    values = engine.transform(pairs, f"CASE WHEN {value} <> 'NULL' THEN {_unmarked(engine, value)} END")
    is_whole = f"array_join({pairs}, ', ') = {marked} AND size(array_distinct({keys})) = size({keys})"
    return f"CASE WHEN {is_whole} THEN map_from_arrays({keys}, {values}) END"


def _variant(engine: Engine, text: str) -> str:
    """Return Spark SQL that reads JSON; a number that VARIANT cannot hold exactly is a misfit."""
    strings = engine.replace_all(_marked(engine, text), '"[^"]*"', '""')
    inexact = engine.matches(strings, r"[0-9]{39}|[0-9.]{40}|[0-9.]{17,}[eE]|[eE][+-]?[0-9]{3}")
    return f"CASE WHEN NOT {inexact} THEN try_parse_json({text}) END"


HSTORE = SilverType("MAP<STRING,STRING>", _hstore, is_native=False)
VARIANT = SilverType("VARIANT", _variant, is_native=False)
VECTOR = SilverType("ARRAY<FLOAT>", _vector)
