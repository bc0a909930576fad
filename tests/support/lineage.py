"""The JSON schemas of OpenLineage 2-0-2 and of our own facet, and whether an event is valid by them.

The files in `openlineage` are those of the specification, unchanged (Apache License 2.0).
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.support.paths import ROOT

OWN = ROOT / "docs" / "reference" / "PgdeltaPositionFacet.json"


@cache
def _schemas() -> Registry[Any]:
    files = [*(ROOT / "tests" / "support" / "openlineage").glob("*.json"), OWN]
    resources = [Resource.from_contents(json.loads(file.read_text())) for file in files]
    return Registry().with_resources((str(resource.id()), resource) for resource in resources)


def facets_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give each facet of an event, of its run, its job and its datasets."""
    for owner in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for key in ("facets", "inputFacets", "outputFacets"):
            yield from owner.get(key, {}).values()


def validate(event: dict[str, Any]) -> None:
    """Fail unless an event, and each of its facets, is valid by the schema that it names."""
    _check(event, event["schemaURL"])
    for facet in facets_of(event):
        _check(facet, facet["_schemaURL"])


def _check(content: dict[str, Any], schema: str) -> None:
    formats = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator({"$ref": schema}, registry=_schemas(), format_checker=formats).validate(content)
