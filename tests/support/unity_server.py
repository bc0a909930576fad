"""A server with the part of Unity Catalog's REST API that concerns external tables, in this process.

Requests are held against the schemas of the API's own description (`api/all.yaml` of the open server), and
refused as that server does, in memory. It does not have what it has besides: permissions, other securables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from jsonschema import Draft202012Validator

from tests.support.http_doubles import listening

CATALOG = "main"
TOKEN = "secret-of-unity-catalog"
_API = "/api/2.1/unity-catalog/"
_PAGE = 50
_NAME = re.compile("[a-zA-Z0-9_@-]{1,255}")
_URI = re.compile(r"(?:file|s3|gs|abfss?)://(?:[\w.~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})+")
_TYPE_NAMES = (
    "BOOLEAN BYTE SHORT INT LONG FLOAT DOUBLE DATE TIMESTAMP TIMESTAMP_NTZ STRING BINARY DECIMAL INTERVAL"
    " ARRAY STRUCT MAP VARIANT CHAR NULL USER_DEFINED_TYPE TABLE_TYPE"
)
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_PROPERTIES = {"type": "object", "additionalProperties": _TEXT}
_COLUMN = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "type_text", "type_json", "type_interval_type", "comment"), _TEXT),
        **dict.fromkeys(("type_precision", "type_scale", "position", "partition_index"), _INTEGER),
        "type_name": {"enum": _TYPE_NAMES.split()},
        "nullable": {"type": "boolean"},
    },
    "required": ["name", "type_text", "type_json", "type_name", "position"],  # as its database does
    "additionalProperties": False,
}
_CREATE_SCHEMA = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "catalog_name", "comment", "storage_root"), _TEXT),
        "properties": _PROPERTIES,
    },
    "required": ["name", "catalog_name"],
    "additionalProperties": False,
}
_CREATE_TABLE = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "catalog_name", "schema_name", "storage_location", "comment"), _TEXT),
        "table_type": {"enum": ["MANAGED", "EXTERNAL", "METRIC_VIEW", "VIEW"]},
        "data_source_format": {"enum": ["DELTA", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"]},
        "columns": {"type": "array", "items": _COLUMN},
        "properties": _PROPERTIES,
    },
    "required": ["name", "catalog_name", "schema_name", "table_type", "columns"],
    "additionalProperties": False,
}
_PRIMITIVE = re.compile(
    r"boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|string|binary|variant"
    r"|decimal\(\d+,\d+\)"
)


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class UnityServer:
    """What a server has; `is_down` lets it answer nothing, and `requests` counts what it was sent."""

    def __init__(self) -> None:
        self.is_down = False
        self.requests = 0
        self.port = 0
        self.schemas: set[str] = set()
        self.tables: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def uri(self) -> str:
        """The address that users configure."""
        return f"http://127.0.0.1:{self.port}"

    def answer(
        self, method: str, kind: str, name: str, query: dict[str, str], body: Any
    ) -> dict[str, Any] | None:
        """Return the answer to a request; raise _Refused."""
        match method, kind, name.split(".") if name else []:
            case "GET", "catalogs", [catalog]:
                self._require(catalog)
                return {"name": catalog, "id": "1"}
            case "GET", "schemas", [catalog, schema]:
                self._require(catalog, schema)
                return {"name": schema, "catalog_name": catalog, "full_name": name}
            case "POST", "schemas", []:
                return self._create_schema(body)
            case "POST", "tables", []:
                return self._create_table(body)
            case "GET", "tables", []:
                return self._list(query)
            case (("GET" | "DELETE"), "tables", [catalog, schema, table]):
                self._require(catalog, schema)
                if (schema, table) not in self.tables:
                    raise _Refused(404, "TABLE_NOT_FOUND")
                if method == "GET":
                    return self.tables[schema, table]
                del self.tables[schema, table]
                return None
        raise _Refused(405, "UNIMPLEMENTED")  # such as a PATCH of a table

    def _require(self, catalog: str, schema: str | None = None) -> None:
        if catalog != CATALOG:
            raise _Refused(404, "CATALOG_NOT_FOUND")
        if schema is not None and schema not in self.schemas:
            raise _Refused(404, "SCHEMA_NOT_FOUND")

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        self._require(query["catalog_name"], query["schema_name"])
        size = int(query.get("max_results", _PAGE))
        _refuse_unless(0 <= size <= _PAGE)
        after = query.get("page_token", "")
        names = sorted(key for key in self.tables if key[0] == query["schema_name"] and key[1] > after)[:size]
        page: dict[str, Any] = {"tables": [self.tables[name] for name in names]}
        return page | ({"next_page_token": names[-1][1]} if len(names) == size else {})

    def _create_schema(self, body: Any) -> dict[str, Any]:
        _refuse_unless(Draft202012Validator(_CREATE_SCHEMA).is_valid(body) and _NAME.fullmatch(body["name"]))
        self._require(body["catalog_name"])
        if body["name"] in self.schemas:
            raise _Refused(400, "SCHEMA_ALREADY_EXISTS")
        self.schemas.add(body["name"])
        return dict(body)

    def _create_table(self, body: Any) -> dict[str, Any]:
        _refuse_unless(Draft202012Validator(_CREATE_TABLE).is_valid(body) and _NAME.fullmatch(body["name"]))
        self._require(body["catalog_name"], body["schema_name"])
        key = body["schema_name"], body["name"]
        if key in self.tables:
            raise _Refused(400, "TABLE_ALREADY_EXISTS")
        _refuse_unless(body["table_type"] == "EXTERNAL" and _URI.fullmatch(body.get("storage_location", "")))
        for column in body["columns"]:
            _check_column(column)
        _refuse_unless([c["position"] for c in body["columns"]] == [*range(len(body["columns"]))])
        location = body["storage_location"].rstrip("/")
        columns = [column | {"type_text": column["type_text"].lower()} for column in body["columns"]]
        more = {
            "table_id": "1",
            "owner": "x",
            "created_at": 1,
            "created_by": "x",
            "updated_at": 1,
            "updated_by": "x",
        }
        self.tables[key] = body | {"columns": columns, "storage_location": location, **more}
        return self.tables[key]


def _refuse_unless(is_valid: object) -> None:
    if not is_valid:
        raise _Refused(400, "INVALID_ARGUMENT")


def _check_column(column: dict[str, Any]) -> None:
    """Refuse a column whose `type_json` is not the field of a Delta schema that the rest describes."""
    field = json.loads(column["type_json"])
    _refuse_unless({*field} == {"name", "type", "nullable", "metadata"} and field["name"] == column["name"])
    _refuse_unless(field["nullable"] is column.get("nullable", True) and _is_type(field["type"]))
    if column["type_name"] == "DECIMAL":
        _refuse_unless(field["type"] == f"decimal({column['type_precision']},{column['type_scale']})")


def _is_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return _PRIMITIVE.fullmatch(kind) is not None
    if kind["type"] == "array":
        return isinstance(kind["containsNull"], bool) and _is_type(kind["elementType"])
    if kind["type"] == "map":
        return all(_is_type(kind[key]) for key in ("keyType", "valueType"))
    return all(_is_type(field["type"]) for field in kind["fields"])


@contextmanager
def unity_server() -> Iterator[UnityServer]:
    """Serve an empty catalog for the block."""
    found = UnityServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            found.requests += 1
            content = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if found.is_down:
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            kind, _, name = parts.path.removeprefix(_API).partition("/")
            try:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    raise _Refused(401, "UNAUTHENTICATED")
                body = json.loads(content) if content else None
                query = dict(parse_qsl(parts.query))
                answer = found.answer(self.command, kind, unquote(name), query, body)
                status, text = 200, b"200 OK" if answer is None else json.dumps(answer).encode()
            except _Refused as refused:
                status, error = refused.status, {"error_code": refused.code, "message": f"with {TOKEN}"}
                text = json.dumps(error).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_PATCH = _handle  # noqa: N815

    with listening(Handler) as found.port:
        yield found
