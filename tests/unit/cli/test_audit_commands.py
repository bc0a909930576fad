"""`pgdelta audit` and `pgdelta as-of`: what they call, what they print, how they end."""

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.delta.table import Lake
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.protocol.lsn import LSN
from pipeline.reading.as_of import SilverVersions
from pipeline.silver.read.as_of import AsOf, TableAsOf
from pipeline.table_name import TableName
from pipeline.verify.audit import Audit
from pipeline.verify.commit_chain import read_chain
from tests.support.commit_chains import APP, WHOLE
from tests.support.pages import AUDIT, BROKEN, CROSSED, render


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    path.write_text("pipeline: shop\n")
    return str(path)


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, function: str, found: Any) -> list[dict[str, Any]]:
    """Put a function that returns `found` in a module's place; return what it is called with."""
    calls: list[dict[str, Any]] = []

    def call(config: Any, **keywords: Any) -> Any:
        calls.append(keywords)
        return found

    place = ModuleType(module)
    setattr(place, function, call)
    monkeypatch.setitem(sys.modules, module, place)
    return calls


def printed(found: Audit) -> str:
    return render(found.print, 160)


@pytest.mark.parametrize(
    ("audit", "options", "code"),
    [
        (AUDIT, ["--strict"], 0),
        (BROKEN, [], 1),
        (CROSSED, [], 0),
        (CROSSED, ["--strict"], 1),
    ],
)
def test_a_broken_chain_ends_with_1(
    audit: Audit,
    options: list[str],
    code: int,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in(monkeypatch, "pipeline.verify.audit", "run_audit", audit)
    assert main.main(["audit", "--config", config, "--json", *options]) == code
    assert json.loads(capsys.readouterr().out) == audit.as_json()
    assert audit.as_json()["whole"] == (not audit.findings)


def test_an_audit_is_printed_by_segments_with_what_breaks_it() -> None:
    text = printed(AUDIT)
    assert "shop: bronze is complete from 0/64 to 0/BE" in text
    assert "90 changes and 1 complete table copy were compared" in text
    assert "not compared: 3 changes of prepared transactions" in text
    assert "the log begins at version" not in text
    text = printed(BROKEN)
    assert "shop: bronze is NOT complete from 0/64" in text
    assert "gap: Changes committed from 0/82 to 0/96 are missing: version 2 ends" in text
    assert "gap from 0/BE to 0/384, crossed at version 5: [the] slot was" in printed(CROSSED)
    text = printed(Audit("shop", read_chain(WHOLE[3:], APP)))
    assert "the log begins at version 3, with what was committed after 0/82" in text
    assert "rows were not counted" in text


def entry(table: str, *, is_behind: bool = False) -> ManifestEntry:
    return ManifestEntry("public", table, f"file:/lake/silver/public/{table}", 7, LSN(50), is_behind)


def silver(*entries: ManifestEntry) -> AsOf:
    lake = Lake("file:/lake")
    return AsOf(lake, Manifest(LSN(100), datetime(2026, 1, 31, 12, tzinfo=timezone.utc), entries))


def test_versions_are_printed_as_queries(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = silver(entry("[a]"), entry("b", is_behind=True))
    behind = found.table("public", "b")
    current = type(behind)(TableName("public", "[a]"), "file:/lake/silver/public/[a]", 7)
    versions = SilverVersions(found, (("current", current), ("behind", behind)))
    calls = stand_in(monkeypatch, "pipeline.reading.as_of", "read_silver", versions)
    assert main.main(["as-of", "--config", config, "--lsn", "0/64"]) == 0
    assert calls == [{"lsn": "0/64", "timestamp": None, "globs": (), "since": None}]
    assert capsys.readouterr().out.splitlines() == [
        "-- silver as of 0/64, committed 2026-01-31 12:00:00.000000Z",
        "-- Table public.b is behind: it shows 0/32, the other tables show 0/64. Read",
        "-- silver as of a manifest that has caught up.",
        "-- public.[a]: version 7",
        "SELECT * FROM delta.`file:/lake/silver/public/[a]` VERSION AS OF 7;",
    ]
    data = versions.as_json()
    assert (data["lsn"], data["commit_time"]) == ("0/64", "2026-01-31T12:00:00+00:00")
    assert [(t["state"], t["query"] is None) for t in data["tables"]] == [
        ("current", False),
        ("behind", True),
    ]
    assert SilverVersions(found, (("gone", behind),)).exit_code(strict=False) == 1


def test_what_changed_is_printed_with_its_rows(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = silver(entry("a"), entry("b"), entry("c"))
    tables = [TableAsOf(TableName("public", name), f"file:/lake/{name}", 7) for name in "abc"]
    changed = {tables[0].name: 1204, tables[1].name: None}
    versions = SilverVersions(found, tuple(("current", table) for table in tables), changed)
    calls = stand_in(monkeypatch, "pipeline.reading.as_of", "read_silver", versions)
    assert main.main(["as-of", "--config", config, "--since", "0/32@2026-01-31T11:00:00Z"]) == 0
    assert calls[0]["since"] == "0/32@2026-01-31T11:00:00Z"
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("-- public")] == [
        "-- public.a: version 7, 1,204 rows changed",
        "-- public.b: version 7, changed",
        "-- public.c: version 7, not changed",
    ]
    data = versions.as_json()
    assert data["cursor"] == "0/64"
    assert [(t["changed"], t["rows_changed"]) for t in data["tables"]] == [
        (True, 1204),
        (True, None),
        (False, 0),
    ]


def test_a_name_with_a_line_end_stays_in_its_comment(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\nDROP TABLE b; \x1b[2J"
    found = silver(entry(name, is_behind=True))
    behind = found.table("public", name)
    current = type(behind)(TableName("public", name), "file:/lake/silver/public/a%0A", 7)
    versions = SilverVersions(found, (("current", current), ("behind", behind)))
    stand_in(monkeypatch, "pipeline.reading.as_of", "read_silver", versions)
    assert main.main(["as-of", "--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("-- ") for line in lines] == [True] * (len(lines) - 1) + [False]
    assert lines[-1].startswith("SELECT * FROM delta.")
    assert not any("\x1b" in line for line in lines)


def test_a_mapping_leaves_out_what_is_behind() -> None:
    found = silver(entry("a"), entry("b", is_behind=True))
    assert (list(found), len(found), found.behind) == (
        [TableName("public", "a")],
        1,
        {TableName("public", "b"): LSN(50)},
    )
    assert TableName("public", "a") in found
    assert TableName("public", "b") not in found
    with pytest.raises(KeyError):
        found[TableName("public", "c")]


def test_an_lsn_and_a_time_exclude_each_other(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["as-of", "--config", config, "--lsn", "0/1", "--timestamp", "2026-01-31"]) == 2
    assert "--lsn and --timestamp exclude each other." in capsys.readouterr().err
