"""Silver types: a Delta type, and the SQL that reads PostgreSQL's text into it.

A parser is a Spark SQL expression over the text; it returns NULL for a misfit, a text that the type cannot
hold. Nothing is rounded or guessed: Spark's casts accept more than PostgreSQL prints (`2024`, `now`, a BC
date as AD), so dates and numbers are checked before they are cast. Only a `clamped` type has the nearest
value instead, and its misfits are recorded all the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

Parser = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class SilverType:
    """A Delta type and its parser; `is_total` if every text of the source type has a value.

    `nearest` gives the closest value of the type for a misfit, NULL if there is none; `lenient` is the parser
    of a clamped type.
    """

    ddl: str
    parse: Parser
    is_total: bool = False
    element: "SilverType | None" = None
    nearest: Parser | None = None
    lenient: Parser | None = None

    def value(self, text: str) -> str:
        """Return SQL for the value of a text in silver, NULL if it has none."""
        return (self.lenient or self.parse)(text)

    def misfit(self, text: str, value: str) -> str | None:
        """Return SQL that is true if the value of a text, or of an element, is lost; None if none can be.

        `value` is the SQL of the value in silver.
        """
        if self.is_total:
            return None
        exact = f"({self.parse(text)})" if self.lenient else value
        lost = f"({text} IS NOT NULL AND {exact} IS NULL)"
        if self.element is None or self.element.is_total:
            return lost
        sent_nulls = f"size(filter({_tokens(text)}, e -> e = 'NULL'))"
        kept_nulls = f"size(filter({exact}, e -> e IS NULL))"
        return f"({lost} OR {sent_nulls} <> {kept_nulls})"

    @property
    def clamped(self) -> "SilverType":
        """The type that has the nearest value instead of NULL for a misfit."""
        if self.element is not None and not self.element.is_total:
            return replace(self, lenient=_array_parser(self.element.clamped))
        if (nearest := self.nearest) is None:
            return self
        return replace(self, lenient=lambda text: f"coalesce({self.parse(text)}, {nearest(text)})")

    @property
    def text_of_misfit(self) -> "SilverType":
        """The type of a sidecar column: the text of a misfit, else NULL."""

        def parse(text: str) -> str:
            misfit = self.misfit(text, f"({self.parse(text)})")
            return f"CASE WHEN {misfit} THEN {text} END" if misfit else "CAST(NULL AS STRING)"

        return SilverType("STRING", parse, is_total=True)

    def canonical(self, text: str) -> str:
        """Return SQL for a string that is equal for equal values of the type, and differs for -0 and 0."""
        return self.canonical_value(self.value(text))

    def canonical_value(self, value: str) -> str:
        """Return the same as `canonical` for a value instead of its text."""
        if self.ddl == "STRING":
            return value
        if self.ddl == "BINARY":
            return f"hex({value})"
        if self.element is None and self.is_comparable:
            return f"CAST({value} AS STRING)"
        # JSON would round timestamps to milliseconds; it encodes bytes.
        as_text = self.element is not None and self.element.is_comparable and self.element.ddl != "BINARY"
        values = f"CAST({value} AS ARRAY<STRING>)" if as_text else value
        return f"CASE WHEN {value} IS NOT NULL THEN to_json(array({values})) END"

    @property
    def is_comparable(self) -> bool:
        """Whether Spark can compare values of the type."""
        return not any(word in self.ddl for word in ("MAP<", "VARIANT"))

    def comparable(self, value: str) -> str:
        """Return SQL by which values of the type compare as keys."""
        return value if self.is_comparable else self.canonical_value(value)


_NUMBER = r"^-?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|Infinity)$"


def _sign(text: str, least: str, greatest: str) -> str:
    return f"CASE WHEN startswith({text}, '-') THEN {least} ELSE {greatest} END"


def _cast(ddl: str) -> Parser:
    return lambda text: f"try_cast({text} AS {ddl})"


def _number(ddl: str, least: str, greatest: str, parse: Parser | None = None) -> SilverType:
    """Return a numeric type: the nearest value of a number outside its bounds is the bound, NaN has none."""
    rounded = ddl if ddl.startswith("DECIMAL") else "DECIMAL(38,0)"

    def nearest(text: str) -> str:
        # Spark rounds half away from zero, as PostgreSQL's numeric does.
        value = f"try_cast(try_cast({text} AS {rounded}) AS {ddl})"
        bound = _sign(text, f"CAST({least} AS {ddl})", f"CAST({greatest} AS {ddl})")
        outside = f"CASE WHEN abs(try_cast({text} AS DOUBLE)) < 1 THEN CAST(0 AS {ddl}) ELSE {bound} END"
        return f"CASE WHEN {text} RLIKE r'{_NUMBER}' THEN coalesce({value}, {outside}) END"

    return SilverType(ddl, parse or _cast(ddl), nearest=nearest)


def finite(ddl: str, greatest: str) -> SilverType:
    """Return FLOAT or DOUBLE for numbers that may overflow: they do not become infinite."""

    def parse(text: str) -> str:
        return (
            f"CASE WHEN abs(try_cast({text} AS {ddl})) < {ddl}('Infinity') "
            f"OR {text} RLIKE '^(-?Infinity|NaN)$' THEN try_cast({text} AS {ddl}) END"
        )

    def nearest(text: str) -> str:
        bound = _sign(text, f"CAST('-{greatest}' AS {ddl})", f"CAST('{greatest}' AS {ddl})")
        return f"CASE WHEN {text} RLIKE r'{_NUMBER}' THEN {bound} END"

    return SilverType(ddl, parse, nearest=nearest)


def _dated(ddl: str, guard: str, greatest: str) -> SilverType:
    """Return a type for dates or timestamps of years 1 to 9999, without `infinity`, BC, or a date's time."""

    def parse(text: str) -> str:
        guarded = f"substr({text}, 5, 1) = '-' AND {guard.format(text)}"
        return f"CASE WHEN {guarded} THEN try_cast({text} AS {ddl}) END"

    def nearest(text: str) -> str:
        least = "0001-01-01" + greatest[len("9999-12-31") :].replace("23:59:59.999999", "00:00:00")
        return (
            f"CASE WHEN {text} = '-infinity' OR endswith({text}, ' BC') THEN {ddl} '{least}' "
            rf"WHEN {text} = 'infinity' OR {text} RLIKE r'^\d{{5,}}-' THEN {ddl} '{greatest}' END"
        )

    return SilverType(ddl, parse, nearest=nearest)


STRING = SilverType("STRING", lambda text: text, is_total=True)
BOOLEAN = SilverType("BOOLEAN", lambda text: f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END")
BINARY = SilverType(
    "BINARY", lambda text: rf"CASE WHEN startswith({text}, r'\x') THEN unhex(substr({text}, 3)) END"
)
SMALLINT, INT, BIGINT = (
    _number(name, f"-{2 ** (bits - 1)}", str(2 ** (bits - 1) - 1))
    for name, bits in (("SMALLINT", 16), ("INT", 32), ("BIGINT", 64))
)
FLOAT, DOUBLE = (SilverType(name, _cast(name)) for name in ("FLOAT", "DOUBLE"))
DATE = _dated("DATE", "length({}) = 10", "9999-12-31")
TIMESTAMP_NTZ = _dated("TIMESTAMP_NTZ", "NOT endswith({}, ' BC')", "9999-12-31 23:59:59.999999")
TIMESTAMP = _dated("TIMESTAMP", "NOT endswith({}, ' BC')", "9999-12-31 23:59:59.999999+00")


def decimal(precision: int, scale: int) -> SilverType:
    """Return DECIMAL(precision, scale); a text with more digits after the point is a misfit, not rounded."""
    ddl = f"DECIMAL({precision},{scale})"
    exact = rf"^-?\d*(\.\d{{0,{scale}}}0*)?$"
    greatest = f"'{'9' * (precision - scale)}.{'9' * scale}'"
    return _number(
        ddl,
        f"'-{greatest[1:]}",
        greatest,
        lambda text: f"CASE WHEN {text} RLIKE r'{exact}' THEN try_cast({text} AS {ddl}) END",
    )


def array_of(element: SilverType, delimiter: str = ",") -> SilverType:
    """Return ARRAY<element> with one dimension and bounds from 1; an element that is a misfit is NULL."""
    return SilverType(f"ARRAY<{element.ddl}>", _array_parser(element, delimiter), element=element)


def _array_parser(element: SilverType, delimiter: str = ",") -> Parser:
    def parse(text: str) -> str:
        item = f"CASE WHEN startswith(e, '\\\"') THEN {_unmarked('e')} WHEN e = 'NULL' THEN NULL ELSE e END"
        values = f"transform({_tokens(text, delimiter)}, e -> {item})"
        if not element.is_total:
            values = f"transform({values}, e -> {element.value('e')})"
        return f"CASE WHEN startswith({text}, '{{') AND NOT startswith({text}, '{{{{') THEN {values} END"

    return parse


def _tokens(text: str, delimiter: str = ",") -> str:
    """Return SQL for the elements of PostgreSQL's array text, with quotes, and with escapes marked."""
    inner = f"substr({text}, 2, length({text}) - 2)"
    return rf"regexp_extract_all({_marked(inner)}, r'\"[^\"]*\"|[^{delimiter}]+', 0)"


def _marked(text: str) -> str:
    r"""Return SQL for a text without the escapes `\"` and `\\`.

    PostgreSQL escapes nothing else between quotes, and text never contains NUL, so NUL can mark the escapes.
    The result can be split without a recursive regular expression.
    """
    return rf"replace(replace({text}, r'\\', '\0b'), r'\"', '\0q')"


def _unmarked(quoted: str) -> str:
    """Return SQL for the original text between the quotes of a marked text."""
    return rf"replace(replace(substr({quoted}, 2, length({quoted}) - 2), '\0q', '\"'), '\0b', r'\')"


def _vector(text: str) -> str:
    """Return SQL that reads pgvector's `[1,2.5]`."""
    values = f"split(substr({text}, 2, length({text}) - 2), ',')"
    numbers = f"transform({values}, e -> try_cast(e AS FLOAT))"
    return f"CASE WHEN startswith({text}, '[') AND NOT contains({text}, '=') THEN {numbers} END"


def _hstore(text: str) -> str:
    """Return SQL that reads hstore's `"key"=>"value", "other"=>NULL`; a key may contain `=>`."""
    marked = _marked(text)
    pairs = rf"regexp_extract_all({marked}, r'\"[^\"]*\"=>(?:\"[^\"]*\"|NULL)', 0)"
    key = r"regexp_extract(e, r'^(\"[^\"]*\")=>', 1)"
    value = f"substr(e, length({key}) + 3)"
    keys = f"transform({pairs}, e -> {_unmarked(key)})"
    values = f"transform({pairs}, e -> CASE WHEN {value} <> 'NULL' THEN {_unmarked(value)} END)"
    is_whole = f"array_join({pairs}, ', ') = {marked} AND size(array_distinct({keys})) = size({keys})"
    return f"CASE WHEN {is_whole} THEN map_from_arrays({keys}, {values}) END"


def _variant(text: str) -> str:
    """Return SQL that reads JSON; a number that VARIANT cannot hold exactly is a misfit."""
    strings = rf"regexp_replace({_marked(text)}, r'\"[^\"]*\"', '\"\"')"
    inexact = r"\d{39}|[\d.]{40}|[\d.]{17,}[eE]|[eE][+-]?\d{3}"
    return f"CASE WHEN NOT {strings} RLIKE r'{inexact}' THEN try_parse_json({text}) END"


HSTORE = SilverType("MAP<STRING,STRING>", _hstore)
VARIANT = SilverType("VARIANT", _variant)
VECTOR = SilverType("ARRAY<FLOAT>", _vector)
