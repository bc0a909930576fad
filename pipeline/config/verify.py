"""The section `verify`: how often silver is proved to equal its source, and what that may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from pipeline.config.scalars import Rate, Retention
from pipeline.config.tables import FILE_SECTION


@dataclass(frozen=True, slots=True)
class Verify:
    """How often each silver table is proved to equal its source; None is never."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    every: Annotated[
        Retention,
        Field(
            description="How old the last proof of a table may become: then a continuous `pgdelta ingest` or"
            " `pgdelta run` proves it meanwhile, as `pgdelta prove --due` does, the oldest first.",
            examples=["1d", "12h"],
            json_schema_extra={"x-default": "proofs are made by command only"},
        ),
    ] = None
    budget: Annotated[
        Rate | None,
        Field(
            description="How much of the source's tables a proof reads a second at most.",
            examples=["20MB/s"],
            json_schema_extra={"x-default": "no limit"},
        ),
    ] = None


DEFAULT_VERIFY = Verify()
