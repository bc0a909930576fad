"""A hook of the documentation's build: a page that would load something from a network is an error.

MkDocs calls `on_post_page` with the HTML of each page. Links that a reader may follow are fine; scripts,
styles, fonts, images and frames have to come with the site.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from mkdocs.exceptions import PluginError

# tag → attribute that makes a browser load what it names
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
_LINKS = {"canonical", "next", "prev", "alternate"}  # rel of links that load nothing


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


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Refuse a page that loads something from a network."""
    del config
    if found := find_external(output):
        raise PluginError(f"{page.file.src_uri} loads {', '.join(found)} from a network.")
    return output
