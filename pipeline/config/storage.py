"""The section `storage` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from pipeline.config.scalars import Root, Text
from pipeline.config.tables import FILE_SECTION


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the lake is, without a slash at its end, and how its object store is reached."""

    __pydantic_config__: ClassVar[ConfigDict] = FILE_SECTION

    root: Annotated[
        str,
        Root,
        Field(
            description="Path of the lake: a folder, an object store (`s3://`, `gs://`, `az://`, `abfss://`),"
            " HDFS (`hdfs://`) or any other path that Spark can write. A relative path is relative to the"
            " working directory. Each pipeline has a lake of its own.",
            examples=["./lake", "s3://bucket/lake"],
        ),
    ] = "./lake"
    options: Annotated[
        Mapping[str, Annotated[str, Text]],
        Field(
            description="Options of the object store's client where the cloud's own environment variables do"
            " not say it, such as `endpoint`, `region` and `virtual_hosted_style_request`; of HDFS Hadoop's"
            " own settings. Credentials are refused unless they come from a `${VARIABLE}`.",
            examples=[{"endpoint": "http://localhost:9000", "region": "us-east-1"}],
            json_schema_extra={"x-default": "none"},
        ),
    ] = field(default_factory=dict, hash=False, repr=False)


DEFAULT_STORAGE = Storage()
