"""A page of HTML as a tree, and what every page of pgdelta keeps; facts with 80 tables and hostile names."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise

from pipeline.metadata.events import Event
from pipeline.postgres.embedded import find_free_port
from pipeline.protocol.lsn import LSN
from pipeline.report.endpoint import Endpoint
from pipeline.report.metrics import RunMetrics
from pipeline.report.status_page import Status
from pipeline.report.table_details import SourceColumnType, TableDetails, list_columns
from pipeline.report.web.facts import PageFacts, SchemaVersion
from pipeline.report.web.history import RunHistory, Sample
from pipeline.report.web.site import Site, allowed_hosts
from pipeline.table_name import TableName
from tests.support.statuses import NOON, current_table, shop_status
from tools.docs_site import find_external

HOSTILE = (
    TableName("public", "<script>alert(1)</script>"),
    TableName("public", '"><img src=x onerror=alert(1)>'),
    TableName("public", 'it\'s "quoted" & &lt;b&gt;'),
    TableName("public", "\u202etxt.exe\u2066\u200f"),
    TableName("public", "line\nend\r\n\x00\x1b[2J"),
    TableName("a.b", "c.d/../e?x#y%2F"),
    TableName("public", "é" * 31 + "x"),  # 63 bytes
    TableName("public", "not UTF-8 \udce9"),
)
_VOID = {"meta", "link", "br"}


@dataclass
class Element:
    """An element with its attributes, and what is in it."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it."""
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def every(self, *tags: str) -> Iterator[Element]:
        """Give the elements with these tags in it, in the order of the page; all without tags."""
        for child in self.children:
            if isinstance(child, Element):
                if not tags or child.tag in tags:
                    yield child
                yield from child.every(*tags)

    def by_id(self, key: str) -> Element:
        """Return the element with an id."""
        [found] = [each for each in self.every() if each.attributes.get("id") == key]
        return found


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag, f"{tag} closes another element"

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def close(self) -> None:
        super().close()
        assert self._open == [self.root], f"not closed: {[each.tag for each in self._open]}"


def parse_page(html: str) -> Element:
    """Return a page as a tree, and check what every page keeps."""
    tree = _Tree()
    tree.feed(html)
    tree.close()
    page = tree.root
    assert find_external(html) == []
    assert "http:" not in html
    assert "https:" not in html
    ids = [each.attributes["id"] for each in page.every() if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    for each in page.every():
        assert not any(name.startswith("on") or name == "style" for name in each.attributes), each.attributes
        address = each.attributes.get("href")
        assert address is None or re.match(r"#|/(?!/)|tables/|\.\./|data:,", address), address
        if address is not None and address.startswith("#"):
            assert address[1:] in ids, address
        label = each.attributes.get("aria-labelledby")
        assert label is None or label in ids
    for table in page.every("table"):
        [caption] = table.every("caption")
        assert caption.text
        assert all(cell.attributes.get("scope") in ("col", "row") for cell in table.every("th"))
    [root] = page.every("html")
    assert root.attributes["lang"] == "en"
    assert [len(list(page.every(tag))) for tag in ("title", "h1", "main")] == [1, 1, 1]
    levels = [int(each.tag[1]) for each in page.every("h1", "h2", "h3")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    return page


def page_status() -> Status:
    """Return 80 tables: one is held, one is copied, eight have hostile names."""
    status = shop_status()
    kept = [
        table for table in status.tables if table.state not in ("failed", "refused", "behind", "detached")
    ]
    names = [*HOSTILE, *(TableName("more", f"table_{number:02}") for number in range(80))]
    more = [current_table(name) for name in names]
    tables = [*(table for table in kept if not table.awaits_copy), *more][:80]
    return replace(status, tables=tuple(tables))


class PageSource:
    """Facts that a site reads: which it read, and what happens then."""

    def __init__(self, facts: PageFacts) -> None:
        self.facts = facts
        self.reads: list[TableName | None] = []
        self.error: Exception | None = None

    def read(self, name: TableName | None) -> PageFacts:
        """Return the facts with the details of one table, or raise `error`."""
        self.reads.append(name)
        if self.error is not None:
            raise self.error
        return replace(self.facts, details={name: self.facts.details[name]} if name is not None else {})


@contextmanager
def served_pages(
    source: PageSource, samples: Sequence[Sample] = (), *, is_loopback: bool = True
) -> Iterator[int]:
    """Serve pages in a block and give their port; `samples` are those of the last hour."""
    port, waiting = find_free_port(), list(samples)

    def sample(now: float) -> Sample:
        return waiting.pop(0) if samples else Sample(now, 1, 1, 1, 1)

    hosts = allowed_hosts("127.0.0.1") if is_loopback else None
    history = RunHistory(sample, 0.001 if samples else 3600.0)
    with ExitStack() as stack:
        stack.enter_context(closing(history))
        while samples and len(history.samples) < len(samples):
            time.sleep(0.01)
        if samples:
            history.close()
        site = stack.enter_context(
            closing(Site("shop", "run", RunMetrics("shop"), history, source.read, hosts=hosts))
        )
        stack.enter_context(closing(Endpoint("127.0.0.1", port, site, option="--http", name="pages")))
        yield port
    names = [thread.name for thread in threading.enumerate()]
    assert not {"pages", "page reader", "page history"} & set(names)


def page_facts() -> PageFacts:
    """Return the facts of a page with 80 tables, each with details, some with events."""
    status = page_status()
    source = {"id": SourceColumnType("int8", True), "<b>": SourceColumnType("text", False)}
    details, events = {}, []
    for number, table in enumerate(status.tables):
        columns = list_columns(
            {"id": "BIGINT", "<b>": "STRING", "_commit_lsn": "BIGINT"},
            {"id": "id", "<b>": "<b>"},
            source,
            table.misfits,
        )
        details[table.name] = TableDetails(table, columns, f"/lake/silver/{number}", 16_000, LSN(5), "native")
        if table.event is not None:
            events.append(replace(table.event, recorded_at=NOON))
        if table.name in HOSTILE:
            sentence, at = f"Table {table.name} has column <b>.", NOON - timedelta(minutes=number)
            events.append(Event(*table.name, LSN(0x500000000 + number), "evolved", sentence, at))
    versions = (SchemaVersion(LSN(5), ("First version: id int8, <b> text.",)),)
    return PageFacts(status, NOON, details, events, dict.fromkeys(details, versions))
