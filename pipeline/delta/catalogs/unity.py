"""Tables in Unity Catalog, by the REST API that its open server and Databricks have in common.

Neither changes the columns of a table, so an entry that is to have others is dropped and created again. That
leaves the files of an external table as they are. A token is in no error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

from pipeline.delta.catalogs.entry import OWNER, HeldColumns, MetastoreEntry, path_parts
from pipeline.delta.schema import DeltaType, SchemaField, type_ddl
from pipeline.delta.table_log import Snapshot
from pipeline.errors import LakeError
from pipeline.http_requests import RequestFailed, send_request

_API = "/api/2.1/unity-catalog/"
_SECONDS = 30.0  # of each step of a request
_LONGEST = 64 << 20  # bytes of an answer
_FEW = 20  # tables, which are looked for one by one
_PAGE = 50  # the most tables of a page
_TYPES = (
    "boolean byte short long float double date timestamp timestamp_ntz string binary variant decimal"
    " array map struct"
)
_TYPE_NAMES = {"integer": "INT", **{name: name.upper() for name in _TYPES.split()}}
_CODE = re.compile("[A-Z][A-Z_]{0,99}")


class UnityFault(Exception):
    """An answer that is no success; its text is the code, because the message may have secrets."""

    def __init__(self, status: int, code: object) -> None:
        is_code = isinstance(code, str) and _CODE.fullmatch(code)
        super().__init__(f"{code} (HTTP {status})" if is_code else f"HTTP {status}")
        self.status = status


class UnityCatalog:
    """The schemas of one catalog."""

    label = "Unity Catalog"
    remedy = "Check the uri and the token of catalog.targets, and the privileges of its user"
    needs_spark = False
    holds_columns = True

    def __init__(
        self,
        pipeline: str,
        uri: str,
        catalog: str,
        *,
        token: str | None = None,
        token_file: str | None = None,
    ) -> None:
        """Mark entries as a pipeline's. A file of a token is read for each request."""
        self._pipeline = pipeline
        self._address = uri.rstrip("/") + _API
        self._catalog = catalog
        self._token, self._token_file = token, token_file

    def check(self) -> None:
        """Raise LakeError if there is no such catalog."""
        if self._get(f"catalogs/{quote(self._catalog, safe='')}") is None:
            raise LakeError(
                f"Unity Catalog has no catalog {self._catalog}. Create it, or correct uri and catalog of"
                " catalog.targets."
            )

    def held_columns(self, snapshot: Snapshot) -> HeldColumns:
        """Return the columns of a table's entry, whose types are JSON."""
        return HeldColumns.of(snapshot, _name_and_type)

    def entries(self, schema: str, tables: Collection[str]) -> dict[str, MetastoreEntry]:
        if len(tables) > _FEW:
            found = (table for table in self._all(schema) if table["name"] in tables)
        else:
            found = (table for name in tables if (table := self._get(self._path(schema, name))) is not None)
        return {table["name"]: _entry(table) for table in found}

    def _all(self, schema: str) -> Iterator[dict[str, Any]]:
        query = {"catalog_name": self._catalog, "schema_name": schema, "max_results": _PAGE}
        while (page := self._get(f"tables?{urlencode(query)}")) is not None:
            yield from page.get("tables") or ()
            if not page.get("next_page_token"):
                return
            query["page_token"] = page["next_page_token"]

    def create_schema(self, schema: str) -> None:
        if self._get(self._path(schema)) is None:  # who may use a schema may not create one
            self._request("POST", "schemas", {"name": schema, "catalog_name": self._catalog})

    def create_table(self, schema: str, table: str, path: str, held: HeldColumns | None) -> None:
        """Create an entry for the Delta table at a path; raise UnityFault if the name is taken."""
        self._create(schema, table, path, held or HeldColumns(), {})

    def update_table(self, schema: str, table: str, path: str, held: HeldColumns) -> None:
        """Give an entry other columns, by another entry; properties that others added stay."""
        properties = self._drop(schema, table).get("properties") or {}
        self._create(schema, table, path, held, properties)

    def drop_table(self, schema: str, table: str) -> None:
        """Drop an entry, which leaves the table's files as they are."""
        self._drop(schema, table)

    def failure(self, error: Exception) -> str | None:
        """Return the code of an answer, or why there is none."""
        return str(error) if isinstance(error, (UnityFault, RequestFailed)) else None

    def _create(
        self, schema: str, table: str, path: str, held: HeldColumns, properties: dict[str, str]
    ) -> None:
        scheme, host, folder = path_parts(path)
        body = {
            "name": table,
            "catalog_name": self._catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": f"{scheme or 'file'}://{host}{quote(folder)}",
            "columns": [_column(number, *column) for number, column in enumerate(held.columns)],
            "properties": properties | {OWNER: self._pipeline},
        }
        self._request("POST", "tables", body | ({"comment": held.comment} if held.comment else {}))

    def _drop(self, schema: str, table: str) -> dict[str, Any]:
        """Drop an entry and return it; raise UnityFault unless its files stay."""
        path = self._path(schema, table)
        found = self._request("GET", path)
        if not _entry(found).is_external_delta:  # the files of a managed one would be deleted
            raise UnityFault(409, "NOT_EXTERNAL")
        self._request("DELETE", path)
        return found

    def _path(self, *names: str) -> str:
        kind = "schemas" if len(names) == 1 else "tables"
        return f"{kind}/{quote('.'.join((self._catalog, *names)), safe='')}"

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return what is at a path, None if nothing is."""
        try:
            return self._request("GET", path)
        except UnityFault as fault:
            if fault.status != 404:
                raise
            return None

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content, token = None if body is None else json.dumps(body).encode("ascii"), self._read_token()
        status, answer = send_request(
            method, self._address + path, content, token=token, seconds=_SECONDS, longest=_LONGEST
        )
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        is_object = isinstance(found, dict)
        # The answer to a DELETE is any text; that of another program is no object.
        if status // 100 != 2 or not (is_object or method == "DELETE"):
            raise UnityFault(status, found.get("error_code") if is_object else None)
        return found if is_object else {}

    def _read_token(self) -> str | None:
        token = self._token
        try:
            if self._token_file is not None:
                token = Path(self._token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            token = ""
        if token is not None and not (token and token.isascii() and token.isprintable()):
            key = "token" if self._token_file is None else "token_file"
            raise LakeError(f"Unity Catalog has no token of one line. Check {key} of catalog.targets.")
        return token


def _name_and_type(field: SchemaField) -> tuple[str, str]:
    """Return the name of a column, and its name, type and nullability as JSON."""
    kind = field.type if _type_name(field.type) else "string"
    return field.name, _type_json(field.name, kind, field.nullable)


def _type_json(name: str, kind: DeltaType, nullable: bool) -> str:
    return json.dumps(
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _type_name(kind: DeltaType) -> str | None:
    """Return the name of a type in the API, None if it has none."""
    return _TYPE_NAMES.get((kind if isinstance(kind, str) else kind["type"]).partition("(")[0])


def _column(position: int, name: str, text: str, comment: str) -> dict[str, Any]:
    field = json.loads(text)
    kind, nullable = field["type"], field["nullable"]
    column = {"name": name, "position": position, "nullable": nullable, "type_name": _type_name(kind)}
    column |= {"type_text": type_ddl(kind).lower(), "type_json": text}
    if column["type_name"] == "DECIMAL":
        column["type_precision"], column["type_scale"] = map(int, re.findall("[0-9]+", kind))
    return column | ({"comment": comment} if comment else {})


def _entry(table: dict[str, Any]) -> MetastoreEntry:
    columns = sorted(table.get("columns") or (), key=lambda column: int(column.get("position") or 0))
    held = ((c["name"], _known_type(c), c.get("comment") or "") for c in columns)
    location, owner = table.get("storage_location"), (table.get("properties") or {}).get(OWNER)
    return MetastoreEntry(
        location and unquote(location),
        (table.get("table_type"), table.get("data_source_format")) == ("EXTERNAL", "DELTA"),
        HeldColumns(tuple(held), table.get("comment") or ""),
        owner,
    )


def _known_type(column: dict[str, Any]) -> str:
    """Return the type of a column in the form in which they are compared; nothing if it has another form."""
    try:
        field = json.loads(column["type_json"])
        return _type_json(field["name"], field["type"], field["nullable"])
    except (KeyError, TypeError, ValueError):
        return ""
