"""Values of columns that are left out, hashed or masked are nowhere in the lake, however they came."""

import hmac
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.bronze import spool, streamed_transactions
from pipeline.config.config import Protocol
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.crash_steps import CrashStep
from pipeline.errors import ConfigError, LakeError
from pipeline.forget.forget import run_forget
from pipeline.key_ranges import KeyRange
from pipeline.operate.plan import make_plan
from pipeline.operate.rebuild import run_rebuild
from pipeline.operate.resync import run_resync
from pipeline.postgres.checks.table_checks import Check, check_tables
from pipeline.postgres.connection import connect
from pipeline.progress import IngestSummary
from pipeline.report.status import read_status
from pipeline.silver.write.writer_choice import WriterSetting
from pipeline.verify.reconcile import run_reconcile
from tests.support.files import places_of
from tests.support.paths import ROOT
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, Pipeline, with_rules, with_writer

KEY = "the key of the tests, 123"
SECRET = "xyzzySecret"
RULES = ColumnRules(
    exclude=("out", "later"),
    hash={"id": "hmac-sha256", "mail": "hmac-sha256", "age": "hmac-sha256"},
    mask={"card": "last4", "note": None, "name": "***"},
)
PERSON = (
    "CREATE TABLE person (id text PRIMARY KEY, out text, mail text, age int, card text, note text, name text,"
    " odd text, n int)",
    "ALTER TABLE person ALTER mail SET STORAGE EXTERNAL, ALTER card SET STORAGE EXTERNAL,"
    " ALTER out SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL, ALTER name SET STORAGE EXTERNAL",
    "CREATE TABLE whole (LIKE person INCLUDING ALL)",
    "ALTER TABLE whole DROP CONSTRAINT whole_pkey, ALTER id DROP NOT NULL",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE other (id int PRIMARY KEY, v text)",
)
TABLES = ("person", "whole")
SILVER = ("id", "mail", "age", "card", "note", "name", "odd", "n")
LONG = "repeat('{word}Long', 1000)"
FILLER = "INSERT INTO other SELECT {first} + i, repeat('x', 6000) FROM generate_series(1, 40) i"


def insert(table: str, key: str, n: int, *, odd: str = "7") -> str:
    """Return a statement that inserts a row with the secret in every protected column."""
    long = LONG.format(word=SECRET)
    return (
        f"INSERT INTO {table} VALUES ('{SECRET}{key}', {long} || 'o', {long} || '{key}m', {n} * 1000 + 77777,"
        f" {long} || '{key}9876', {long}, '{SECRET}Name', '{odd}', {n})"
    )


def hashed(value: object) -> str | None:
    if value is None:
        return None
    return hmac.digest(KEY.encode(), str(value).encode(), "sha256").hex()


def expected(pipeline: Pipeline, table: str) -> Counter[tuple[Any, ...]]:
    """Return the rows that silver is to have."""
    found: Counter[tuple[Any, ...]] = Counter()
    rows = pipeline.source.execute(f"SELECT id, mail, age, card, note, name, odd, n FROM {table}".encode())
    for key, mail, age, card, _, name, odd, n in rows:
        masked = None if card is None else "****" + (card[-4:] if len(card) >= 8 else "")
        number = int(odd) if odd is not None and odd.isdigit() else None
        named = None if name is None else "***"
        found[hashed(key), hashed(mail), hashed(age), masked, None, named, number, n] += 1
    return found


def shown(pipeline: Pipeline, table: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of silver."""
    frame = pipeline.frame("silver", "public", table)
    assert [name for name in frame.columns if not name.startswith("_")] == list(SILVER)
    types = dict(frame.dtypes)
    assert [types[name] for name in SILVER] == [*["string"] * 6, "int", "int"]
    return Counter(tuple(row) for row in frame.select(*SILVER).collect())


def assert_protected(pipeline: Pipeline) -> None:
    for table in TABLES:
        assert shown(pipeline, table) == expected(pipeline, table)
    assert places_of(Path(pipeline.root), SECRET) == []


@pytest.fixture
def protected(make_pipeline: MakePipeline) -> Pipeline:
    """Give a pipeline with rules, whose source has rows for a copy."""
    protocol = Protocol(two_phase=True, streaming="on", written=frozenset({"two_phase", "streaming"}))
    return with_protection(make_pipeline(create_publication="all", copy="initial", protocol=protocol), RULES)


def with_protection(pipeline: Pipeline, rules: ColumnRules, key: str = KEY) -> Pipeline:
    source = replace(pipeline.config.source, hash_key=key)
    made = with_rules(pipeline, TableRule("public.*", types={"odd": "INT"}, columns=rules))
    return replace(made, config=replace(made.config, source=source))


@pytest.mark.promise("columns kept out", "protected columns")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_no_way_of_a_value_leads_into_the_lake(
    protected: Pipeline, writer: WriterSetting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # everything goes to disk as soon as it can
    monkeypatch.setattr(streamed_transactions, "STREAM_ROWS", 5)
    monkeypatch.setattr(spool, "ROW_LIMIT", 7)
    pipeline = with_writer(protected, writer)
    pipeline.run(
        *PERSON,
        f"ALTER DATABASE {pipeline.database.name} SET logical_decoding_work_mem = '64kB'",
        *(insert(table, str(n), n) for table in TABLES for n in range(3)),
        *(f"INSERT INTO {table} (id, n) VALUES ('{SECRET}null', 50)" for table in TABLES),
    )
    pipeline.catch_up()  # by a copy
    assert_protected(pipeline)
    for table in TABLES:
        pipeline.transact(
            insert(table, "new", 10),
            insert(table, "misfit", 11, odd="no number"),
            f"UPDATE {table} SET n = n + 100 WHERE id = '{SECRET}0'",  # unchanged TOAST
            f"UPDATE {table} SET id = '{SECRET}moved' WHERE id = '{SECRET}1'",
            f"UPDATE {table} SET mail = NULL, card = 'short', age = 12 WHERE id = '{SECRET}2'",
            f"DELETE FROM {table} WHERE id = '{SECRET}new'",
        )
    # a default that rows from before the column have
    pipeline.catch_up(
        f"ALTER TABLE person ADD later text DEFAULT '{SECRET}Default'",
        f"ALTER TABLE whole ADD later text DEFAULT '{SECRET}Default'",
        f"UPDATE person SET later = '{SECRET}Later', n = 5 WHERE id = '{SECRET}moved'",
        f"UPDATE whole SET later = '{SECRET}Later', n = 5 WHERE id = '{SECRET}moved'",
    )
    assert_protected(pipeline)
    misfits = pipeline.frame("_pgdelta", "misfits").collect()
    assert {row.raw_text for row in misfits} == {"no number"}
    pipeline.prepare("p", *(insert(table, "prepared", 20) for table in TABLES))
    pipeline.ingest()
    assert places_of(Path(pipeline.root), SECRET) == []
    pipeline.run("COMMIT PREPARED 'p'")
    with pipeline.database.connect() as session:  # streamed, and open while the run ends
        for statement in ("BEGIN", insert("person", "open", 30), FILLER.format(first=100)):
            session.execute(statement.encode())
        pipeline.ingest()
        assert places_of(Path(pipeline.root), SECRET) == []
        session.execute(insert("whole", "open", 31).encode())
        session.execute("COMMIT")
    pipeline.catch_up()
    assert_protected(pipeline)
    run_resync(pipeline.config, ["public.person"])
    pipeline.catch_up()
    run_rebuild(pipeline.config, ["public.*"])
    assert_protected(pipeline)
    assert places_of(temporary, SECRET) == []
    assert places_of(Path(pipeline.root), KEY) == []


KILLS = (CrashStep.SEAL_CHANGES, CrashStep.COMMIT_BRONZE, CrashStep.STAGE_COPIED_ROWS, CrashStep.WRITE_TABLE)


@pytest.mark.sample(1)
@pytest.mark.promise("protected columns")
@pytest.mark.parametrize("step", KILLS, ids=lambda step: step.name.lower())
def test_a_run_that_is_killed_leaves_no_value(protected: Pipeline, step: CrashStep, tmp_path: Path) -> None:
    pipeline = protected
    pipeline.run(*PERSON)
    pipeline.run(*(insert(table, str(n), n, odd="plainMarker") for table in TABLES for n in range(5)))
    if step is not CrashStep.STAGE_COPIED_ROWS:
        pipeline.catch_up()
        pipeline.run(*(f"UPDATE {table} SET n = n + 1, odd = 'plainMarker2'" for table in TABLES))
        pipeline.run(*(f"UPDATE {table} SET mail = mail || 'x' WHERE n > 1" for table in TABLES))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    file = write_config(pipeline, tmp_path)
    environ = {k: v for k, v in os.environ.items() if "SPARK" not in k}
    environ |= {"HASH_KEY": KEY, "TMPDIR": str(temporary)}
    when = "after" if step is CrashStep.STAGE_COPIED_ROWS else "before"
    command = [sys.executable, "-m", "tests.support.fault_points"]
    command += ["run", str(file), step.value, when, "killed"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    # the search finds what was written until then
    assert [name for name in places_of(Path(pipeline.root), "plainMarker") if "silver" not in name]
    assert places_of(Path(pipeline.root), SECRET) == places_of(temporary, SECRET) == []
    assert SECRET.encode() not in ended.stdout + ended.stderr
    pipeline.catch_up()
    assert_protected(pipeline)


def write_config(pipeline: Pipeline, folder: Path) -> Path:
    """Write the configuration as a file."""
    source = pipeline.config.source
    file = folder / "pipeline.yaml"
    file.write_text(
        f"""\
pipeline: {pipeline.config.pipeline}
source:
  conninfo: "{source.conninfo}"
  publication: {source.publication}
  slot: {source.slot}
  hash_key: "${{HASH_KEY}}"
  protocol: {{two_phase: true, streaming: on}}
storage: {{root: "{pipeline.root}"}}
tables:
  - source: public.*
    types: {{odd: INT}}
    columns:
      exclude: [out, later]
      hash: {{id: hmac-sha256, mail: hmac-sha256, age: hmac-sha256}}
      mask: {{card: last4, note: null, name: "***"}}
"""
    )
    return file


@pytest.mark.quick
@pytest.mark.promise("protected columns")
def test_a_rule_that_changes_holds_the_table_until_it_is_copied(protected: Pipeline) -> None:
    pipeline = protected
    pipeline.catch_up(*PERSON, *(insert(table, "1", 1) for table in TABLES))
    other = replace(RULES, exclude=("later",), hash={"id": "hmac-sha256", "out": "hmac-sha256"})
    changed = with_protection(pipeline, replace(other, mask={**RULES.mask, "mail": None, "age": None}))
    changed.run(*(f"UPDATE {table} SET n = 9" for table in TABLES))
    planned = make_plan(changed.config).tables
    assert {table.name.table for table in planned} == set(TABLES)
    assert all("the rule of column" in table.steps[0].sentence for table in planned)
    changed.ingest()
    summary = changed.apply()
    assert summary.exit_code(strict=True) == 1
    for table in TABLES:
        assert changed.frame("silver", "public", table).collect()[0]["n"] == 1
        [held] = [sentence for kind, sentence in changed.events(table) if kind == "resync"]
        assert "the rule of column" in held
        assert f"resync --table public.{table}" in held
    run_resync(changed.config, ["public.*"])
    changed.catch_up()
    row = changed.frame("silver", "public", "person").collect()[0]
    assert (row["n"], row["mail"], row["age"]) == (9, None, None)
    [[out]] = changed.source.execute("SELECT out FROM person")
    assert row["out"] == hashed(out)
    assert places_of(Path(pipeline.root), SECRET) == []
    # another key
    rekeyed = with_protection(changed, changed.config.tables[0].columns, "another key, 456789")
    rekeyed.ingest("UPDATE person SET n = 10")
    rekeyed.apply()
    assert rekeyed.frame("silver", "public", "person").collect()[0]["n"] == 9
    run_resync(rekeyed.config, ["public.person"])
    rekeyed.catch_up()
    found = rekeyed.frame("silver", "public", "person").collect()[0]
    assert found["n"] == 10
    assert found["id"] != row["id"]


@pytest.mark.spark
@pytest.mark.promise("protected columns")
def test_a_renamed_column_or_table_stays_protected(protected: Pipeline) -> None:
    pipeline = protected
    pipeline.catch_up(*PERSON, insert("person", "1", 1))
    pipeline.catch_up(
        "ALTER TABLE person RENAME mail TO contact",
        "ALTER TABLE person RENAME out TO outside",
        "ALTER TABLE person RENAME note TO remark",
        f"UPDATE person SET contact = '{SECRET}Contact', outside = '{SECRET}Outside', n = 2",
    )
    pipeline.run(f"UPDATE person SET contact = '{SECRET}Again', outside = '{SECRET}Outside2', n = 3")
    pipeline.catch_up()  # in another session
    row = pipeline.frame("silver", "public", "person").collect()[0]
    assert (row["contact"], row["remark"], row["n"]) == (hashed(f"{SECRET}Again"), None, 3)
    assert "outside" not in row
    assert "out" not in row
    sentences = [
        sentence for kind, sentence in pipeline.events("person") if "has the rule of column" in sentence
    ]
    assert len(sentences) == 3
    pipeline.ingest("ALTER TABLE person RENAME TO people", insert("people", "2", 5))
    pipeline.apply()
    assert places_of(Path(pipeline.root), SECRET) == []


def test_a_masked_key_is_named_and_an_unknown_column_is_an_event(protected: Pipeline) -> None:
    pipeline = protected
    pipeline.run(*PERSON, insert("person", "1", 1))
    for rules in (ColumnRules(mask={"id": None}), ColumnRules(exclude=("id",)), ColumnRules(include=("n",))):
        refused = with_protection(pipeline, replace(rules, places={"id": "f.yaml:7: tables[0].columns.x"}))
        for text in refused.ingest().unfollowed.values():
            assert re.match(r"f.yaml:7: .*Column id is .* part of the key", text), text
        [found] = [each for each in checks(refused) if each.name == "protected columns"]
        assert not found.ok
        assert "Column id is" in found.sentence
    misnamed = with_protection(pipeline, replace(RULES, exclude=(*RULES.exclude, "Mail")))
    misnamed.catch_up()
    [missing] = [each for each in checks(misnamed) if not each.ok]
    assert "the rules of tables name: Mail of public.*" in missing.sentence
    [event] = [sentence for _, sentence in misnamed.events("person") if "Mail" in sentence]
    assert event.startswith("Table public.person has no column Mail")


@pytest.mark.promise("protected columns")
@pytest.mark.parametrize("copy", ["initial", pytest.param("never", marks=pytest.mark.slow)])
def test_a_protected_column_that_joins_a_key_holds_its_table_alone(
    make_pipeline: MakePipeline, copy: str
) -> None:
    """The others continue with exit code 0, no value gets into the lake, and the table is followed again."""
    pipeline = make_pipeline("public.*", copy=copy)
    rules = ColumnRules(mask={"mail": "***"}, places={"mail": "f.yaml:7: tables[0].columns.mask.mail"})
    pipeline = with_protection(pipeline, rules)
    name = pipeline.config.source.publication
    pipeline.ingest(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, mail text NOT NULL, v int)" for t in ("joined", "other")),
        f"CREATE PUBLICATION {name} FOR TABLE joined, other",
    )
    pipeline.run(*(f"INSERT INTO {t} VALUES (1, '{SECRET}', 1)" for t in ("joined", "other")))
    catch_up_but(pipeline, held=())
    pipeline.run(
        "ALTER TABLE joined DROP CONSTRAINT joined_pkey, ADD PRIMARY KEY (id, mail)",
        f"UPDATE joined SET mail = '{SECRET}2', v = 2",
        "UPDATE other SET v = 2",
        "CREATE TABLE late (mail text PRIMARY KEY, v int)",
        f"INSERT INTO late VALUES ('{SECRET}', 1)",
        f"ALTER PUBLICATION {name} ADD TABLE late",
        f"UPDATE late SET mail = '{SECRET}3'",
    )
    why = (
        "f.yaml:7: tables[0].columns.mask.mail: Column mail is masked, but it is part of the key of table"
        " public.{}. Hash it instead, or remove the rule."
    )
    for statement in ("UPDATE other SET v = 3", f"DELETE FROM joined WHERE mail = '{SECRET}2'"):
        summary = catch_up_but(pipeline, held=("joined", "late"))
        assert {each.table: str(text) for each, text in summary.unfollowed.items()} == {
            table: why.format(table) for table in ("joined", "late")
        }
        pipeline.run(statement)
    [check] = [each for each in checks(pipeline) if each.name == "protected columns"]
    tables = "Tables that are not followed because of rules for columns: public.joined, public.late."
    assert (check.ok, f"{check.sentence} {check.fix}") == (False, f"{tables} {why.format('joined')}")
    states = {table.name.table: table for table in read_status(pipeline.config).tables}
    assert states["other"].state == "current"
    for table in ("joined", "late"):
        assert states[table].state in ("unpublished", "held")
    assert places_of(Path(pipeline.root), SECRET) == []
    pipeline = with_protection(pipeline, ColumnRules(hash={"mail": "hmac-sha256"}))
    if copy == "never":
        run_resync(pipeline.config, ["public.joined", "public.late"])
    pipeline.run(
        *(f"INSERT INTO {t} VALUES ({n}'{SECRET}4', 4)" for t, n in (("joined", "4, "), ("late", "")))
    )
    for _ in range(2):
        pipeline.ingest()
        pipeline.apply()
        pipeline.run("UPDATE joined SET v = v + 1", "UPDATE late SET v = v + 1")
    pipeline.ingest()
    pipeline.apply()
    for table in ("joined", "late"):
        rows = pipeline.frame("silver", "public", table).select("mail", "v").collect()
        mails = dict(pipeline.source.execute(f"SELECT mail, v FROM {table}").fetchall())
        assert {tuple(row) for row in rows} == {(hashed(mail), v) for mail, v in mails.items()}


def catch_up_but(pipeline: Pipeline, *, held: Collection[str]) -> IngestSummary:
    """Run both jobs: the tables `held` are not followed, none fails, and the others continue."""
    ingested = pipeline.ingest()
    assert {name.table for name in ingested.unfollowed} == set(held)
    assert [ingested.exit_code(strict=each) for each in (False, True)] == [0, int(bool(held))]
    applied = pipeline.apply()
    assert applied.exit_code(strict=False) == 0, applied.lines()
    return ingested


def checks(pipeline: Pipeline) -> list[Check]:
    with connect(pipeline.config.source.conninfo) as connection:
        return list(check_tables(connection, pipeline.config, None))


@pytest.mark.slow
def test_reconcile_lists_the_columns_that_it_left_out(protected: Pipeline) -> None:
    pipeline = protected
    pipeline.catch_up(*PERSON, *(insert(table, str(n), n) for table in TABLES for n in range(3)))
    found = run_reconcile(pipeline.config, ["public.person"], runs=True)
    [verdict] = found.verdicts
    assert verdict.verdict == "equal"
    assert set(verdict.left_out) == {"id", "out", "mail", "age", "card", "note", "name", "odd"}
    assert places_of(Path(pipeline.root), SECRET) == []


@pytest.mark.promise("protected columns")
def test_a_hashed_key_is_erased_by_its_value_and_copied_by_none(protected: Pipeline) -> None:
    pipeline = protected
    pipeline.catch_up(*PERSON, insert("person", "1", 1), insert("person", "2", 2))
    one = KeyRange((f"{SECRET}1",), (f"{SECRET}1",))
    with pytest.raises(ConfigError, match="a column of its key is hashed"):
        run_resync(pipeline.config, ["public.person"], key_ranges=[one])
    pipeline.catch_up(f"DELETE FROM person WHERE id = '{SECRET}1'")
    erased = str(hashed(f"{SECRET}1"))
    assert places_of(Path(pipeline.root), erased)
    rekeyed = with_protection(pipeline, RULES, "another key, 456789")
    with pytest.raises(LakeError, match="hashed with another"):
        run_forget(rekeyed.config, "public.person", [(f"{SECRET}1",)])
    run_forget(pipeline.config, "public.person", [(f"{SECRET}1",)])
    assert places_of(Path(pipeline.root), erased) == places_of(Path(pipeline.root), SECRET) == []
    assert shown(pipeline, "person") == expected(pipeline, "person")


@pytest.mark.promise("protected columns")
def test_bounds_of_a_hashed_column_are_recorded_nowhere(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(create_publication="never", copy="initial")
    pipeline = with_protection(pipeline, ColumnRules(hash={"id": "hmac-sha256"}))
    publication = pipeline.config.source.publication
    part = f"PARTITION OF part FOR VALUES IN ('{SECRET}{{0}}')"
    pipeline.catch_up(
        "CREATE TABLE part (id text, day int, v int, PRIMARY KEY (id, day)) PARTITION BY LIST (id)",
        f"CREATE PUBLICATION {publication} FOR TABLE part WITH (publish_via_partition_root)",
        f"CREATE TABLE part1 {part.format(1)}",
        f"CREATE TABLE part2 {part.format(2)} PARTITION BY RANGE (day)",
        "CREATE TABLE part21 PARTITION OF part2 FOR VALUES FROM (1) TO (32)",
        f"INSERT INTO part VALUES ('{SECRET}1', 1, 1), ('{SECRET}2', 1, 1)",
    )
    assert shown_parts(pipeline) == {(hashed(f"{SECRET}{n}"), 1, 1) for n in (1, 2)}
    pipeline.catch_up(
        "ALTER TABLE part RENAME id TO key",
        "CREATE TABLE part3 (key text NOT NULL, day int NOT NULL, v int)",
        f"INSERT INTO part3 VALUES ('{SECRET}3', 1, 1)",
        f"ALTER TABLE part ATTACH PARTITION part3 FOR VALUES IN ('{SECRET}3')",
        "DROP TABLE part1",
    )
    pipeline.catch_up()
    assert shown_parts(pipeline) == {(hashed(f"{SECRET}{n}"), 1, 1) for n in (2, 3)}
    assert places_of(Path(pipeline.root), SECRET) == []


def shown_parts(pipeline: Pipeline) -> set[tuple[Any, ...]]:
    frame = pipeline.frame("silver", "public", "part")
    key = "key" if "key" in frame.columns else "id"
    return {tuple(row) for row in frame.select(key, "day", "v").collect()}
