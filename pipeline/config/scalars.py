"""Read a value of the configuration file into the type of its field.

One marker per kind of value: `Annotated[bool, Flag]` is a true or false of the file. A marker receives the
values of `yaml_document`, expands their variables and raises ValueError with a sentence, which never shows
the value; the type that it annotates, with its own constraints, is checked by pydantic afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticKnownError

from pipeline.config.yaml_document import Items, Scalar, Section

Node = Scalar | Section | Items

_SECRET_KEYWORDS = frozenset(
    ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
)
_PUBLIC_KEYWORDS = frozenset(
    ("host", "hostaddr", "port", "dbname", "user", "service", "sslmode", "target_session_attrs")
)
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)*)", re.DOTALL)
_CREDENTIALS = re.compile(r"[\w+.-]+://[^/@]*:[^/]*@")
_BYTE_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_BYTES = re.compile(r"([0-9]{1,12})\s*(B|kB|MB|GB)?")
_BYTES_SCHEMA = {"type": ["integer", "string"], "minimum": 0, "pattern": r"^[0-9]{1,12}\s*(B|kB|MB|GB)?$"}
_RATE = re.compile(r"([0-9]{1,12})\s*(B|kB|MB|GB)/s")
_TIME_UNITS = {"s": 1, "min": 60, "h": 3600}
_SECONDS = re.compile(r"([0-9]{1,9})\s*(s|min|h)?")
_RETENTION_UNITS = {**_TIME_UNITS, "d": 86_400}
_RETENTION = re.compile(r"([0-9]{1,9})\s*(s|min|h|d)")
_SECONDS_SCHEMA = {"type": ["integer", "string"], "minimum": 0, "pattern": r"^[0-9]{1,9}\s*(s|min|h)?$"}
_LIMIT_UNITS = {
    **{name: ("lag", factor) for name, factor in _RETENTION_UNITS.items()},
    **{name: ("wal", factor) for name, factor in _BYTE_UNITS.items()},
}
_ALERT_LIMIT = re.compile(r"(?P<what>lag|wal)\s*>\s*(?P<number>[0-9]{1,9})\s*(?P<unit>[A-Za-z]{1,3})")
ALERT_WORDS = ("held", "failed", "unpublished", "slot")
_HOURS = re.compile(r"[0-9]{2}:[0-9]{2}-[0-9]{2}:[0-9]{2}")
_DAY_MINUTES = 24 * 60
_NUMBER = re.compile(r"[0-9]{1,18}")
_SILVER_TYPE = re.compile(
    r"BOOLEAN|SMALLINT|INT|BIGINT|FLOAT|DOUBLE|STRING|BINARY|DATE|TIMESTAMP|TIMESTAMP_NTZ|VARIANT"
    r"|MAP<STRING,STRING>|DECIMAL\((?P<precision>[0-9]{1,2}),(?P<scale>[0-9]{1,2})\)"
)
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]*)\}")
_CATALOG_NAME = re.compile("[A-Za-z0-9_]*")
_METASTORE_URI = re.compile(r"thrift://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
MAX_AT_ONCE = 64
MIN_KEY = 16

T = TypeVar("T")


class FileSection:
    """A section of the file, as pydantic validates it: with no other keys, and with errors without values."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)


def key(description: str, *, default: str | None = None, since: int | None = None, **attributes: Any) -> Any:
    """Describe a key of the file: its `default` in words, the first PostgreSQL that supports it."""
    notes = {"x-postgresql": since, "x-default": default, **attributes.pop("json_schema_extra", {})}
    shown = {name: value for name, value in notes.items() if value is not None}
    return Field(description=description, json_schema_extra=shown or None, **attributes)


def read_text(node: Node) -> str:
    """Return text with its variables expanded."""
    if not isinstance(node, Scalar) or not node.is_text:
        hint = " Put it in quotes." if isinstance(node, Scalar) and node.written else ""
        raise ValueError(f"Expected text, found {node.kind}.{hint}")
    text = node.expand()
    if not text:
        raise ValueError("Value is empty. Write a value or leave the key out.")
    if "\0" in text:
        raise ValueError("Value contains a NUL character, which PostgreSQL does not allow. Remove it.")
    return text


def read_argument(node: Node) -> str:
    """Return the argument of a program, which may be a number or an empty text."""
    if not isinstance(node, Scalar) or not (node.is_text or node.kind == "a number"):
        raise ValueError(f"Expected text, found {node.kind}. Put it in quotes.")
    text = node.expand()
    if "\0" in text:
        raise ValueError("Value contains a NUL character, which no program can receive. Remove it.")
    return text


def read_word(node: Node) -> object:
    """Return the word itself, not its YAML type: YAML reads `off` as false, `null` as nothing."""
    return node.expand() if isinstance(node, Scalar) else node


def read_version(node: Node) -> object:
    """Return a word, as a number if it is one."""
    word = read_word(node)
    return int(word) if isinstance(word, str) and _NUMBER.fullmatch(word) else word


def read_flag(node: Node) -> bool:
    """Return true or false, as YAML has them or as a variable spells them out."""
    if isinstance(node, Scalar):
        if node.boolean is not None:
            return node.boolean
        if node.is_text and node.has_variables and (word := node.expand().lower()) in ("true", "false"):
            return word == "true"
    raise ValueError(f"Expected true or false, found {node.kind}.")


def read_number(node: Node) -> int:
    """Return an integer; its bounds are the field's."""
    if isinstance(node, Scalar) and _NUMBER.fullmatch(text := node.expand()):
        return int(text)
    raise PydanticKnownError("int_parsing")


def read_byte_count(node: Node) -> int:
    """Return bytes, written as a number or with the unit B, kB, MB or GB as in PostgreSQL's settings."""
    match = _BYTES.fullmatch(node.expand()) if isinstance(node, Scalar) else None
    if match is None:
        raise ValueError("Expected a number of bytes, such as 500kB, 20MB or 1GB.")
    return int(match[1]) * _BYTE_UNITS[match[2] or "B"]


def parse_rate(text: str) -> int:
    """Return the bytes a second that a text such as `20MB/s` names; raise ValueError for anything else."""
    match = _RATE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ValueError("Expected bytes a second, such as 500kB/s or 20MB/s.")
    return int(match[1]) * _BYTE_UNITS[match[2]]


def read_rate(node: Node) -> int:
    """Return bytes a second, written with a unit."""
    return parse_rate(node.expand() if isinstance(node, Scalar) else "")


def read_seconds(node: Node) -> int:
    """Return seconds, written as a number or with the unit s, min or h as in PostgreSQL's settings."""
    match = _SECONDS.fullmatch(node.expand()) if isinstance(node, Scalar) else None
    if match is None:
        raise ValueError("Expected a time in whole units, such as 30s, 5min or 1h.")
    return int(match[1]) * _TIME_UNITS[match[2] or "s"]


def read_retention(node: Node) -> int | None:
    """Return seconds, at least one, also written with the unit d; None for the word `forever`."""
    text = node.expand() if isinstance(node, Scalar) else ""
    match = _RETENTION.fullmatch(text)
    if text != "forever" and (match is None or int(match[1]) == 0):
        raise ValueError("Expected forever, or a time in whole units, such as 30d or 12h.")
    return None if match is None else int(match[1]) * _RETENTION_UNITS[match[2]]


def read_limit(node: Node) -> int | None:
    """Return an integer, or None for the word `none`."""
    text = node.expand() if isinstance(node, Scalar) else ""
    if text != "none" and not _NUMBER.fullmatch(text):
        raise ValueError("Expected a whole number, or none for no limit.")
    return None if text == "none" else int(text)


@lru_cache(maxsize=64)
def minutes_of(hours: str) -> tuple[int, int]:
    """Return the first minute of the day and the one after the last; raise ValueError for anything else."""
    if not _HOURS.fullmatch(hours):
        raise ValueError("Expected hours of the day, such as 22:00-06:00.")
    parts = [part.split(":") for part in hours.split("-")]
    start, end = (int(hour) * 60 + int(minute) for hour, minute in parts)
    if (
        not (start < _DAY_MINUTES and 0 < end <= _DAY_MINUTES)
        or start == end
        or any(int(part[1]) > 59 for part in parts)
    ):
        raise ValueError(
            "Expected two different times from 00:00 to 24:00, such as 22:00-06:00, or 00:00-24:00 for all"
            " day."
        )
    return start, end


def read_hours(node: Node) -> str:
    """Return hours of the day."""
    text = node.expand() if isinstance(node, Scalar) else ""
    minutes_of(text)
    return text


def read_time_zone(node: Node) -> str:
    """Return the name of a time zone that this machine has."""
    name = read_text(node)
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError("Unknown time zone. Write an IANA name, such as Europe/Berlin or UTC.") from None
    return name


def read_at_once(node: Node) -> int | str:
    """Return an integer from 1 to 64, or the word `auto`."""
    text = node.expand() if isinstance(node, Scalar) else ""
    if text == "auto":
        return text
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= MAX_AT_ONCE:
        raise ValueError(f"Expected a number from 1 to {MAX_AT_ONCE}, or auto.")
    return int(text)


def read_conninfo(node: Node) -> str:
    """Return a connection string; refuse one that gives a secret away in the file."""
    if isinstance(node, Scalar) and holds_secret(node.without_variables):
        raise ValueError(
            "The file contains a password. Remove it, and use PGPASSWORD, PGPASSFILE or a ${VARIABLE}."
        )
    return read_text(node)


def read_root(node: Node) -> str:
    """Return the lake's address without a slash at its end; refuse one that contains credentials."""
    root = read_text(node)
    if _CREDENTIALS.match(root):
        raise ValueError(
            "The address contains credentials, which messages would repeat. Remove them, and give them to"
            " the environment, or to storage.options by a ${VARIABLE}."
        )
    return root.rstrip("/") or root


def read_publication(node: Node) -> str:
    """Return a name that PostgreSQL does not truncate."""
    name = read_text(node)
    if len(name.encode()) > 63:
        raise ValueError("The name is longer than 63 bytes. Write a shorter one.")
    return name


def is_metastore_uri(text: str) -> bool:
    """Return whether a text has the addresses of one Hive metastore, with commas between them."""
    return all(_METASTORE_URI.fullmatch(each.strip()) for each in text.split(","))


def read_catalog_uri(node: Node) -> str:
    """Return the addresses of a Hive metastore, or that of Unity Catalog."""
    text = read_text(node)
    if text.startswith(("https://", "http://")):
        return read_webhook(node)
    if not is_metastore_uri(text):
        raise ValueError(
            "Not the address of a Hive metastore or of Unity Catalog. Write thrift://HOST:PORT or https://HOST."
        )
    return text


def _read_template(node: Node, allowed: Sequence[str]) -> str:
    """Return the template of a name in a catalog: letters, digits, `_` and placeholders."""
    text = read_text(node)
    placeholders = " or ".join(f"{{{name}}}" for name in allowed)
    if not set(_PLACEHOLDER.findall(text)) <= set(allowed):
        raise ValueError(f"Unknown placeholder. Write {placeholders}, or leave it out.")
    if not _CATALOG_NAME.fullmatch(_PLACEHOLDER.sub("", text)):
        raise ValueError("A catalog's name has letters of ASCII, digits and `_` only. Choose another name.")
    return text


def alert_limit(condition: str) -> tuple[str, int] | None:
    """Return what a condition such as `lag > 5 min` limits, and the limit in seconds or bytes.

    Returns None for anything else.
    """
    match = _ALERT_LIMIT.fullmatch(condition)
    if match is None or int(match["number"]) == 0:
        return None
    what, factor = _LIMIT_UNITS.get(match["unit"], ("", 0))
    return (what, int(match["number"]) * factor) if what == match["what"] else None


def read_alert_condition(node: Node) -> str:
    """Return a word for what is wrong, or a limit of lag or WAL."""
    text = read_text(node)
    if text not in ALERT_WORDS and alert_limit(text) is None:
        words = ", ".join(ALERT_WORDS)
        raise ValueError(
            f"Unknown condition. Write {words}, or a limit such as lag > 5 min or wal > 10 GB, in quotes."
        )
    return text


def read_webhook(node: Node) -> str:
    """Return the address of a webhook, which is a secret."""
    text = read_text(node)
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("Not an address of the form https://HOST/PATH. Correct it, or its variable.")
    if parts.username is not None:
        raise ValueError(
            "The address has a user before the host, which is not sent. Write a token as the receiver's"
            " documentation says, in the path or the query."
        )
    return text


def read_hash_key(node: Node) -> str:
    """Return a key that comes from the environment, of at least 16 characters."""
    if not isinstance(node, Scalar) or not node.has_variables or node.without_variables:
        raise ValueError("The file contains the key. Put it into a variable and write ${NAME}, no default.")
    key = read_text(node)
    if len(key) < MIN_KEY:
        raise ValueError(f"The key has less than {MIN_KEY} characters. Choose a longer one.")
    return key


def read_mask(node: Node) -> str | None:
    """Return the text of a mask, or None for `null`."""
    if isinstance(node, Scalar) and node.is_null:
        return None
    return read_text(node)


def read_silver_type(node: Node) -> str:
    """Return a silver type in upper case and without spaces."""
    text = "".join(read_text(node).upper().split())
    element = text[6:-1] if text.startswith("ARRAY<") and text.endswith(">") else text
    match = _SILVER_TYPE.fullmatch(element)
    if match is None:
        raise ValueError(
            "Unknown type. Write BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY,"
            " DATE, TIMESTAMP, TIMESTAMP_NTZ, VARIANT, MAP<STRING,STRING> or ARRAY<one of these>."
        )
    if match["precision"] is not None:
        precision, scale = int(match["precision"]), int(match["scale"])
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(
                "A DECIMAL has 1 to 38 digits, and its scale is at most its precision. Correct the numbers."
            )
    return text


def holds_secret(conninfo: str) -> bool:
    """Return whether a libpq connection string, written without variables, gives a secret a value."""
    return any(keyword in _SECRET_KEYWORDS and value for keyword, value in _keywords(conninfo))


def holds_password(conninfo: str) -> bool:
    """Return whether a libpq connection string has a password."""
    return any(keyword == "password" and value for keyword, value in _keywords(conninfo))


def read_secrets(conninfo: str) -> list[str]:
    """Return the secrets of a connection string, of a URI as they are written and decoded."""
    found = [value for keyword, value in _keywords(conninfo) if keyword in _SECRET_KEYWORDS and value]
    return [*found, *(decoded for value in found if (decoded := unquote(value)) != value)]


def read_public_keywords(conninfo: str) -> dict[str, str]:
    """Return where a connection string leads, by keyword; of any other keyword only the name."""
    scheme, separator, rest = conninfo.strip().partition("://")
    if separator and scheme in ("postgres", "postgresql"):
        authority, _, query = rest.partition("?")
        address, _, database = authority.partition("/")
        user, _, host = address.rpartition("@")
        pairs = [("user", unquote(user.partition(":")[0])), ("host", host), ("dbname", unquote(database))]
        pairs += parse_qsl(query)
    else:
        pairs = _keywords(conninfo)
    return {keyword: value if keyword in _PUBLIC_KEYWORDS else "…" for keyword, value in pairs if value}


def _keywords(conninfo: str) -> list[tuple[str, str]]:
    """Return the keywords of a connection string with their values; of a URI, those that may be secret."""
    scheme, separator, rest = conninfo.strip().partition("://")
    if separator and scheme in ("postgres", "postgresql"):
        authority, _, query = rest.partition("?")
        user = authority.partition("/")[0].rpartition("@")[0]
        return [("password", user.partition(":")[2]), *parse_qsl(query)]
    return [(match[1], match[2].strip("'")) for match in _KEYWORD.finditer(conninfo)]


def _refuse_key(node: Node) -> object:
    raise PydanticKnownError("unexpected_keyword_argument")


Text = BeforeValidator(read_text)
Word = BeforeValidator(read_word)
Version = BeforeValidator(read_version)
Flag = BeforeValidator(read_flag)
Number = BeforeValidator(read_number)
Conninfo = BeforeValidator(read_conninfo)
Root = BeforeValidator(read_root)
Publication = BeforeValidator(read_publication)
Webhook = BeforeValidator(read_webhook)
AlertCondition = Annotated[
    str,
    BeforeValidator(read_alert_condition),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(held|failed|unpublished|slot|lag\s*>\s*0*[1-9][0-9]*\s*(s|min|h|d)"
            r"|wal\s*>\s*0*[1-9][0-9]*\s*(B|kB|MB|GB))$",
        }
    ),
]
HashKey = BeforeValidator(read_hash_key)
CatalogSchema = BeforeValidator(partial(_read_template, allowed=("schema", "pipeline")))
CatalogTable = BeforeValidator(partial(_read_template, allowed=("schema", "table", "pipeline")))
CatalogUri = BeforeValidator(read_catalog_uri)
Name = Annotated[str, Text]
Argument = Annotated[str, BeforeValidator(read_argument), WithJsonSchema({"type": ["string", "number"]})]
Mask = Annotated[str | None, BeforeValidator(read_mask), WithJsonSchema({"type": ["string", "null"]})]
ByteCount = Annotated[
    int,
    BeforeValidator(read_byte_count),
    WithJsonSchema(_BYTES_SCHEMA),
]
Rate = Annotated[
    int,
    BeforeValidator(read_rate),
    WithJsonSchema({"type": "string", "pattern": r"^0*[1-9][0-9]*\s*(B|kB|MB|GB)/s$"}),
]
Seconds = Annotated[
    int,
    BeforeValidator(read_seconds),
    WithJsonSchema(_SECONDS_SCHEMA),
]
Retention = Annotated[
    int | None,
    BeforeValidator(read_retention),
    WithJsonSchema({"type": "string", "pattern": r"^(forever|0*[1-9][0-9]*\s*(s|min|h|d))$"}),
]
Hours = Annotated[
    str,
    BeforeValidator(read_hours),
    WithJsonSchema({"type": "string", "pattern": f"^{_HOURS.pattern}$"}),
]
TimeZone = Annotated[str, BeforeValidator(read_time_zone)]
Limit = Annotated[
    int | None,
    BeforeValidator(read_limit),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "none"}]}),
]
AtOnce = Annotated[
    Literal["auto"] | int,
    BeforeValidator(read_at_once),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_AT_ONCE}]}),
]
SilverType = Annotated[
    str,
    BeforeValidator(read_silver_type),
    Field(examples=["BIGINT", "DOUBLE", "DECIMAL(20,4)", "STRING", "VARIANT", "ARRAY<FLOAT>"]),
]
#: A field that code sets and that is no key of the file.
Internal = Annotated[SkipJsonSchema[T], BeforeValidator(_refuse_key)]
