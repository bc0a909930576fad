"""Print results for people: lists with one line a row, sentences wrapped at words, whatever the width.

A terminal gets lines that fit its width. A pipe or a file gets every line complete, so that it can be
searched; `COLUMNS` in the environment sets a width there too. Names of the source may hold line ends, escape
sequences and markup: they are written out, never interpreted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pipeline.errors import one_line

WIDE = 120
"""From this width on, a page may use more columns."""

_UNLIMITED = 1_000_000
_NARROWEST = 20
_GAP = "  "


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, which still has an exit code to return."""
        raise BrokenPipeError


def make_console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, or without a limit if there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    has_width = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return _Console(file=stream, width=None if has_width else _UNLIMITED, highlight=False)


def plain(text: str, style: str = "") -> Text:
    """Return a text that is shown as it is, control characters written out."""
    return Text(one_line(text), style)


def shorten(text: str, width: int) -> str:
    """Return a name that takes at most `width` cells: the middle is omitted, as the ends identify it."""
    if cell_len(text) <= width:
        return text
    kept = max(width - 1, 0)
    tail = ""
    for letter in reversed(text):
        if cell_len(letter + tail) > kept // 2:
            break
        tail = letter + tail
    return f"{set_cell_size(text, kept - cell_len(tail)).rstrip()}…{tail}"


def print_paragraph(
    console: Console, text: str | Text, *, indent: int = 0, hang: int = 2, prefix: str = ""
) -> None:
    """Print a text wrapped at words; the lines after the first are indented by `hang` cells more.

    `prefix` begins every line, for example that of an SQL comment.
    """
    for number, line in enumerate(_wrap(console, text, console.width - indent - hang - len(prefix))):
        _print(console, prefix, " " * (indent + (hang if number else 0)), line)


def print_error_line(line: str) -> None:
    """Print a line on stderr, wrapped at words in a terminal."""
    if sys.stderr.isatty():
        print_paragraph(make_console(stderr=True), line)
    else:
        print(line, file=sys.stderr, flush=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print closing lines as paragraphs; spaces before a line indent all of it."""
    for line in lines:
        text = line.lstrip(" ")
        print_paragraph(console, text, indent=len(line) - len(text))


def print_pairs(console: Console, pairs: Iterable[tuple[str | Text, str | Text]], *, indent: int = 0) -> None:
    """Print labels and their texts in two columns, each text wrapped next to its label."""
    known = [(_text(label), text) for label, text in pairs]
    width = max((label.cell_len for label, _ in known), default=0)
    width = min(width, max(console.width // 3, _NARROWEST))
    for label, text in known:
        if label.cell_len > width:
            label.plain = shorten(label.plain, width)
        label.pad_right(width - label.cell_len)
        start = indent + width + len(_GAP)
        for number, line in enumerate(_wrap(console, text, console.width - start)):
            _print(console, *((" " * indent, label, _GAP) if number == 0 else (" " * start,)), line)


def print_list(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Iterable[str] = (),
) -> None:
    """Print one line a row. The first column holds names, the last one text, which is cut if it is too long.

    The columns between them keep their width. Those whose headings are in `right` are aligned to the right.
    """
    table = [[_text(cell) for cell in row] for row in rows]
    titles = [Text(heading, "bold") for heading in headings]
    widths = [max(cell.cell_len for cell in column) for column in zip(titles, *table, strict=True)]
    rest = max(console.width - sum(widths[1:-1]) - len(_GAP) * (len(widths) - 1), 2 * _NARROWEST)
    if len(widths) > 1 and widths[0] + widths[-1] > rest:
        widths[0] = min(widths[0], max(rest - widths[-1], rest // 2))
        widths[-1] = rest - widths[0]
    aligned = [heading in set(right) for heading in headings]
    for row in (titles, *table):
        if row[0].cell_len > widths[0]:
            row[0].plain = shorten(row[0].plain, widths[0])
        _cut(row[-1], widths[-1])
        line: list[Text | str] = []
        for place, (cell, width, is_right) in enumerate(zip(row, widths, aligned, strict=True)):
            padding = " " * (width - cell.cell_len)
            line += [padding, cell] if is_right else [cell, padding]
            line.append(_GAP if place < len(row) - 1 else "")
        _print(console, *line)


def _text(text: str | Text) -> Text:
    return plain(text) if isinstance(text, str) else text


def _cut(text: Text, width: int) -> None:
    """Cut a text that is too long behind the last word that fits."""
    if text.cell_len <= width:
        return
    head = set_cell_size(text.plain, width - 1)
    words = head if text.plain[len(head)].isspace() else head.rpartition(" ")[0]
    text.plain = f"{words.rstrip() or head}…"


def _wrap(console: Console, text: str | Text, width: int) -> Iterator[Text]:
    return iter(_text(text).wrap(console, max(width, _NARROWEST), overflow="fold") or [Text()])


def _print(console: Console, *parts: str | Text) -> None:
    line = Text.assemble(*parts)
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)
