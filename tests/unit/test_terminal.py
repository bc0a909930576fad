"""Lists, pairs and paragraphs: what fits is shown whole, what does not is cut or wrapped where words end."""

import sys
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pipeline.terminal import (
    print_error_line,
    print_lines,
    print_list,
    print_pairs,
    print_paragraph,
    shorten,
)


def console(width: int) -> tuple[Console, StringIO]:
    text = StringIO()
    return Console(file=text, width=width), text


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("public.orders", 13, "public.orders"),
        ("public.orders", 12, "public…rders"),
        ("public.orders_2026_01", 12, "public…26_01"),
        ("日本語の長い名前", 9, "日本…名前"),
        ("日本語の長い名前", 8, "日本…前"),
    ],
)
def test_a_long_name_keeps_both_ends(name: str, width: int, short: str) -> None:
    assert shorten(name, width) == short
    assert cell_len(short) <= width


@given(st.text(st.characters(categories=["L", "N"]), max_size=60), st.integers(2, 40))
def test_a_shortened_name_never_takes_more_cells(name: str, width: int) -> None:
    assert cell_len(shorten(name, width)) <= width


def test_a_sentence_is_wrapped_at_words_and_a_longer_word_at_the_edge() -> None:
    out, text = console(30)
    print_paragraph(out, "The slot shop is busy: process 4711 reads it.")
    print_paragraph(out, "x" * 40, indent=2)
    print_paragraph(out, "SELECT 1 FROM a\nDROP TABLE b, and more of it", prefix="-- ", hang=0)
    assert text.getvalue().splitlines() == [
        "The slot shop is busy:",
        "  process 4711 reads it.",
        "  " + "x" * 26,
        "    " + "x" * 14,
        "-- SELECT 1 FROM a\\nDROP TABLE",
        "-- b, and more of it",
    ]


def test_spaces_before_a_closing_line_indent_all_of_it() -> None:
    out, text = console(24)
    print_lines(out, ["apply shop: 3 changes", "  public.t: it is held by a type"])
    assert text.getvalue().splitlines() == [
        "apply shop: 3 changes",
        "  public.t: it is held",
        "    by a type",
    ]


def test_pairs_have_their_texts_next_to_their_labels() -> None:
    out, text = console(40)
    print_pairs(out, [("wal_level", "wal_level is replica; set it to logical"), ("", "→ restart")], indent=2)
    assert text.getvalue().splitlines() == [
        "  wal_level  wal_level is replica; set",
        "             it to logical",
        "             → restart",
    ]


def test_a_list_cuts_its_text_at_a_word_and_its_names_in_the_middle() -> None:
    rows = [("public.orders", "12", "held by its guards: what waits"), ("p." + "x" * 40, "3", "")]
    out, text = console(60)
    print_list(out, ("table", "changes", "what happens"), rows, right=("changes",))
    assert text.getvalue().splitlines() == [
        "table                     changes  what happens",
        "public.orders                  12  held by its guards: what…",
        "p.xxxxxxxxxx…xxxxxxxxxxx        3",
    ]


def test_a_list_without_a_limit_is_whole_and_has_no_spaces_at_the_end() -> None:
    out, text = console(1_000_000)
    print_list(out, ("table", "text"), [("a", "word " * 50), ("b\x1b[2J", "")])
    assert text.getvalue().splitlines() == [
        "table     text",
        "a         " + ("word " * 50).rstrip(),
        "b\\x1b[2J",
    ]


def test_markup_of_a_name_is_text() -> None:
    out, text = console(80)
    print_list(out, ("table", "text"), [("[red]a[/]", "[link=x]b")])
    print_paragraph(out, "[bold]c")
    assert text.getvalue().splitlines() == ["table      text", "[red]a[/]  [link=x]b", "[bold]c"]


@pytest.mark.parametrize(("is_terminal", "lines"), [(True, 2), (False, 1)])
def test_a_line_on_stderr_is_broken_at_words_in_a_terminal(
    is_terminal: bool, lines: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    print_error_line("pgdelta: A sentence of two lines, broken at a word.")
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == lines
    assert " ".join(" ".join(printed).split()) == "pgdelta: A sentence of two lines, broken at a word."
