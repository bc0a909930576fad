"""Check the names that tables get in catalogs, and where these catalogs are."""

from __future__ import annotations

from urllib.parse import urlparse

from pipeline.config.jobs import Catalog, CatalogService
from pipeline.config.scalars import is_metastore_uri
from pipeline.config.yaml_document import Document, Items, Section

_KEYS = {
    "hive": {"uri"},
    "glue": {"region", "catalog_id"},
    "unity": {"uri", "catalog", "token", "token_file"},
}
_URI_FAULTS = {
    "hive": "Not the address of a Hive metastore. Write thrift://HOST:PORT.",
    "unity": "Not the address of Unity Catalog. Write https://HOST.",
}
_UNITY_SCHEMES = ("", "file", "s3", "s3a", "gs", "abfss")


def check_catalog(catalog: Catalog, root: str, document: Document) -> None:
    """Raise ConfigError for names in a catalog that lack their schema, or that all tables would have."""
    fault = None
    if catalog.schema is None:
        fault = "catalog.schema is missing, so no table is registered. Write it, or remove this key."
    elif "{table}" not in catalog.table:
        fault = "All tables would have one name. Write {table} in it."
    keys = document.get("catalog")
    for key in ("table", "targets"):
        if fault is not None and isinstance(keys, Section) and key in keys:
            raise document.error(fault, "catalog", key)
    written = document.get("catalog", "targets")
    if isinstance(written, Items) and not written:
        raise document.error("No catalog is named. Name one, or leave the key out.", "catalog", "targets")
    for index, each in enumerate(catalog.targets):
        place = ("catalog", "targets", index)
        if each.type in (other.type for other in catalog.targets[:index]):
            raise document.error("Two catalogs are of one type. Remove one of them.", *place, "type")
        found = document.get(*place)
        for key in {*found} if isinstance(found, Section) else ():
            if key not in ("type", *_KEYS.get(each.type, ())):
                raise document.error(f"A catalog of type {each.type} has no {key}. Remove it.", *place, key)
        _check_service(each, root, place, document)


def _check_service(
    service: CatalogService, root: str, place: tuple[str | int, ...], document: Document
) -> None:
    """Raise ConfigError for a catalog whose address is missing, or that cannot have tables of this lake."""
    is_unity = service.type == "unity"
    if service.type in _URI_FAULTS and service.uri is None:
        example = _URI_FAULTS[service.type].rpartition("Write ")[2]
        raise document.error(f"uri is missing. Write {example}", *place)
    if service.uri is not None and is_unity is is_metastore_uri(service.uri):
        raise document.error(_URI_FAULTS[service.type], *place, "uri")
    if is_unity and service.catalog is None:
        raise document.error("catalog is missing. Name the catalog in Unity Catalog.", *place)
    if service.token is not None and service.token_file is not None:
        raise document.error("There are two tokens. Remove token or token_file.", *place, "token_file")
    if is_unity and urlparse(root).scheme not in _UNITY_SCHEMES:
        raise document.error(
            "Unity Catalog has no tables at the scheme of storage.root. Remove this catalog, or use a folder,"
            " s3://, gs:// or abfss://.",
            *place,
            "type",
        )
