"""The servers with Azure's and Google's protocols, as places of lakes: fixtures and parameters of `place`."""

from collections.abc import Iterator

import pytest

from pipeline.config.storage import Storage
from tests.support.stores import google as google_store
from tests.support.stores.azure import CONTAINER, azurite, azurite_server
from tests.support.stores.google import google_server

WITH_AZURITE = pytest.mark.skipif(azurite() is None, reason="make stores installs Azurite")
AZURE = pytest.param("azure", marks=[pytest.mark.slow, WITH_AZURITE])


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as options:
        yield Storage(f"az://{CONTAINER}", options)


@pytest.fixture(scope="module")
def google() -> Iterator[Storage]:
    with google_server() as options:
        yield Storage(f"gs://{google_store.BUCKET}", options)
