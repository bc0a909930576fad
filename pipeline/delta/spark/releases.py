"""The JARs that belong to each release of Spark: Delta's, and Hadoop's client for S3.

All releases have the same Delta. Artifacts are (group, name, version).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distribution

from pipeline.errors import LakeError

Jar = tuple[str, str, str]

DELTA_VERSION = "4.4.0"
SAFE_S3_HADOOP = (3, 4, 2)
"""The oldest Hadoop whose client for S3 can create an object on the condition that there is none."""

# the parts of Amazon's SDK that Hadoop's client uses: 12 MB, where the bundle that it asks for has 600 MB
_SDK = "software.amazon.awssdk"
_SDK_PARTS = (
    "annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums "
    "checksums-spi crt-core endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream http-auth-spi "
    "http-client-spi identity-spi json-utils metrics-spi netty-nio-client profiles protocol-core regions "
    "retries retries-spi s3 s3-transfer-manager sdk-core sts third-party-jackson-core utils"
)


@dataclass(frozen=True, slots=True)
class SparkRelease:
    """A release of Spark that is tested, and what has to be added to it.

    `hadoop` is the version that the client for S3 needs; `replaces_hadoop` says that Spark has an older one.
    """

    name: str
    hadoop: str
    aws_sdk: str
    analytics_accelerator: str
    more_sdk_parts: tuple[str, ...] = ()
    replaces_hadoop: bool = False

    @property
    def delta_jars(self) -> tuple[Jar, Jar]:
        """Delta Lake for this release."""
        return (
            ("io.delta", f"delta-spark_{self.name}_2.13", DELTA_VERSION),
            ("io.delta", "delta-storage", DELTA_VERSION),
        )

    @property
    def s3_jars(self) -> tuple[Jar, ...]:
        """Hadoop's client for S3, without what this Spark has already."""
        replaced = ("hadoop-client-api", "hadoop-client-runtime") if self.replaces_hadoop else ()
        return (
            *(("org.apache.hadoop", part, self.hadoop) for part in (*replaced, "hadoop-aws")),
            *((_SDK, part, self.aws_sdk) for part in (*_SDK_PARTS.split(), *self.more_sdk_parts)),
            (
                "software.amazon.s3.analyticsaccelerator",
                "analyticsaccelerator-s3",
                self.analytics_accelerator,
            ),
            ("software.amazon.eventstream", "eventstream", "1.0.1"),
            ("org.reactivestreams", "reactive-streams", "1.0.4"),
        )


SPARK_RELEASES = (
    # Spark 4.0 has Hadoop 3.4.1, whose client for S3 cannot create on a condition
    SparkRelease("4.0", "3.4.2", "2.29.52", "1.2.1", replaces_hadoop=True),
    SparkRelease("4.1", "3.4.2", "2.29.52", "1.2.1"),
    SparkRelease("4.2", "3.5.0", "2.35.4", "1.3.1", more_sdk_parts=("utils-lite",)),
)


def release_of(version: str) -> SparkRelease:
    """Return the release that a version of Spark belongs to; raise LakeError if none of them is supported."""
    name = ".".join(version.split(".")[:2])
    for release in SPARK_RELEASES:
        if release.name == name:
            return release
    known = ", ".join(release.name for release in SPARK_RELEASES[:-1]) + f" or {SPARK_RELEASES[-1].name}"
    raise LakeError(f"Spark {version} is not supported. Use Spark {known}.")


def installed_release() -> SparkRelease:
    """Return the release of the pyspark in this environment; raise LakeError if it is not supported."""
    return release_of(distribution("pyspark").version)
