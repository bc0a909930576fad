"""Write the page of a pipeline to a file, which is always a complete page."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.report.status_page import STATES
from pipeline.report.web.facts import PageFacts
from pipeline.report.web.page import headline, render_page
from pipeline.units import format_size


@dataclass(frozen=True, slots=True)
class WrittenPage:
    """The file that was written, its size in bytes, and the state of the pipeline."""

    file: str
    size: int
    facts: PageFacts

    def lines(self) -> list[str]:
        return [f"wrote {self.file}: {format_size(self.size)}", headline(self.facts.status)]

    def as_json(self) -> dict[str, Any]:
        counts = Counter(table.state for table in self.facts.status.tables)
        return {
            "file": self.file,
            "bytes": self.size,
            "states": {state: counts[state] for state in STATES if counts[state]},
        }


def write_page(facts: PageFacts, file: str) -> WrittenPage:
    """Write the page and replace the file in one step; raise ConfigError if that is not possible."""
    content = render_page(facts).encode("utf-8")
    replace_file(file, content, "--html")
    return WrittenPage(file, len(content), facts)


def replace_file(file: str, content: bytes, option: str) -> None:
    """Replace a file in one step; raise ConfigError, which names the option, if that is not possible.

    A file that exists keeps its mode. A link is replaced, and what it leads to is not written.
    """
    path = Path(file)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with open(temporary, "xb") as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            if path.is_file() and not path.is_symlink():
                temporary.chmod(path.stat().st_mode & 0o777)
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option}: Cannot write {file}: {error.strerror}. Give a file in a folder that can be written."
        ) from None
