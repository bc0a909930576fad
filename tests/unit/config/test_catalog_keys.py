"""A name that no catalog holds, or that all tables would have, is refused with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.jobs import Catalog
from pipeline.config.load import load_config
from pipeline.errors import ConfigError


def load(tmp_path: Path, section: str) -> Catalog:
    file = tmp_path / "c.yaml"
    file.write_text(f"pipeline: p\ncatalog:\n{section}\n")
    return load_config(file, {}).catalog


@pytest.mark.promise("mistakes in the file")
@pytest.mark.parametrize(
    ("section", "place", "sentence"),
    [
        ("  schema: '{schemas}'", "3: catalog.schema", "Unknown placeholder. Write {schema} or {pipeline}"),
        ("  schema: '{table}'", "3: catalog.schema", "Unknown placeholder."),
        ("  schema: my schema", "3: catalog.schema", "A catalog's name has letters of ASCII"),
        ("  schema: 'größe'", "3: catalog.schema", "A catalog's name has letters of ASCII"),
        ("  schema: '{schema'", "3: catalog.schema", "A catalog's name has letters of ASCII"),
        ("  schema: {schema}", "3: catalog.schema", "Expected text, found a section"),
        ("  schema: shop\n  table: orders", "4: catalog.table", "All tables would have one name."),
        ("  schema: shop\n  table: '{table}-x'", "4: catalog.table", "A catalog's name has letters of ASCII"),
        ("  table: '{table}'", "3: catalog.table", "catalog.schema is missing"),
        ("  name: unity", "3: catalog.name", "Unknown key."),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, section: str, place: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, section)
    assert str(raised.value).startswith(f"{tmp_path / 'c.yaml'}:{place}: {sentence}")
    assert raised.value.exit_code == 2


def test_templates_are_read(tmp_path: Path) -> None:
    section = "  schema: '{pipeline}_{schema}'\n  table: 'x_{schema}_{table}'"
    assert load(tmp_path, section) == Catalog("{pipeline}_{schema}", "x_{schema}_{table}")
    assert load(tmp_path, "  schema: shop") == Catalog("shop", "{table}")


def test_without_the_section_no_table_is_registered(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("pipeline: p\n")
    assert load_config(file, {}).catalog.schema is None
