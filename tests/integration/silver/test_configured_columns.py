"""What the rule of a column does where the source's values meet the limits of its silver type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Config
from pipeline.config.tables import RowMode, TableRule
from pipeline.delta.table import LakeTable
from pipeline.ingest.job import run_ingest
from pipeline.operate.resync import run_resync
from tests.support.servers import Database

pytestmark = pytest.mark.postgres


@dataclass
class Follower:
    """A pipeline of one table `t` without Spark."""

    database: Database
    config: Config

    def follow(self, *statements: str) -> None:
        """Run statements, capture and apply them."""
        if statements:
            self.database.run(*statements)
        run_ingest(self.config)
        applier = Applier(None, self.config)
        try:
            applier.apply_pending()
        finally:
            applier.close()

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of the silver table, sorted by the first one."""
        table = LakeTable(f"{self.config.storage.root}/silver/public/t")
        return sorted((tuple(row.values()) for row in table.rows(list(columns)).to_pylist()), key=str)

    def events(self) -> list[tuple[str, str]]:
        """Return kind and sentence of all events."""
        table = LakeTable(f"{self.config.storage.root}/_pgdelta/events")
        return [(row["kind"], row["sentence"]) for row in table.rows(["kind", "sentence"]).to_pylist()]


def begin(database: Database, tmp_path: Path, rule: TableRule) -> Follower:
    config = database.config(root=str(tmp_path / "lake"), create_publication="all", copy="never")
    silver = replace(config.silver, writer="native")
    found = Follower(database, replace(config, silver=silver, tables=(rule,)))
    run_ingest(found.config)
    return found


@pytest.mark.parametrize(
    ("policy", "older"), [("null", None), ("text", None), ("clamp", date(9999, 12, 31)), ("error", None)]
)
def test_a_default_that_does_not_fit_is_an_event(
    database: Database, tmp_path: Path, policy: Any, older: date | None
) -> None:
    follower = begin(database, tmp_path, TableRule("public.t", misfits={"d": policy}))
    follower.follow("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    follower.follow("ALTER TABLE t ADD d date DEFAULT 'infinity'", "INSERT INTO t VALUES (3, '2024-01-01')")
    [(kind, sentence)] = [each for each in follower.events() if each[0] in ("resync", "refused")]
    assert "column d was added with a default that its silver type cannot hold" in sentence.lower()
    if policy == "error":
        assert kind == "refused"
        assert follower.rows("id") == [(1,), (2,)]
        rule = TableRule("public.t", misfits={"d": "null"})
        follower = replace(follower, config=replace(follower.config, tables=(rule,)))
        follower.follow()
    else:
        assert kind == "resync"
    assert follower.rows("id", "d") == [(1, older), (2, older), (3, date(2024, 1, 1))]
    run_resync(follower.config, ["public.t"])
    follower.follow()
    if policy == "text":
        assert follower.rows("id", "d__text") == [(1, "infinity"), (2, "infinity"), (3, None)]
    recorded = LakeTable(f"{follower.config.storage.root}/_pgdelta/misfits").rows(["key"]).to_pylist()
    assert {row["key"] for row in recorded} == {'{"id":"1"}', '{"id":"2"}'}


def test_a_default_that_fits_and_one_of_a_table_without_rows_are_no_event(
    database: Database, tmp_path: Path
) -> None:
    follower = begin(database, tmp_path, TableRule("public.t", misfits={"e": "error"}))
    follower.follow("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    follower.follow("ALTER TABLE t ADD d date DEFAULT '2024-01-01'", "DELETE FROM t")
    follower.follow("ALTER TABLE t ADD e date DEFAULT 'infinity'", "INSERT INTO t VALUES (2, NULL, NULL)")
    assert not [each for each in follower.events() if each[0] in ("resync", "refused", "held")]
    assert follower.rows("id", "d", "e") == [(2, None, None)]


@pytest.mark.parametrize("mode", ["mirror", "history"])
@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("TIMESTAMP", "2024-01-01 10:00:00+00", "2024-01-01 12:00:00+02"),
        ("INT", "1", "01"),
        ("BINARY", "\\xab", "\\xAB"),
    ],
)
def test_a_type_in_which_different_keys_are_equal_holds_the_table(
    database: Database, tmp_path: Path, kind: str, one: str, other: str, mode: RowMode
) -> None:
    follower = begin(database, tmp_path, TableRule("public.t", types={"k": kind}, mode=mode))
    follower.follow("CREATE TABLE t (k text PRIMARY KEY, v text)", f"INSERT INTO t VALUES ('{one}', 'a')")
    follower.follow(f"INSERT INTO t VALUES ('{other}', 'b')")
    [(_, sentence)] = [each for each in follower.events() if each[0] == "held"]
    assert f"has {kind} for column k of the key, in which different keys may be equal" in sentence
    follower = replace(follower, config=replace(follower.config, tables=(TableRule("public.t", mode=mode),)))
    follower.follow()
    assert follower.rows("k", "v") == sorted([(one, "a"), (other, "b")])


@pytest.mark.parametrize(
    ("of_source", "kind", "value"),
    [
        ("int", "DECIMAL(20,0)", "7"),
        ("numeric", "DECIMAL(20,2)", "7.00"),
        ("date", "TIMESTAMP_NTZ", "2024-01-01"),
        ("uuid", "STRING", "7b1d7f50-7b1d-7f50-7b1d-7f507b1d7f50"),
    ],
)
def test_a_type_that_keeps_keys_apart_is_used(
    database: Database, tmp_path: Path, of_source: str, kind: str, value: str
) -> None:
    follower = begin(database, tmp_path, TableRule("public.t", types={"k": kind}))
    follower.follow(f"CREATE TABLE t (k {of_source} PRIMARY KEY)", f"INSERT INTO t VALUES ('{value}')")
    assert len(follower.rows("k")) == 1
    assert not [each for each in follower.events() if each[0] == "held"]
