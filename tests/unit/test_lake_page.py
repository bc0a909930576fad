"""The page of the lake's tables names the columns that they have."""

import re

import pytest

from pipeline.bronze.bases import BASES
from pipeline.bronze.copies import COPIES, REQUESTS
from pipeline.bronze.erasures import ERASURES
from pipeline.bronze.schema import CHANGES, RELATIONS, spark_ddl
from pipeline.delta.lake_format import LakeFormat
from pipeline.delta.record_table import ddl_of
from pipeline.maintenance.job_tables import OWN_TABLES
from pipeline.metadata.alerts import RecordedAlert
from pipeline.metadata.catalog import CatalogRow
from pipeline.metadata.catalog_entries import CatalogEntry
from pipeline.metadata.events import EVENTS
from pipeline.metadata.fingerprints import TableFingerprint
from pipeline.metadata.maintenance import Maintained
from pipeline.metadata.manifests import MANIFESTS
from pipeline.metadata.misfits import MISFITS
from pipeline.metadata.pauses import Pause
from pipeline.metadata.reconciliations import DIFFERENCES, RECONCILIATIONS
from pipeline.metadata.registry import TABLES
from pipeline.metadata.source_comments import SourceComment
from pipeline.metadata.status import STATUS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "lake.md").read_text(encoding="utf-8")
SCHEMAS = {
    "bronze/changes": spark_ddl(CHANGES),
    "bronze/relations": spark_ddl(RELATIONS),
    "bronze/copies": COPIES,
    "_pgdelta/format": ddl_of(LakeFormat),
    "_pgdelta/tables": TABLES,
    "_pgdelta/manifests": MANIFESTS,
    "_pgdelta/events": EVENTS,
    "_pgdelta/misfits": MISFITS,
    "_pgdelta/status": STATUS,
    "_pgdelta/requests": REQUESTS,
    "_pgdelta/pauses": ddl_of(Pause),
    "_pgdelta/alerts": ddl_of(RecordedAlert),
    "_pgdelta/maintenance": ddl_of(Maintained),
    "_pgdelta/fingerprints": ddl_of(TableFingerprint),
    "_pgdelta/reconciliations": RECONCILIATIONS,
    "_pgdelta/differences": DIFFERENCES,
    "_pgdelta/erasures": ERASURES,
    "_pgdelta/catalog": ddl_of(CatalogRow),
    "_pgdelta/catalog_entries": ddl_of(CatalogEntry),
    "_pgdelta/comments": ddl_of(SourceComment),
    "bronze/bases": BASES,
}


def columns_of(ddl: str) -> set[str]:
    """Return the names of the top columns: those of structs stand in angle brackets."""
    while "<" in ddl:
        ddl = re.sub(r"<[^<>]*>", "", ddl)
    return {column.split()[0] for column in ddl.split(", ")}


def told_of(table: str) -> set[str]:
    section = PAGE.split(f"## `{table}`\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_field_of_a_column_is_documented(table: str) -> None:
    section = PAGE.split(f"## `{table}`\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"(\w+):", SCHEMAS[table])) <= set(re.findall(r"`([^`]+)`", section))


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_documented(table: str) -> None:
    assert told_of(table) == columns_of(SCHEMAS[table])


def test_every_table_is_maintained() -> None:
    maintained = {"/".join(names) for names in OWN_TABLES}
    assert maintained == set(SCHEMAS) | {"bronze/prepared"}  # whose columns are those of `changes`


def test_every_table_has_a_section_of_its_own() -> None:
    assert set(re.findall(r"^## `([^`]+)`$", PAGE, re.MULTILINE)) == set(SCHEMAS)
