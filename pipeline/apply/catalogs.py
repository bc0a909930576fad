"""The catalogs in which apply registers silver tables: one registrar for each of `catalog.targets`."""

from __future__ import annotations

import threading

from pipeline.apply.applier import Applier
from pipeline.apply.catalog_registrar import CatalogRegistrar
from pipeline.config.config import Config
from pipeline.config.jobs import CatalogService
from pipeline.delta.catalogs.entry import TableCatalog
from pipeline.delta.catalogs.glue import GlueCatalog
from pipeline.delta.catalogs.hive import HiveCatalog
from pipeline.delta.catalogs.unity import UnityCatalog
from pipeline.delta.spark.metastore import Metastore
from pipeline.delta.spark.provider import SparkProvider


def open_catalog(service: CatalogService, pipeline: str, sessions: SparkProvider) -> TableCatalog:
    """Return a catalog, which is not called before it is used."""
    if service.type == "glue":
        return GlueCatalog(pipeline, service.region, service.catalog_id)
    if service.type == "hive":
        return HiveCatalog(pipeline, service.uri or "")
    if service.type == "unity":
        uri, catalog = service.uri or "", service.catalog or ""
        return UnityCatalog(pipeline, uri, catalog, token=service.token, token_file=service.token_file)
    return Metastore(sessions.new())


class Catalogs:
    """Keeps all catalogs in line with the silver tables of one applier, each by a thread of its own."""

    def __init__(self, config: Config, applier: Applier, *, compares_at_start: bool = False) -> None:
        """Compare recorded entries with the catalogs at the start, or if that was not done for a while."""
        self._registrars = [
            CatalogRegistrar(
                config,
                applier,
                open_catalog(service, config.pipeline, applier.lake.sessions),
                service.recorded_type,
                compares_at_start=compares_at_start,
            )
            for service in config.catalog.targets
        ]

    def update(self) -> None:
        """Begin what is due, in the background; calls no catalog if nothing has changed."""
        for each in self._registrars:
            each.update()

    def finish(self, stop: threading.Event) -> None:
        """Wait for what is due, as long as the catalogs answer; the next run continues with the rest."""
        if not stop.is_set():
            self.update()
        for each in self._registrars:
            each.finish(stop)
