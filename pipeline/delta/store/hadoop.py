"""Settings and packages by which Hadoop's clients use the store of `storage.options`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlparse

from pipeline.delta.store.aws_profile import HADOOPS_PROVIDER, profile_of
from pipeline.delta.store.object_store import endpoint_of
from pipeline.delta.store.store import HDFS

_S3A = {
    "region": "endpoint.region",
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
}


def hadoop_settings(root: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings for a root; options that Hadoop does not know are left out."""
    scheme = urlparse(root).scheme
    if scheme == HDFS:
        return dict(options)
    if scheme not in ("s3", "s3a"):
        return {}
    settings = {"fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    plain = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    settings |= {f"fs.s3a.{_S3A[name]}": value for name, value in plain.items() if name in _S3A}
    if endpoint := endpoint_of(options):
        settings["fs.s3a.endpoint"] = endpoint
        is_hosted = plain.get("virtual_hosted_style_request", "false") == "true"
        settings["fs.s3a.path.style.access"] = str(not is_hosted).lower()
    if profile_of(root, options) is not None:
        settings["fs.s3a.aws.credentials.provider"] = HADOOPS_PROVIDER
    if "session_token" in plain or "token" in plain:
        provider = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        settings["fs.s3a.aws.credentials.provider"] = provider
    return settings
