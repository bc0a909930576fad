"""A name that no catalog holds, or that all tables would have, is refused with file, line and key."""

import pytest

from pipeline.config.jobs import Catalog
from tests.support.config_texts import load, mistake

HEAD = "pipeline: p\ncatalog:\n"
TARGETS = "  schema: shop\n  targets: "
UNITY = TARGETS + "[{type: unity, uri: 'https://x'"


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
        ("  targets: [{type: glue}]", "3: catalog.targets", "catalog.schema is missing"),
        (TARGETS + "[]", "4: catalog.targets", "No catalog is named."),
        (TARGETS + "[{type: nessie}]", "4: catalog.targets[0].type", "Unknown value."),
        (TARGETS + "[{type: hive}]", "4: catalog.targets[0]", "uri is missing."),
        (TARGETS + "[{type: hive, uri: 'http://x:1'}]", "4: catalog.targets[0].uri", "Not the address of"),
        (TARGETS + "[{type: hive, uri: 'thrift://x'}]", "4: catalog.targets[0].uri", "Not the address of a"),
        (
            TARGETS + "[{type: unity, catalog: c}]",
            "4: catalog.targets[0]",
            "uri is missing. Write https://HOST.",
        ),
        (UNITY + "}]", "4: catalog.targets[0]", "catalog is missing."),
        (UNITY + ", catalog: a.b}]", "4: catalog.targets[0].catalog", "The name of a catalog has no dot"),
        (
            UNITY + ", catalog: c, token: geheim}]",
            "4: catalog.targets[0].token",
            "The file contains the key.",
        ),
        (
            UNITY + ", catalog: c, token: '${T}', token_file: /t}]",
            "4: catalog.targets[0].token_file",
            "There are two tokens.",
        ),
        (
            TARGETS + "[{type: unity, uri: 'thrift://x:1', catalog: c}]",
            "4: catalog.targets[0].uri",
            "Not the address of Unity Catalog. Write https://HOST.",
        ),
        (
            TARGETS + "[{type: unity, uri: 'https://u:geheim@x', catalog: c}]",
            "4: catalog.targets[0].uri",
            "The address has a user",
        ),
        (
            UNITY + ", catalog: c}]\nstorage:\n  root: hdfs://h/lake",
            "4: catalog.targets[0].type",
            "Unity Catalog has no tables at the scheme of storage.root.",
        ),
        (
            TARGETS + "[{type: glue, uri: 'thrift://x:1'}]",
            "4: catalog.targets[0].uri",
            "A catalog of type glue",
        ),
        (
            TARGETS + "[{type: spark, region: x}]",
            "4: catalog.targets[0].region",
            "A catalog of type spark",
        ),
        (TARGETS + "[{type: glue}, {type: glue}]", "4: catalog.targets[1].type", "Two catalogs are of one"),
    ],
)
def test_a_name_that_cannot_be_is_refused(section: str, place: str, sentence: str) -> None:
    assert mistake(HEAD + section, T="a-token-of-unity").startswith(f"c.yaml:{place}: {sentence}")


def test_templates_are_read() -> None:
    section = "  schema: '{pipeline}_{schema}'\n  table: 'x_{schema}_{table}'"
    assert load(HEAD + section).catalog == Catalog("{pipeline}_{schema}", "x_{schema}_{table}")
    assert load(HEAD + "  schema: shop").catalog == Catalog("shop", "{table}")


def test_a_token_comes_from_the_environment_and_is_not_shown() -> None:
    text = HEAD + UNITY + ", catalog: main, token: '${T}'}]"
    [target] = load(text, T="geheim-geheim-geheim").catalog.targets
    assert (target.uri, target.catalog, target.token) == ("https://x", "main", "geheim-geheim-geheim")
    assert "geheim" not in repr(target)


def test_without_the_section_no_table_is_registered() -> None:
    assert load("pipeline: p\n").catalog.schema is None
