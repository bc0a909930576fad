"""What `pgdelta tail` is asked to show, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pipeline.protocol.lsn import LSN

if TYPE_CHECKING:
    from pipeline.config.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """The options of the command line; None is what was not given."""

    config: Config | None = None
    conninfo: str | None = None
    slot: str | None = None
    publication: str | None = None
    route: Literal["walsender", "sql"] | None = None
    protocol_version: Literal[1, 2, 3, 4] | None = None
    streaming: Literal["off", "on", "parallel"] | None = None
    two_phase: bool = False
    temporary: bool = False
    acknowledge: bool = False
    follow: bool = True
    limit: int | None = None
    until_lsn: LSN | None = None
    tables: tuple[str, ...] = ()
    committed_only: bool = False
    as_json: bool = False
    has_values: bool = True
    value_length: int = 60
