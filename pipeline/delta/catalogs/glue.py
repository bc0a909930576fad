"""Tables in the Data Catalog of AWS Glue, by boto3: the optional extra `aws`.

Region, credentials and endpoint are those of AWS's own settings: variables, profiles and roles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

from pipeline.delta.catalogs.entry import (
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    SERDE,
    HeldColumns,
    MetastoreEntry,
    parameters_of,
    serde_parameters,
)
from pipeline.errors import LakeError

_FEW = 20  # tables, which are looked for one by one


class GlueCatalog:
    """The databases of one account and region; schemas are databases."""

    label = "AWS Glue"
    remedy = "Check its region, and the credentials and permissions of this process"
    needs_spark = False
    holds_columns = True
    held_columns = staticmethod(HeldColumns.of)

    def __init__(self, pipeline: str, region: str | None, catalog_id: str | None) -> None:
        """Mark entries as a pipeline's; without an id the catalog is that of the account."""
        self._pipeline = pipeline
        self._region = region
        self._catalog = {} if catalog_id is None else {"CatalogId": catalog_id}

    @cached_property
    def _client(self) -> Any:
        try:
            from boto3.session import Session
            from botocore.config import Config
        except ImportError:
            raise LakeError(
                "Tables are registered in AWS Glue by boto3. Run pip install boto3, or remove the target from"
                " catalog.targets."
            ) from None
        config = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
        return Session().client("glue", region_name=self._region, config=config)

    def check(self) -> None:
        """Raise LakeError if there is no client."""
        _ = self._client

    def entries(self, schema: str, tables: Collection[str]) -> dict[str, MetastoreEntry]:
        """Return those of some tables that a database has; nothing if there is no such database."""
        found = self._all(schema) if len(tables) > _FEW else self._each(schema, tables)
        return {table["Name"]: _entry(table) for table in found if table["Name"] in tables}

    def _all(self, schema: str) -> Iterator[dict[str, Any]]:
        try:
            for page in self._client.get_paginator("get_tables").paginate(
                DatabaseName=schema, **self._catalog
            ):
                yield from page["TableList"]
        except self._client.exceptions.EntityNotFoundException:
            return

    def _each(self, schema: str, tables: Collection[str]) -> Iterator[dict[str, Any]]:
        for table in tables:
            try:
                yield self._client.get_table(DatabaseName=schema, Name=table, **self._catalog)["Table"]
            except self._client.exceptions.EntityNotFoundException:
                continue

    def create_schema(self, schema: str) -> None:
        """Create a database unless it exists."""
        try:  # who may read a database may not create one
            self._client.get_database(Name=schema, **self._catalog)
        except self._client.exceptions.EntityNotFoundException:
            self._client.create_database(DatabaseInput={"Name": schema}, **self._catalog)

    def create_table(self, schema: str, table: str, path: str, held: HeldColumns | None) -> None:
        self._client.create_table(
            DatabaseName=schema, TableInput=self._input(table, path, held, {}), **self._catalog
        )

    def update_table(self, schema: str, table: str, path: str, held: HeldColumns) -> None:
        """Give an entry other columns; parameters that others added stay."""
        found = self._client.get_table(DatabaseName=schema, Name=table, **self._catalog)["Table"]
        self._client.update_table(
            DatabaseName=schema,
            TableInput=self._input(table, path, held, found.get("Parameters") or {}),
            **self._catalog,
        )

    def drop_table(self, schema: str, table: str) -> None:
        """Drop an entry, which leaves the table's files as they are."""
        self._client.delete_table(DatabaseName=schema, Name=table, **self._catalog)

    def failure(self, error: Exception) -> str | None:
        """Return the code of an error of AWS."""
        response = getattr(error, "response", None) or {}
        code = response.get("Error", {}).get("Code")
        return None if code is None else str(code)

    def _input(
        self, table: str, path: str, held: HeldColumns | None, parameters: dict[str, str]
    ) -> dict[str, Any]:
        held = held or HeldColumns()
        # Athena knows only this scheme.
        location = f"s3://{path.partition('://')[2]}" if path.startswith(("s3a://", "s3n://")) else path
        return {
            "Name": table,
            "Description": held.comment,
            "TableType": "EXTERNAL_TABLE",
            "Parameters": parameters | parameters_of(self._pipeline),
            "StorageDescriptor": {
                "Columns": [
                    {"Name": name, "Type": kind, "Comment": text} for name, kind, text in held.columns
                ],
                "Location": location,
                "InputFormat": INPUT_FORMAT,
                "OutputFormat": OUTPUT_FORMAT,
                "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": serde_parameters(location)},
            },
        }


def _entry(table: dict[str, Any]) -> MetastoreEntry:
    storage = table.get("StorageDescriptor") or {}
    columns = ((c["Name"], c.get("Type", ""), c.get("Comment", "")) for c in storage.get("Columns", ()))
    held = HeldColumns(tuple(columns), table.get("Description") or "")
    serde = (storage.get("SerdeInfo") or {}).get("Parameters") or {}
    location = serde.get("path") or storage.get("Location")
    return MetastoreEntry.of(table.get("TableType"), location, table.get("Parameters") or {}, held)
