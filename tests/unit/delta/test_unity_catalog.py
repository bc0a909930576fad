"""What Unity Catalog is sent for a table, and what of its answers is believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.delta.catalogs import unity
from pipeline.delta.catalogs.entry import HeldColumns, catalog_error
from pipeline.delta.catalogs.unity import UnityCatalog, UnityFault
from pipeline.delta.schema import SchemaField, TableSchema
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError
from pipeline.http_requests import RequestFailed
from tests.support.unity_server import CATALOG, TOKEN, UnityServer, unity_server


@pytest.fixture
def server() -> Iterator[UnityServer]:
    """Give a server with a schema."""
    with unity_server() as found:
        found.schemas.add("s")
        yield found


def catalog_of(server: UnityServer, **options: Any) -> UnityCatalog:
    return UnityCatalog("shop", server.uri, CATALOG, **{"token": TOKEN, **options})


def held_of(catalog: UnityCatalog, *fields: SchemaField) -> HeldColumns:
    return catalog.held_columns(Snapshot("t", schema_string=TableSchema(fields).json))


NESTED = {
    "type": "struct",
    "fields": [{"name": "A", "type": "long", "nullable": False, "metadata": {}}],
}


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("long", "LONG", "bigint"),
        ("integer", "INT", "int"),
        ("decimal(10,2)", "DECIMAL", "decimal(10,2)"),
        ("timestamp_ntz", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("variant", "VARIANT", "variant"),
        ({"type": "array", "elementType": "string", "containsNull": True}, "ARRAY", "array<string>"),
        (NESTED, "STRUCT", "struct<a:bigint>"),
        ("interval day to second", "STRING", "string"),
    ],
)
def test_columns_have_types_of_unity_catalog(server: UnityServer, kind: Any, name: str, text: str) -> None:
    catalog = catalog_of(server)
    held = held_of(catalog, SchemaField("Größe", kind, {"comment": "of it"}, nullable=kind != "long"))
    catalog.create_table("s", "t", "file:/lake/t", held)
    [column] = server.tables["s", "t"]["columns"]
    assert (column["name"], column["type_name"], column["type_text"]) == ("Größe", name, text)
    assert (column["nullable"], column["comment"]) == (kind != "long", "of it")
    assert catalog.entries("s", ["t"])["t"].held == held


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("file:/lake/silver/s/gr%C3%B6 {}", "file:///lake/silver/s/gr%25C3%25B6%20%7B%7D"),
        ("/lake/t", "file:///lake/t"),
        ("s3a://bucket/lake/t", "s3://bucket/lake/t"),
        ("abfss://c@account.dfs.core.windows.net/t", "abfss://c@account.dfs.core.windows.net/t"),
    ],
)
def test_a_location_is_a_uri_with_escapes(server: UnityServer, path: str, location: str) -> None:
    catalog = catalog_of(server)
    catalog.create_table("s", "t", path, HeldColumns())
    assert server.tables["s", "t"]["storage_location"] == location
    entry = catalog.entries("s", ["t"])["t"]
    assert entry.points_to(path)
    assert entry.owner == "shop"


def test_columns_that_others_wrote_are_no_error(server: UnityServer) -> None:
    columns: list[dict[str, Any]] = [{"name": "b", "type_json": '"long"', "position": 1}, {"name": "a"}]
    columns.append({"name": "c", "type_json": "{", "position": 2, "comment": None})
    server.tables["s", "t"] = {"name": "t", "table_type": "MANAGED", "columns": columns}
    entry = catalog_of(server).entries("s", ["t"])["t"]
    assert entry.held == HeldColumns((("a", "", ""), ("b", "", ""), ("c", "", "")))
    assert not entry.points_to("/t")


def test_a_managed_table_is_never_dropped(server: UnityServer) -> None:
    catalog = catalog_of(server)
    server.tables["s", "t"] = {"name": "t", "table_type": "MANAGED", "data_source_format": "DELTA"}
    with pytest.raises(UnityFault, match="NOT_EXTERNAL"):
        catalog.drop_table("s", "t")
    with pytest.raises(UnityFault, match="NOT_EXTERNAL"):
        catalog.update_table("s", "t", "/t", HeldColumns())
    assert ("s", "t") in server.tables


def test_an_error_has_the_code_and_no_message_and_no_token(server: UnityServer) -> None:
    catalog = catalog_of(server)
    catalog.create_table("s", "t", "/t", HeldColumns())
    with pytest.raises(UnityFault) as taken:
        catalog.create_table("s", "t", "/t", HeldColumns())
    sentence = str(catalog_error(catalog, taken.value))
    assert sentence.startswith("Unity Catalog failed: TABLE_ALREADY_EXISTS (HTTP 400). Check the uri")
    other = catalog_of(server, token="planted-secret-of-another")
    with pytest.raises(UnityFault, match=r"^UNAUTHENTICATED \(HTTP 401\)$"):
        other.check()
    server.is_down = True
    with pytest.raises(RequestFailed, match=r"^the connection broke off") as failed:
        catalog.check()
    assert catalog.failure(failed.value) == str(failed.value)
    assert catalog.failure(ValueError(TOKEN)) is None


def test_a_catalog_that_does_not_exist_is_named(server: UnityServer) -> None:
    catalog_of(server).check()
    with pytest.raises(LakeError, match=r"^Unity Catalog has no catalog other. Create it"):
        UnityCatalog("shop", server.uri, "other", token=TOKEN).check()


def test_a_token_is_read_from_its_file_each_time(server: UnityServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    catalog = catalog_of(server, token=None, token_file=str(file))
    with pytest.raises(LakeError, match=r"^Unity Catalog has no token of one line. Check token_file"):
        catalog.check()
    for written in (b"planted\nsecret", b"\xff", b"geheim-\xc3\xb6", b"\n"):
        file.write_bytes(written)
        with pytest.raises(LakeError, match="no token of one line"):
            catalog.check()
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    catalog.check()
    with pytest.raises(LakeError, match="Check token of"):
        catalog_of(server, token="planted\nsecret").check()


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"name": "main"'])
def test_another_program_is_no_catalog(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(unity, "send_request", lambda *_, **__: (200, answer))
    with pytest.raises(UnityFault, match=r"^HTTP 200$"):
        UnityCatalog("shop", "http://127.0.0.1:1", CATALOG).check()
