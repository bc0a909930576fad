"""A server of SeaweedFS with S3's protocol on loopback, in a folder of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from pipeline.postgres.embedded import find_free_port
from tests.support.processes import serving

_KEY = "test"  # of the server's only user, and its secret
_SECONDS = 60.0  # to start


def weed() -> Path | None:
    """Return the server's program in this environment, None if `make stores` has not installed it."""
    path = Path(sys.executable).parent / "weed"
    return path if path.exists() else None


@contextmanager
def seaweed_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server for the block, and yield the options of its storage."""
    program = weed()
    assert program is not None
    identity = {"name": "test", "credentials": [{"accessKey": _KEY, "secretKey": _KEY}]}
    identity["actions"] = ["Admin", "Read", "Write", "List"]
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    ports = {name: _free_port() for name in ("master.port", "volume.port", "filer.port", "s3.port")}
    command = [str(program), "server", f"-dir={folder / 'data'}", "-s3", f"-s3.config={folder / 's3.json'}"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{ports['s3.port']}"
    options = {
        "aws_endpoint": url,
        "aws_region": "us-east-1",
        "aws_access_key_id": _KEY,
        "aws_secret_access_key": _KEY,
    }
    with serving(process):
        _wait_for(url)
        _make_bucket(options)
        yield options


def _free_port() -> int:
    """Return a port that is free, and whose port for gRPC, 10,000 above, exists."""
    while True:
        if (port := find_free_port()) < 55_000:
            return port


def _wait_for(url: str) -> None:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        try:
            urlopen(url, timeout=30).close()
        except HTTPError as error:
            if error.code == 403:  # it asks who we are
                return
        except (URLError, OSError):
            pass
        time.sleep(0.2)
    raise TimeoutError("SeaweedFS did not start")


def _make_bucket(options: dict[str, str]) -> None:
    """Make the bucket by an object in it; the server's volumes may join later than it answers."""
    config: Any = options
    store = S3Store("lake", config=config, client_options={"allow_http": True})
    end = time.monotonic() + _SECONDS
    while True:
        try:
            obstore.put(store, "ready", b"")
            return
        except BaseError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
