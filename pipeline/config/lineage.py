"""The section `lineage`: where the jobs send OpenLineage events of their runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pipeline.config.scalars import FileSection, HashKey, Retention, Root, Text, Webhook, key


@dataclass(frozen=True, slots=True)
class Lineage(FileSection):
    """Where the jobs send OpenLineage events of their runs; without `path` and `url` nowhere."""

    path: Annotated[
        str | None,
        Root,
        key(
            "File to which ingest and apply append OpenLineage events of their runs, one a line.",
            default="nothing is written",
            examples=["/var/log/pgdelta/lineage.jsonl"],
        ),
    ] = None
    url: Annotated[
        str | None,
        Webhook,
        key(
            "Address to which they send each event by a POST.",
            default="nothing is sent",
            examples=["http://marquez:5000/api/v1/lineage"],
        ),
    ] = None
    api_key: Annotated[
        str | None,
        HashKey,
        key(
            "Key that is sent to `url` as a bearer token, as a `${VARIABLE}` without a default.",
            default="none",
            examples=["${LINEAGE_KEY}"],
        ),
    ] = field(default=None, repr=False)
    namespace: Annotated[
        str, Text, key("Namespace of the jobs `<pipeline>.ingest` and `<pipeline>.apply`.")
    ] = "pgdelta"
    interval: Annotated[
        Retention,
        key(
            "Least time between two events of a continuous run while it goes on; `forever` sends only those"
            " of its start and end.",
            default="5min",
            examples=["1h"],
        ),
    ] = 300

    @property
    def is_on(self) -> bool:
        """Whether events go anywhere."""
        return self.path is not None or self.url is not None
