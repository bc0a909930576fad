"""A server of Azurite, with the protocol of Azure's blob storage, on loopback and in a folder of its own."""

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from pipeline.postgres.embedded import find_free_port
from tests.support.paths import ROOT
from tests.support.processes import serving

CONTAINER = "lake"
_ACCOUNT = "devstoreaccount1"  # of every Azurite, and its key
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"  # of the protocol
_SECONDS = 120.0  # to start


def azurite() -> str | None:
    """Return the server's program, None if `make stores` has not installed it."""
    return shutil.which("azurite-blob", path=str(ROOT / "build" / "azurite" / "node_modules" / ".bin"))


@contextmanager
def azurite_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server for the block, and yield the options of its storage."""
    program = azurite()
    assert program is not None
    port = find_free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with serving(process):
        _make_container(url)
        yield {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": url,
            "allow_http": "true",
        }


def _make_container(url: str) -> None:
    """Make the container as soon as the server answers."""
    end = time.monotonic() + _SECONDS
    while True:
        try:
            urlopen(_creation(url), timeout=30).close()
            return
        except HTTPError:
            raise
        except (URLError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _creation(url: str) -> Request:
    """Return the signed request that makes the container."""
    date = formatdate(usegmt=True)
    # the method, eleven headers that are empty, two that are not, and the resource
    lines = ["PUT", *([""] * 11), f"x-ms-date:{date}", f"x-ms-version:{_VERSION}"]
    lines += [f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}", "restype:container"]
    digest = hmac.new(base64.b64decode(_KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _VERSION,
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Type": "",
    }
    return Request(f"{url}/{CONTAINER}?restype=container", data=b"", headers=headers, method="PUT")
