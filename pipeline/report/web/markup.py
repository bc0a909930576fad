"""HTML elements whose texts and attributes are escaped, so that names of the source are never markup.

Control characters and characters that change the direction of a text are written out. Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from datetime import datetime

from pipeline.delta.sql import utc_text
from pipeline.errors import one_line
from pipeline.units import format_time

_OPTION = re.compile(r"(?<!\S)(--?[a-z][\w-]*)")
_VOID = frozenset({"meta", "link", "br"})
# Marks of direction that take no part in an isolated text, and would be invisible in a name.
_MARKS = {0x061C: "\\u061c", 0x200E: "\\u200e", 0x200F: "\\u200f"}


class Html(str):
    """A text that is markup already."""

    __slots__ = ()


NOTHING = Html("")


def escape(text: str) -> Html:
    """Return a text that is neither markup nor a control character, in an element or an attribute."""
    shown = one_line(text).translate(_MARKS).encode("utf-8", "backslashreplace").decode("utf-8")
    return Html(html.escape(shown, quote=True))


def join(parts: Iterable[str], separator: str = "") -> Html:
    """Return the parts as one piece of markup; those that are no markup are escaped."""
    return Html(separator.join(part if isinstance(part, Html) else escape(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str | int | float | bool | None) -> Html:
    """Return an element. Children that are no markup are escaped, and so are the attributes.

    An attribute that is True has no value, one that is False or None is left out. `_` in its name is `-`,
    and is left out at the end (`class_`).
    """
    pairs = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        pairs.append(f" {attribute}" if value is True else f' {attribute}="{escape(str(value))}"')
    opening = f"<{name}{''.join(pairs)}>"
    return Html(opening if name in _VOID else f"{opening}{join(children)}</{name}>")


def name_text(text: object) -> Html:
    """Return a name whose own direction of writing has no effect on the text around it."""
    return tag("bdi", str(text))


def sentence_text(text: str) -> Html:
    """Return a sentence in which no line breaks within an option of a command, as in `--table`."""
    parts = _OPTION.split(text)  # every second one is an option
    return join(
        tag("span", part, class_="whole") if number % 2 else part for number, part in enumerate(parts)
    )


def time_text(moment: datetime | None) -> Html:
    """Return a time in UTC, empty if there is none."""
    if moment is None:
        return NOTHING
    return tag("time", format_time(moment), datetime=utc_text(moment))
