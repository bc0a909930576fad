"""The page of a pipeline: complete, well-formed, escaped, and readable without colours."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pipeline.postgres.replication.wal_holder import WalHolder
from pipeline.protocol.lsn import LSN
from pipeline.report.status_page import Status
from pipeline.report.web import style
from pipeline.report.web.facts import PageFacts
from pipeline.report.web.markup import Html, escape, tag
from pipeline.report.web.page import PageFrame, headline, render_notice, render_page, render_table_page
from pipeline.table_name import TableName
from tests.support.statuses import NOON, current_table, shop_source, shop_status
from tests.support.web_pages import HOSTILE, Element, page_facts, parse_page


def rows_of(section: Element) -> list[list[str]]:
    """Return the texts of the cells of a section's first table, without its headings."""
    table = next(section.every("table"))
    return [[cell.text for cell in row.every("th", "td")] for row in table.every("tr")][1:]


def test_every_table_is_on_the_page_with_its_state_in_words() -> None:
    facts = page_facts()
    page = parse_page(render_page(facts))
    assert len(facts.status.tables) == 80
    rows = rows_of(page.by_id("tables"))
    names = [str(table.name) for table in facts.tables]
    assert [row[0] for row, name in zip(rows, names, strict=True) if name.isprintable()] == [
        name for name in names if name.isprintable()
    ]
    for row, table in zip(rows, facts.tables, strict=True):
        assert table.state in row[1]
    assert rows[0][:3] == ["public.orders", "\N{BLACK SQUARE} held", "17 s"]
    assert rows[0][5:] == ["15", "5/2BC00000", "held at 5/2BC00000"]
    assert rows[1][1] == "\N{DOWNWARDS ARROW} copying 30%"


def facts_of(name: TableName) -> PageFacts:
    return PageFacts(Status("shop", LSN(9), LSN(9), NOON, (current_table(name),)), NOON)


def test_sections_have_the_slot_copies_misfits_events_and_details() -> None:
    facts = page_facts()
    page = parse_page(render_page(facts))
    assert page.by_id("headline").text == "Needs attention: 1 held, of 80 tables."
    sections = [each.attributes["id"] for each in page.every("section")]
    assert sections == ["attention", "slot", "tables", "copies", "misfits", "events", "details"]
    links = next(page.every("nav")).every("a")
    assert [link.attributes["href"] for link in links] == [f"#{key}" for key in sections]
    slot = dict(zip_rows(page.by_id("slot")))
    assert slot["WAL retained"] == "285.3 MiB (reserved)"
    assert slot["limit"] == "max_slot_wal_keep_size 10.0 GiB; 9.7 GiB left; 2.8 days at this rate"
    assert slot["forecast"] == "2.8 days until the limit, if no job reads the slot"
    assert rows_of(page.by_id("misfits")) == [
        ["public.orders", "note", "3"],
        ["public.orders", "price", "12"],
    ]
    [bar] = page.by_id("copies").every("progress")
    assert (bar.attributes["max"], bar.attributes["value"]) == ("1", "0.300")
    assert bar.attributes["aria-label"]
    assert [row[1] for row in rows_of(page.by_id("events"))] == ["held", *["evolved"] * len(HOSTILE)]
    assert len(list(page.by_id("details").every("details"))) == 80
    first = next(page.by_id("details").every("details"))
    assert [each.text for each in first.every("h3")] == ["State", "Columns", "Events", "Schema history"]
    assert "First version: id int8, <b> text." in first.text


def zip_rows(section: Element) -> list[tuple[str, str]]:
    return [
        (label.text, value.text)
        for label, value in zip(section.every("th"), section.every("td"), strict=True)
    ]


@pytest.mark.promise("pages")
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_text_and_nothing_else(name: TableName) -> None:
    plain = render_page(facts_of(TableName("public", "plain")))
    html = render_page(facts_of(name))
    page = parse_page(html)
    assert [each.tag for each in page.every()] == [each.tag for each in parse_page(plain).every()]
    html.encode("utf-8")
    shown = next(page.by_id("tables").every("bdi")).text
    assert not any(ord(letter) < 32 or letter in "\u202e\u2066\u200f\u2028" for letter in shown)
    if str(name).isprintable():
        assert shown == str(name)
    table_page = parse_page(
        render_table_page(page_facts(), name, PageFrame(link=lambda _: "/tables/x", home="/"))
    )
    assert next(table_page.every("h1")).text == f"Table {shown}"


def test_a_page_without_details_links_to_pages_of_tables() -> None:
    facts = replace(page_facts(), details={})
    page = parse_page(render_page(facts, PageFrame(link=lambda name: f"/tables/{name.table[:1]}")))
    assert "details" not in [each.attributes.get("id") for each in page.every()]
    links = [each.attributes["href"] for each in page.by_id("tables").every("a")]
    assert len(links) == 80
    assert "/tables/o" in links


def test_a_page_without_tables_or_source_is_complete() -> None:
    empty = Status("shop", LSN(0), LSN(0), None, (), "shop", None, "Cannot connect to <host>.")
    page = parse_page(render_page(PageFacts(empty, NOON)))
    assert page.by_id("headline").text == "No tables yet."
    assert "Cannot connect to <host>." in page.by_id("slot").text
    assert "Silver has no table yet" in page.by_id("tables").text


def test_the_headline_names_what_needs_a_person_first() -> None:
    table = current_table(TableName("public", "t"))
    status = Status("shop", LSN(9), LSN(9), NOON, (table,), "shop", shop_source())
    assert headline(status) == "In order: 1 current, of 1 table."
    behind = replace(table, state="behind")
    assert headline(replace(status, tables=(behind, table))) == "At work: 1 behind, 1 current, of 2 tables."
    assert status.source is not None
    assert status.source.slot is not None
    lost = replace(status.source, slot=replace(status.source.slot, wal_status="lost"))
    assert headline(replace(status, source=lost)) == "Needs attention: the slot is lost, of 1 table."
    gone = replace(status.source, slot=None)
    assert "the slot does not exist" in headline(replace(status, source=gone))
    holder = WalHolder("The open transaction of PID 7 keeps the slot back.", 1 << 30, pid=7)
    held = replace(status, source=replace(shop_source(), holder=holder))
    assert "the slot's WAL is held back" in headline(held)
    full = replace(status, source=shop_source(safe=0), rate=1.0)
    assert "the slot can be lost" in headline(full)
    assert headline(shop_status()).startswith("Needs attention: 1 failed, 1 held, 1 refused, of 58")


def test_a_notice_is_a_page_with_a_way_back() -> None:
    page = parse_page(render_notice("No such table", "Pipeline <b> has no table x."))
    assert "Pipeline <b> has no table x." in page.text
    assert [link.attributes["href"] for link in page.every("a")] == ["/"]


def test_texts_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Html("<i>x</i>"), title='"<', hidden=True, lang=None) == (
        '<p title="&quot;&lt;" hidden>&lt;b&gt;<i>x</i></p>'
    )
    assert escape("a\u200fb\n") == "a\\u200fb\\n"


def test_every_state_has_a_sign_and_a_colour_of_its_own_kind() -> None:
    states = {table.state for table in shop_status().tables} | {"in doubt", "unpublished", "paused"}
    assert states == style.STATES.keys()
    signs = [sign for _, sign in style.STATES.values()]
    assert len(signs) == len(set(signs))


TEXTS = (
    *((text, back) for text in ("text", "quiet", "link") for back in ("page", "card")),
    *((color, f"{color}-back") for color in ("red", "amber", "blue", "green", "grey")),
    *((color, "card") for color in ("red", "amber", "blue", "green", "grey")),
)
"""Colours of texts, each with the one behind it."""


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours `#rrggbb` by WCAG 2, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_contrasts_are_at_least_those_of_wcag_aa(palette: Mapping[str, str]) -> None:
    low = {pair: contrast(palette[pair[0]], palette[pair[1]]) for pair in TEXTS}
    assert all(value >= 4.5 for value in low.values()), low
    lines = {name: contrast(palette[name], palette["card"]) for name in ("first-plot", "second-plot")}
    assert all(value >= 3.0 for value in lines.values()), lines


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_the_style_sheet_uses_only_colours_of_the_palettes() -> None:
    assert style.LIGHT.keys() == style.DARK.keys()
    assert set(re.findall(r"var\(--([a-z-]+)\)", style.STYLE)) <= style.LIGHT.keys()
    rules = re.sub(r"--[a-z-]+:#[0-9a-f]{6};", "", style.STYLE)
    assert not re.search(r"#[0-9a-f]{3,8}\b", rules)
    assert "url(" not in style.STYLE
    assert "<" not in style.STYLE


def test_the_policy_allows_the_style_sheet_of_the_page_only() -> None:
    page = parse_page(render_page(page_facts()))
    [sheet] = page.every("style")
    [policy] = [
        each.attributes["content"]
        for each in page.every("meta")
        if each.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert style.source_hash(sheet.text) in policy
    assert "default-src 'none'" in policy
    assert list(page.every("script")) == []
