"""Credentials of the profile of `~/.aws` that `AWS_PROFILE` names: keys, or those of a program or a role."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from pipeline.delta.store.store import first_line
from pipeline.errors import ConfigError

HADOOPS_PROVIDER = "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider"
"""The class with which Hadoop's client for S3 reads the profile."""

_VARIABLE = "AWS_PROFILE"
_KEYS = ("access_key_id", "aws_access_key_id")
_KEPT = timedelta(minutes=5)  # boto3 renews what is about to expire


def profile_of(url: str, options: Mapping[str, str]) -> str | None:
    """Return the profile that has the credentials for a root; None if keys are given, or no profile is."""
    if urlparse(url).scheme not in ("s3", "s3a"):
        return None
    if any(name.lower() in _KEYS for name in options) or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    return os.environ.get(_VARIABLE) or None


def credentials_of(profile: str) -> Any:
    """Return what gives the client a profile's credentials; raise ConfigError if it has none."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise ConfigError(
            f"{_VARIABLE} names the profile {profile}, and reading profiles needs boto3. Run pip install"
            " boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile), ttl=_KEPT)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            f"{_VARIABLE} names the profile {profile}, which gives no credentials ({first_line(error)})."
            " Correct the profile, or unset the variable."
        ) from None
