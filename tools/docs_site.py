"""Hooks of the documentation's build.

Options stay on one line, nothing is loaded from a network, and the page of guarantees ends with the tests of
each promise.

MkDocs calls `on_page_content` with the HTML of each page's text, and `on_post_page` with the whole page.
Links that a reader may follow are fine; scripts, styles, fonts, images and frames have to come with the site.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from mkdocs.exceptions import PluginError

from tools.promises import PAGE, read_tests, table

# tag → attribute that makes a browser load what it names
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
_LINKS = {"canonical", "next", "prev", "alternate"}  # rel of links that load nothing

_CODE_SPANS = re.compile(r"(<pre\b.*?</pre>)|<code>[^<]*</code>", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")


class _Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(_LOADS.get(tag, ""))
        if address and values.get("rel") not in _LINKS:
            self.addresses.append(address)


def find_external(html: str) -> list[str]:
    """Return the addresses of other hosts that a browser loads with a page."""
    parser = _Loads()
    parser.feed(html)
    return [address for address in parser.addresses if "//" in address.partition("?")[0]]


def keep_options(html: str) -> str:
    """Mark the options in code spans, which a browser otherwise breaks after a hyphen; code blocks scroll."""
    return _CODE_SPANS.sub(
        lambda span: span[1] or _OPTION.sub(r'<span class="option">\g<0></span>', span[0]), html
    )


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append the tests of each promise to the page of guarantees."""
    if not PAGE.match(f"*/{page.file.src_uri}"):
        return markdown
    rows = table(markdown, read_tests())
    heading = '\n\n## The tests of each promise\n\n<div class="long-names" markdown>\n\n'
    return f"{markdown}{heading}{rows}\n\n</div>\n"


def on_page_content(html: str, **_: Any) -> str:
    """Keep the options of a page on one line."""
    return keep_options(html)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Refuse a page that loads something from a network."""
    del config
    if found := find_external(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(found)} from a network.")
    return output
