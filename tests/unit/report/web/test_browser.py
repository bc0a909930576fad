"""The pages in a real browser: sizes, colours, updates, no script, and what a screen reader gets."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.report.web import site
from pipeline.report.web.write_page import write_page
from tests.support.browser import Browser, find_browser
from tests.support.web_pages import HOSTILE, PageSource, page_facts, served_pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed"),
]

ROWS = "document.querySelectorAll('#tables tbody tr').length"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as found:
        yield found


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_page_is_cut_off(browser: Browser, tmp_path: Path, width: int, is_dark: bool) -> None:
    """The pictures stay in the test's folder, for a person to check."""
    facts = page_facts()
    write_page(facts, str(tmp_path / "page.html"))
    with served_pages(PageSource(facts)) as port:
        addresses = {
            "page": f"http://127.0.0.1:{port}/",
            "table": f"http://127.0.0.1:{port}/tables/public.orders",
            "missing": f"http://127.0.0.1:{port}/tables/x.y",
            "file": (tmp_path / "page.html").as_uri(),
        }
        for name, address in addresses.items():
            browser.open(address, width=width, is_dark=is_dark)
            browser.run("document.querySelectorAll('details').forEach((each) => each.open = true)")
            assert browser.run("document.documentElement.scrollWidth") <= width, name
            cut_off = browser.run(
                "[...document.querySelectorAll('section td, section th, li, p, caption')].filter((each) => "
                "each.offsetParent && getComputedStyle(each).position !== 'absolute' && "
                f"each.getBoundingClientRect().right > {width}).map((each) => each.textContent)"
            )
            assert cut_off == [], name
            back = browser.run("getComputedStyle(document.body).backgroundColor")
            assert back == ("rgb(18, 22, 28)" if is_dark else "rgb(246, 247, 249)")
            (tmp_path / f"{name}.png").write_bytes(browser.picture(is_whole=True))
    assert [error for error in browser.errors if "404" not in error] == []


def test_a_page_updates_itself_and_keeps_what_the_reader_does(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "AGE", 0.0)
    monkeypatch.setattr(site, "_DUTY", 0.0)
    facts = page_facts()
    source = PageSource(facts)
    text = "document.getElementById('headline').textContent"
    with served_pages(source) as port:
        browser.open(f"http://127.0.0.1:{port}/tables/public.orders")
        browser.run("document.querySelector('#events th').dataset.mark = 'before'")
        browser.wait_for("!document.querySelector('#events th').dataset.mark")  # it was replaced
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.run(text) == "Needs attention: 1 held, of 80 tables."
        browser.run("document.querySelector('#tables a[href=\"tables/public.orders\"]').focus()")
        kept = [table for table in facts.status.tables if table.state != "held"]
        source.facts = replace(facts, status=replace(facts.status, tables=tuple(kept)))
        browser.wait_for(f"{text} === 'At work: 1 copying, 78 current, of 79 tables.'")
        assert browser.run(ROWS) == 79
        browser.run("document.querySelector('#tables a').focus()")
        link = browser.run("document.activeElement.getAttribute('href')")
        browser.run("document.querySelector('#tables tr').dataset.mark = 'before'")
        browser.wait_for("!document.querySelector('#tables tr').dataset.mark")
        assert browser.run("document.activeElement.getAttribute('href')") == link
        browser.run("document.getElementById('pause').click()")
        assert browser.run("document.getElementById('pause').textContent") == "Resume updates"
        reads = len(source.reads)
        browser.command(
            "Runtime.evaluate", expression="new Promise((d) => setTimeout(d, 7000))", awaitPromise=True
        )
        assert len(source.reads) == reads
        source.facts = facts
        browser.run("document.getElementById('pause').click()")
        browser.wait_for(f"{ROWS} === 80")
    browser.wait_for("document.getElementById('notice').textContent.includes('does not answer')")
    assert browser.run(ROWS) == 80


def test_open_details_stay_open_and_a_link_opens_them(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "AGE", 0.0)
    facts = page_facts()
    write_page(facts, str(tmp_path / "page.html"))
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.run("document.scripts.length") == 0
    browser.run("document.querySelector('#tables a').click()")
    browser.wait_for("document.querySelectorAll('details[open]').length === 1")
    assert "public.orders" in browser.run("document.querySelector('details[open] summary').textContent")
    assert browser.errors == []


def test_a_page_is_whole_without_scripts(tmp_path: Path) -> None:
    with (
        Browser(tmp_path / "profile", scripts=False) as browser,
        served_pages(PageSource(page_facts())) as port,
    ):
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.run(ROWS) == 80
        assert browser.run("document.getElementById('pause').offsetParent === null")
        assert browser.run("document.querySelector('noscript meta').httpEquiv") == "refresh"


def test_hostile_names_run_nothing(browser: Browser) -> None:
    with served_pages(PageSource(page_facts())) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        assert browser.run("document.scripts.length") == 1
        assert browser.run("document.images.length") == 0
        names = browser.run("[...document.querySelectorAll('#tables tbody th')].map((e) => e.textContent)")
        assert {str(name) for name in HOSTILE if str(name).isprintable()} <= set(names)
        for number in range(3):
            browser.run(f"document.querySelectorAll('#tables a')[{number}].click()")
            browser.wait_for(
                "document.readyState === 'complete' && document.querySelector('#columns') !== null"
            )
            assert browser.run("document.scripts.length") == 1
            browser.open(f"http://127.0.0.1:{port}/")
    assert browser.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_a_screen_reader_gets_tables_headings_and_states(browser: Browser, width: int) -> None:
    with served_pages(PageSource(page_facts())) as port:
        browser.open(f"http://127.0.0.1:{port}/", width=width)
        found = browser.accessible_names()
    roles = [role for role, _ in found]
    assert {"banner", "main", "contentinfo", "navigation", "status", "progressbar"} <= set(roles)
    headings = [name for role, name in found if role == "heading"]
    assert headings[:4] == ["Pipeline shop", "Needs attention", "Slot and WAL", "The last hour"]
    assert sum(role == "rowheader" for role in roles) > 80
    assert sum(role == "columnheader" for role in roles) > 8
    assert sum(role == "table" for role in roles) == 5
    assert all(name for role, name in found if role in ("link", "button", "progressbar", "heading", "table"))
    texts = [name for role, name in found if role == "StaticText"]
    assert sum(text == "current" for text in texts) == 78
    assert "\N{BLACK CIRCLE} " not in texts
