"""Keys of every type that `pgdelta forget` supports: the row is found in bronze and in silver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.config.tables import TableRule
from pipeline.errors import LakeError
from pipeline.forget.forget import run_forget
from pipeline.operate.rebuild import run_rebuild
from pipeline.reading.history import read_history
from pipeline.table_name import TableName
from pipeline.verify.audit import run_audit
from tests.support import oracle
from tests.support.native_pipelines import NativePipeline
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, with_rules, with_writer
from tests.support.servers import Database

if TYPE_CHECKING:
    from pipeline.silver.write.writer_choice import WriterSetting

TYPES = {
    "boolean": ("t", "f"),
    "date": ("2026-01-31", "0001-01-01"),
    "timestamp": ("2026-01-31 09:30:00.5", "9999-12-31 23:59:59.999999"),
    "timestamptz": ("2026-01-31 09:30:00+00", "1970-01-01 00:00:00.00001+00"),
    "bytea": ("\\x00ff41", "\\x"),
    "time": ("24:00:00", "00:00:00"),
    "inet": ("10.0.0.1", "10.0.0.0/8"),
    "cidr": ("10.0.0.0/8", "::/0"),
    "macaddr": ("08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    "bit(3)": ("101", "110"),
    "varbit": ("1", "10"),
    "pg_lsn": ("0/A", "1/0"),
    "name": ("a", "b"),
    '"char"': ("a", "b"),
}
SUBJECT = tuple(first for first, _ in TYPES.values())
SECRET = "xyzzySubject"


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_keys_of_all_types(make_pipeline: MakePipeline, writer: WriterSetting) -> None:
    pipeline = with_writer(make_pipeline(create_publication="all", copy="initial"), writer)
    names = [f"c{number}" for number in range(len(TYPES))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, TYPES, strict=True))
    pipeline.run(f"CREATE TABLE typed ({columns}, v text, PRIMARY KEY ({', '.join(names)}))")

    def insert(*texts: str) -> None:
        values = ", ".join(f"'{text}'" for text in texts)
        pipeline.run(f"INSERT INTO typed VALUES ({values})")

    def forget(*keys: tuple[str, ...]) -> int:
        receipt = run_forget(pipeline.config, "public.typed", keys)
        return sum(place.rows for place in receipt.places if place.place == "bronze/changes")

    # each of the other rows differs from the subject in one column
    others = [(*SUBJECT[:n], second, *SUBJECT[n + 1 :]) for n, (_, second) in enumerate(TYPES.values())]
    insert(*SUBJECT, SECRET)
    for other in others:
        insert(*other, "kept")
    pipeline.catch_up()
    assert read_history(pipeline.config, "public.typed", SUBJECT).lives
    for living in (SUBJECT, *others):
        with pytest.raises(LakeError, match="still has a row with one of the keys"):
            forget(living)
    pipeline.run(f"UPDATE typed SET v = '{SECRET}2' WHERE v = '{SECRET}'")
    pipeline.catch_up(f"UPDATE typed SET c1 = '2026-02-01' WHERE v = '{SECRET}2'")
    with pytest.raises(LakeError, match="under another key"):
        forget(SUBJECT)
    pipeline.catch_up(f"DELETE FROM typed WHERE v = '{SECRET}2'")
    assert forget(SUBJECT) == 4
    left = [row for row in pipeline.changes() if row["table_name"] == "typed"]
    assert len(left) == len(others)
    assert SECRET not in str(left)
    assert run_audit(pipeline.config).findings == ()
    pipeline.catch_up("UPDATE typed SET v = 'changed' WHERE c0")
    assert run_rebuild(pipeline.config).exit_code(strict=True) == 0
    name = TableName("public", "typed")
    oracle.assert_silver_equals_source(pipeline.source, pipeline.spark, pipeline.root, [name])


@pytest.mark.parametrize("silver_type", [None, "STRING"])
def test_a_row_that_got_a_date_which_silver_does_not_hold(
    make_pipeline: MakePipeline, silver_type: str | None
) -> None:
    types = {"day": silver_type} if silver_type else {}
    made = with_rules(make_pipeline(create_publication="all"), TableRule("*.*", types=types))
    pipeline = with_writer(made, "native")
    pipeline.ingest()
    pipeline.run("CREATE TABLE typed (day date PRIMARY KEY, v text)")
    pipeline.run("INSERT INTO typed VALUES ('2026-01-31', 'a')")
    pipeline.ingest("UPDATE typed SET day = 'infinity' WHERE v = 'a'")
    pipeline.apply()
    sentence = "under another key" if silver_type else "does not show all changes"
    with pytest.raises(LakeError, match=sentence):
        run_forget(pipeline.config, "public.typed", [("2026-01-31",)])


def test_a_key_is_never_that_of_other_columns_texts(database: Database, tmp_path: Path) -> None:
    pipeline = NativePipeline.make(database, tmp_path)
    marks = [chr(code) for code in (1, 9, 28, 29, 30, 31, 127)]
    ours = [(f"x{mark}y", "z") for mark in marks]
    others = [("x", f"y{mark}z") for mark in marks]
    pipeline.run("CREATE TABLE pairs (a text, b text, v text, PRIMARY KEY (a, b))")
    with pipeline.database.connect() as source:
        for pair in (*ours, *others):
            source.execute("INSERT INTO pairs VALUES (%s, %s, 'v')", pair)
    pipeline.ingest("DELETE FROM pairs")
    pipeline.apply()
    lives = [read_history(pipeline.config, "public.pairs", pair).lives for pair in others]
    assert [[len(life) for life in each] for each in lives] == [[2]] * len(others)
    receipt = run_forget(pipeline.config, "public.pairs", ours)
    assert sum(place.rows for place in receipt.places if place.place == "bronze/changes") == 2 * len(ours)
    assert all(read_history(pipeline.config, "public.pairs", pair).lives for pair in others)
