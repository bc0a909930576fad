"""The section `lineage`: where the jobs send OpenLineage events of their runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from pipeline.config.scalars import HashKey, Retention, Root, Text, Webhook
from pipeline.config.tables import FILE_SECTION


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where the jobs send OpenLineage events of their runs; without `path` and `url` nowhere."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    path: Annotated[
        str | None,
        Root,
        Field(
            description="File to which ingest and apply append OpenLineage events of their runs, one a line.",
            examples=["/var/log/pgdelta/lineage.jsonl"],
            json_schema_extra={"x-default": "nothing is written"},
        ),
    ] = None
    url: Annotated[
        str | None,
        Webhook,
        Field(
            description="Address to which they send each event by a POST.",
            examples=["http://marquez:5000/api/v1/lineage"],
            json_schema_extra={"x-default": "nothing is sent"},
        ),
    ] = None
    api_key: Annotated[
        str | None,
        HashKey,
        Field(
            description="Key that is sent to `url` as a bearer token, as a `${VARIABLE}` without a default.",
            examples=["${LINEAGE_KEY}"],
            json_schema_extra={"x-default": "none"},
        ),
    ] = field(default=None, repr=False)
    namespace: Annotated[
        str, Text, Field(description="Namespace of the jobs `<pipeline>.ingest` and `<pipeline>.apply`.")
    ] = "pgdelta"
    interval: Annotated[
        Retention,
        Field(
            description="Least time between two events of a continuous run while it goes on; `forever` sends"
            " only those of its start and end.",
            examples=["1h"],
            json_schema_extra={"x-default": "5min"},
        ),
    ] = 300

    @property
    def is_on(self) -> bool:
        """Whether events go anywhere."""
        return self.path is not None or self.url is not None


DEFAULT_LINEAGE = Lineage()
