"""The section `alerts`: what needs a person, and where the jobs send it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pipeline.config.scalars import AlertCondition, FileSection, Webhook, Word, alert_limit, key
from pipeline.config.yaml_document import Document, Items, Scalar

HELD_WAL_LIMIT = 512 << 20
"""Bytes of WAL that may be held back for the slot without an alert, if no `wal` is configured."""


@dataclass(frozen=True, slots=True)
class Alerting(FileSection):
    """What needs a person, and where the jobs send it; without `webhook` they send nothing."""

    webhook: Annotated[
        str | None,
        Webhook,
        key(
            "Address to which ingest and apply send each alert when it begins and when it is over, by POST."
            " Write it as a `${VARIABLE}` if it has a token.",
            default="nothing is sent",
            examples=["https://alerts.example.com/pgdelta"],
        ),
    ] = None
    on: Annotated[
        tuple[AlertCondition, ...],
        key(
            "What is an alert: `held` (a table waits for a person), `failed` (a table, its copy, its"
            " maintenance or a job failed), `unpublished` (a table that matches is not captured), `slot` (the"
            " slot is missing, lost, near its limit, no job reads it, or a transaction keeps more than 512"
            " MiB of WAL for it), `lag > TIME` (a change waits longer, or no ingest or apply runs), `wal >"
            " SIZE` (the server retains more WAL for the slot).",
            default="`[held, failed, unpublished, slot, lag > 1 h]`",
            json_schema_extra={"minItems": 1},
            examples=[["held", "lag > 5 min", "wal > 10 GB"]],
        ),
    ] = ("held", "failed", "unpublished", "slot", "lag > 1 h")
    format: Annotated[
        Literal["json", "slack"],
        Word,
        key("What is sent: an object with all fields (`json`), or Slack's `text` (`slack`)."),
    ] = "json"

    @property
    def lag_limit(self) -> int | None:
        """The longest lag in seconds, None for no limit."""
        return self._limit("lag")

    @property
    def held_wal_limit(self) -> int:
        """The most WAL in bytes that a transaction may hold back for the slot without being named."""
        limit = self.wal_limit
        return HELD_WAL_LIMIT if limit is None else limit

    @property
    def wal_limit(self) -> int | None:
        """The most WAL in bytes that the server may retain for the slot, None for no limit."""
        return self._limit("wal")

    def _limit(self, what: str) -> int | None:
        limits = (limit for each in self.on if (limit := alert_limit(each)) is not None)
        return min((value for kind, value in limits if kind == what), default=None)


def check_alerts(document: Document) -> None:
    """Raise ConfigError if no condition is an alert, or one is written twice."""
    written = document.get("alerts", "on")
    if not isinstance(written, Items):
        return
    if not written:
        raise document.error("No condition is named. Name some, or leave the key out.", "alerts", "on")
    kinds: list[str] = []
    for number, each in enumerate(written):
        text = each.expand() if isinstance(each, Scalar) else ""
        limit = alert_limit(text)
        if (kind := limit[0] if limit else text) in kinds:
            raise document.error("The condition is named twice. Keep one of the two.", "alerts", "on", number)
        kinds.append(kind)
