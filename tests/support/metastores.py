"""Catalogs of other programs on loopback: AWS Glue by moto, Spark's Hive metastore, Unity Catalog."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.jobs import CatalogService
from pipeline.delta.catalogs.entry import HeldColumns, MetastoreEntry, TableCatalog
from pipeline.delta.catalogs.glue import GlueCatalog
from pipeline.delta.catalogs.hive import HiveCatalog
from pipeline.delta.catalogs.unity import UnityCatalog
from pipeline.delta.schema import type_ddl
from pipeline.delta.spark.jars import check_java, spark_folder
from pipeline.http_requests import send_request
from tests.support.stores.s3 import S3Server, s3_server
from tests.support.unity_server import CATALOG, TOKEN, UnityServer, unity_server

OTHERS = "other"
"""The pipeline whose mark the entries of others have."""
GLUE_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "secret-of-aws",
    "AWS_DEFAULT_REGION": "eu-central-1",
}
_SITE = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:;databaseName={folder}/db;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "hive.metastore.warehouse.dir": "{folder}/warehouse",
    "hive.async.log.enabled": "false",  # Spark does not ship what it needs
}
_START_SECONDS = 180.0
UNITY_SERVER = os.environ.get("UNITY_SERVER")
"""The address of a server of Unity Catalog, if one runs."""


class Place:
    """A catalog that a test uses besides the pipeline, and how to stop it for a while."""

    def __init__(self, service: CatalogService, catalog: TableCatalog) -> None:
        self.service = service
        self._catalog = catalog  # its entries have the mark of another pipeline

    def entry(self, schema: str, table: str) -> MetastoreEntry | None:
        """Return an entry."""
        return self._catalog.entries(schema, [table]).get(table)

    def columns(self, schema: str, table: str) -> dict[str, str]:
        """Return the types of an entry's columns, without pgdelta's own."""
        return {name: kind for name, kind, _ in self.held(schema, table) if not name.startswith("_")}

    def held(self, schema: str, table: str) -> tuple[tuple[str, str, str], ...]:
        """Return the columns of an entry with their comments."""
        entry = self.entry(schema, table)
        assert entry is not None
        assert entry.held is not None
        return entry.held.columns

    def create(self, schema: str, table: str, path: str) -> None:
        """Create the entry of another program."""
        self._catalog.create_schema(schema)
        self._catalog.create_table(schema, table, path, HeldColumns((("mine", "int", ""),)))

    def drop(self, schema: str, table: str) -> None:
        """Drop an entry, as its owner may."""
        self._catalog.drop_table(schema, table)

    def stop(self) -> None:
        """Let the catalog fail until it starts."""
        raise NotImplementedError

    def start(self) -> None:
        """Let the catalog answer again."""
        raise NotImplementedError


class GluePlace(Place):
    """AWS Glue by moto."""

    def __init__(self, server: S3Server) -> None:
        super().__init__(CatalogService("glue"), GlueCatalog(OTHERS, None, None))
        self._server = server
        self.url = server.url

    def stop(self) -> None:
        self._server.fault = lambda request: "denied"

    def start(self) -> None:
        self._server.fault = lambda request: None

    @property
    def calls(self) -> int:
        """How many calls it had."""
        return self._server.requests

    def parameters(self, schema: str, table: str) -> dict[str, str]:
        """Return the parameters of an entry."""
        parameters: dict[str, str] = self._table(schema, table)["Parameters"]
        return parameters

    def add_parameter(self, schema: str, table: str, name: str, value: str) -> None:
        """Give an entry a parameter, as another program may."""
        found = self._table(schema, table)
        kept = {key: found[key] for key in ("Name", "TableType", "StorageDescriptor")}
        changed = {**kept, "Parameters": {**found["Parameters"], name: value}}
        self._client().update_table(DatabaseName=schema, TableInput=changed)

    def _table(self, schema: str, table: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client().get_table(DatabaseName=schema, Name=table)["Table"]
        return found

    def _client(self) -> Any:
        import boto3

        return boto3.client("glue")


class UnityPlace(Place):
    """Unity Catalog by the double of its server, or by a server at an address."""

    def __init__(self, uri: str, token: str | None) -> None:
        service = CatalogService("unity", uri=uri, catalog=CATALOG, token=token)
        super().__init__(service, UnityCatalog(OTHERS, uri, CATALOG, token=token))

    def held(self, schema: str, table: str) -> tuple[tuple[str, str, str], ...]:
        """Return the columns of an entry with their comments, and types as Hive has them."""
        columns = super().held(schema, table)
        return tuple((name, type_ddl(json.loads(kind)["type"]).lower(), text) for name, kind, text in columns)

    def create(self, schema: str, table: str, path: str) -> None:
        """Create the entry of another program."""
        self._catalog.create_schema(schema)
        kind = '{"name":"mine","type":"integer","nullable":true,"metadata":{}}'
        self._catalog.create_table(schema, table, path, HeldColumns((("mine", kind, ""),)))


class UnityDoublePlace(UnityPlace):
    """Unity Catalog by the double of its server."""

    def __init__(self, server: UnityServer) -> None:
        super().__init__(server.uri, TOKEN)
        self._server = server

    def stop(self) -> None:
        self._server.is_down = True

    def start(self) -> None:
        self._server.is_down = False

    @property
    def calls(self) -> int:
        """How many calls it had."""
        return self._server.requests

    def parameters(self, schema: str, table: str) -> dict[str, str]:
        """Return the properties of an entry."""
        return dict(self._server.tables[schema, table]["properties"])

    def add_parameter(self, schema: str, table: str, name: str, value: str) -> None:
        """Give an entry a property, as another program may."""
        self._server.tables[schema, table]["properties"][name] = value


class UnityServerPlace(UnityPlace):
    """Unity Catalog by the server at `UNITY_SERVER`, in its catalog `main`."""

    def __init__(self) -> None:
        uri, token = UNITY_SERVER or "", os.environ.get("UNITY_TOKEN")
        super().__init__(uri, token)
        for schema in ("public", "moved"):  # of the test before
            address = f"{uri}/api/2.1/unity-catalog/schemas/{CATALOG}.{schema}?force=true"
            send_request("DELETE", address, token=token, seconds=60)

    def stop(self) -> None:
        pytest.skip("others run this server")


class HivePlace(Place):
    """A Hive metastore in a process of its own, which stores in a folder."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        uri = f"thrift://127.0.0.1:{self.port}"
        super().__init__(CatalogService("hive", uri=uri), HiveCatalog(OTHERS, uri))
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        (folder / "warehouse").mkdir()
        properties = (
            f"<property><name>{name}</name><value>{value.format(folder=folder)}</value></property>"
            for name, value in _SITE.items()
        )
        (folder / "hive-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")

    def start(self) -> None:
        jars = spark_folder() / "jars"
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dderby.system.home={self._folder}"]
        command: list[Any] = [check_java(), *options, f"-Djava.io.tmpdir={self._folder}"]
        command += ["-cp", f"{self._folder}:{jars}/*", "org.apache.hadoop.hive.metastore.HiveMetaStore"]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*command, "-p", str(self.port)], cwd=self._folder, stdout=log, stderr=log
            )
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def glue_place() -> Iterator[GluePlace]:
    """Serve an empty AWS Glue for the block."""
    with s3_server() as server:
        yield GluePlace(server)


@contextmanager
def unity_place() -> Iterator[UnityDoublePlace]:
    """Serve an empty Unity Catalog for the block."""
    with unity_server() as server:
        yield UnityDoublePlace(server)


@contextmanager
def hive_place(folder: Path) -> Iterator[HivePlace]:
    """Serve an empty Hive metastore for the block."""
    place = HivePlace(folder)
    place.start()
    try:
        yield place
    finally:
        place.stop()
