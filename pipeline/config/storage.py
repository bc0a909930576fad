"""The section `storage` of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pipeline.config.scalars import FileSection, Root, Text, key


@dataclass(frozen=True, slots=True)
class Storage(FileSection):
    """Where the lake is, without a slash at its end, and how its object store is reached."""

    root: Annotated[
        str,
        Root,
        key(
            "Path of the lake: a folder, an object store (`s3://`, `gs://`, `az://`, `abfss://`), HDFS"
            " (`hdfs://`) or any other path that Spark can write. A relative path is relative to the working"
            " directory. Each pipeline has a lake of its own.",
            examples=["./lake", "s3://bucket/lake"],
        ),
    ] = "./lake"
    options: Annotated[
        Mapping[str, Annotated[str, Text]],
        key(
            "Options of the object store's client where the cloud's own environment variables do not say it,"
            " such as `endpoint`, `region` and `virtual_hosted_style_request`; of HDFS Hadoop's own settings."
            " Credentials are refused unless they come from a `${VARIABLE}`.",
            default="none",
            examples=[{"endpoint": "http://localhost:9000", "region": "us-east-1"}],
        ),
    ] = field(default_factory=dict, hash=False, repr=False)
