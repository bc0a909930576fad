"""The first hour with a database of 40 odd tables: what is printed is clear, and can be typed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.main import main
from pipeline.config.load import load_config
from pipeline.delta.table import Lake
from pipeline.errors import LakeError, MissingTable
from pipeline.reading.live import open_live
from pipeline.silver.read.as_of import find_silver
from pipeline.table_name import TableName
from tests.support.first_hour import KEYLESS, ODD, ORDINARY, SCHEMAS, make_tables
from tests.support.servers import Database

NAMES = {
    *(TableName("public", name) for name in (*ORDINARY, *ODD, "everything", "measures")),
    *(TableName(schema, "orders") for schema in SCHEMAS),
    TableName(SCHEMAS[0], "x.y"),
}
MISSING = {
    "seen": "It is a view, which has no rows and no changes of its own.",
    '"Totals"': "It is a materialized view, whose changes are not in the stream.",
    "numbers": "It is a sequence, whose values are not in the stream.",
    "cache": "It is unlogged, so its changes are not in the WAL.",
    "remote": "It is a foreign table, whose changes are made on another server.",
    f'"{KEYLESS[0]}"': "No rule of tables in",
    "audit": "but the source has public.Audit.",
    "nothing": "and neither has the source.",
    "measures_2026_01": "public.measures",
}
"""What a query names → what the answer has."""


class Stranger:
    """Runs commands in a terminal of 80 columns."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = str(folder / "shop.yaml")
        self._capsys = capsys

    def types(self, *arguments: str, code: int = 0) -> str:
        """Return what a command prints, its lines joined."""
        config = () if arguments[0] == "init" else ("--config", self.file)
        assert main([*arguments, *config]) == code, self._capsys.readouterr().err
        printed = self._capsys.readouterr()
        for line in printed.out.splitlines():
            assert len(line) <= 80 or line.startswith("pgdelta "), line
        return printed.err if code else printed.out


@pytest.fixture
def stranger(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stranger]:
    make_tables(database)
    monkeypatch.setenv("COLUMNS", "80")
    found = Stranger(tmp_path, capsys)
    options = ["--conninfo", database.conninfo, "--output", found.file, "--root", str(tmp_path / "lake")]
    printed = " ".join(found.types("init", "--yes", *options).split())
    assert ".yaml: 34 tables" in printed
    remedy = "add a primary key, or run ALTER TABLE … REPLICA IDENTITY FULL."
    assert "left out: public.Audit, public.log lines. No replica identity, so UPDATE" in printed
    assert remedy in printed
    assert "not followed: public.cache. It is unlogged" in printed
    rules = {rule.source: rule.exclude for rule in load_config(found.file).tables}
    assert rules["public.*"] == ("public.Audit", "public.log lines")
    yield found
    database.free_slot()


def test_the_first_hour_needs_no_guess(stranger: Stranger) -> None:
    stranger.types("ingest")
    captured = " ".join(stranger.types("status").split())
    assert captured.startswith(f"{load_config(stranger.file).pipeline}: 34 tables: 34 behind")
    assert "Bronze has it, and silver does not. Run pgdelta apply." in captured
    stranger.types("apply")
    _printed_names_can_be_typed(stranger)
    for name, reason in MISSING.items():
        assert reason in stranger.types("query", f"SELECT * FROM {name}", code=2)
    assert 'but "public"."CamelCase"' in stranger.types("query", "SELECT * FROM camelcase", code=2)
    view = "Silver has no table public.seen. It is a view"
    for command in (
        ["status", "public.seen"],
        ["resync", "--table", "public.seen"],
        ["pause", "--table", "public.seen"],
        ["history", "public.seen", "1"],
    ):
        assert view in stranger.types(*command, code=2)
    twin = "Silver has no table public.camelcase, but public.CamelCase."
    assert twin in stranger.types("history", "public.camelcase", "1", code=2)
    assert 'as in public."a.b"' in stranger.types("status", "public.a.b", code=2)
    _readers_get_a_reason_too(stranger, twin)


def _printed_names_can_be_typed(stranger: Stranger) -> None:
    """Every name that `status` prints is an argument that shows this table and no other."""
    lines = stranger.types("status").splitlines()
    printed = [line.split("  ")[0] for line in lines if re.search(r"  +current\b", line)]
    assert set(printed) == {str(name) for name in NAMES}
    detailed = stranger.types("status", *(name for name in printed if name[0] != "-"))
    titles = [line for line in detailed.splitlines() if line.endswith(": current")]
    assert {title.removesuffix(": current") for title in titles} == set(printed)
    name = 'public."a.b"'
    for command in (["pause", "--table", name], ["resume", "--table", name], ["resync", "--table", name]):
        assert name in stranger.types(*command)
    assert f"{name}, key 2: 1 change up to" in stranger.types("history", name, "2")


def _readers_get_a_reason_too(stranger: Stranger, twin: str) -> None:
    """Views of silver in Python answer with the same sentence, which is a KeyError for a mapping."""
    config = load_config(stranger.file)
    live = open_live(config).read()
    as_of = find_silver(lambda: Lake(config.storage))
    for silver in (live, as_of):
        with pytest.raises(MissingTable, match="^" + re.escape(twin)) as caught:
            silver.table("public", "camelcase")
        assert isinstance(caught.value, LakeError)
        assert silver.get(TableName("public", "nothing")) is None
