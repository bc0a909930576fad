"""OpenLineage events of real runs: renamed and masked columns, rows, LSNs, and a failure."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.apply.job import run_apply
from pipeline.config.lineage import Lineage
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.errors import SourceError
from pipeline.ingest.job import run_ingest
from pipeline.report.observers import Observers, WatchOptions
from tests.support.lineage import validate
from tests.support.native_pipelines import NativePipeline
from tests.support.servers import Database

RULES = ColumnRules(exclude=("secret",), hash={"email": "hmac-sha256"}, mask={"card": "last4"})


def test_lineage_leads_from_the_source_to_silver(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE people (id int PRIMARY KEY, name text, email text, card text, secret text)",
        "CREATE TABLE rests (id int PRIMARY KEY)",
    )
    rules = (TableRule("public.people", columns=RULES), TableRule("public.*"))
    pipeline = NativePipeline.make(database, tmp_path, *rules, hash_key="0123456789abcdef")
    file = tmp_path / "lineage.jsonl"
    config = replace(pipeline.config, lineage=Lineage(str(file)))

    def run(*statements: str) -> dict[str, dict[str, Any]]:
        """Return the last event of each job."""
        pipeline.run(*statements)
        with Observers(config, WatchOptions(), "run") as watch:
            run_ingest(config, progress=watch.on_ingest)
            run_apply(config, progress=watch.on_apply)
        events = [json.loads(line) for line in file.read_text().splitlines()]
        for event in events:
            validate(event)
        text = file.read_text()
        assert not any(value in text for value in ("planted", "secret", "0123456789abcdef"))
        return {event["job"]["name"].rsplit(".", 1)[1]: event for event in events}

    row = "INSERT INTO people VALUES ({}, 'planted', 'planted', '4111planted', 'planted')"
    first = run(*(row.format(number) for number in range(3)))
    second = run("ALTER TABLE people RENAME name TO full_name", row.format(3))
    for events, name, rows in ((first, "name", 3), (second, "full_name", 1)):
        (bronze,), (silver,) = events["ingest"]["outputs"], events["apply"]["outputs"]
        assert bronze["outputFacets"]["outputStatistics"]["rowCount"] == rows
        assert silver["outputFacets"]["outputStatistics"]["rowCount"] == rows
        at = events["apply"]["run"]["facets"]["pgdelta_position"]["lsn"]
        assert silver["facets"]["pgdelta_position"]["lsn"] == at
        origins = {
            column: (each["inputFields"][0]["field"], each["inputFields"][0]["transformations"][0]["masking"])
            for column, each in silver["facets"]["columnLineage"]["fields"].items()
        }
        assert origins == {
            "id": ("id", False),
            name: (name, False),
            "email": ("email", True),
            "card": ("card", True),
        }
        read = [dataset["name"] for dataset in events["apply"]["inputs"]]
        assert read == [bronze["name"], f"{database.name}.public.people"]
        columns = events["apply"]["inputs"][1]["facets"]["schema"]["fields"]
        assert [column["name"] for column in columns] == ["id", name, "email", "card"]
    assert run()["apply"]["outputs"] == []

    with database.connect() as source:
        source.execute("SELECT pg_drop_replication_slot(%s)", (config.source.slot,))
    with pytest.raises(SourceError):
        run()
    failed = json.loads(file.read_text().splitlines()[-1])
    validate(failed)
    assert failed["eventType"] == "FAIL"
    assert "slot" in failed["run"]["facets"]["errorMessage"]["message"]
