"""Names of schemas and tables as segments of paths."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

# without the characters that a file system or Hadoop's globbing gives a meaning
_SAFE = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) not in "/\\%:*?[]{}")


@lru_cache(maxsize=1 << 14)
def path_segment(name: str) -> str:
    """Return a name as a path segment: unchanged if it is a valid one, else percent-encoded."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return "".join(c if ord(c) > 0x7E else quote(c, safe=_SAFE) for c in name)
