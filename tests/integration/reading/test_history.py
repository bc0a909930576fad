"""`pgdelta history`: a row's changes as they were made at the source, found in bronze by its key."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.tables import ColumnRules, TableRule
from pipeline.errors import ConfigError, LakeError
from pipeline.operate.resync import run_resync
from pipeline.reading.history import read_history
from tests.support.pipelines import MakePipeline, with_rules


@pytest.mark.promise("history of a row", "the life of one row")
def test_the_life_of_a_row_is_what_the_source_did_to_it(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("public.*", copy="initial", create_publication="configured")
    pipeline.ingest(
        "CREATE TABLE t (id int, part text, v text, big text, PRIMARY KEY (id, part))",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE entire (id int)",
        "ALTER TABLE entire REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 'a', 'v', repeat(md5(i::text), 300) FROM generate_series(1, 50) i",
        "INSERT INTO entire VALUES (1)",
    )
    expected: list[tuple[str, list[str]]] = [("R", ["id", "part", "v", "big"])]
    for statement, op, columns in (
        ("UPDATE t SET v = 'w' WHERE id = 7", "U", ["v"]),
        ("UPDATE t SET id = 107 WHERE id = 7", "U", ["id"]),
        ("INSERT INTO t VALUES (7, 'a', 'another')", None, []),
        ("DELETE FROM t WHERE id = 8", None, []),
        ("ALTER TABLE t RENAME v TO x", None, []),
        ("UPDATE t SET x = 'y' WHERE id = 107", "U", ["x"]),
    ):
        pipeline.run(statement)
        expected += [(op, columns)] if op else []
    pipeline.ingest()
    run_resync(pipeline.config, ["public.t"])
    pipeline.ingest()
    pipeline.ingest(
        "UPDATE t SET part = 'b', big = NULL WHERE id = 107", "TRUNCATE t", "INSERT INTO t VALUES (1, 'a')"
    )
    expected += [("R", []), ("U", ["part", "big"]), ("T", [])]

    def life(*key: str) -> list[list[tuple[str, list[str]]]]:
        rows: list[list[Any]] = read_history(pipeline.config, "public.t", key).as_json()["rows"]
        return [[(each["op"], [c["name"] for c in each["columns"]]) for each in row] for row in rows]

    for key in (("107", "a"), ("107", "b"), ("0107", "b")):
        assert life(*key) == [expected]
    both = life("7", "a")
    assert (
        both == [expected, [("I", ["id", "part", "x", "big"]), ("R", []), ("T", [])]] or both[0] == expected
    )
    assert [each[0] for each in life("8", "a")[0]] == ["R", "D"]
    assert life("999", "a") == []
    [[first, *_]] = read_history(pipeline.config, "public.t", ("107", "b")).as_json()["rows"]
    assert len({c["name"]: c["value"] for c in first["columns"]}["big"]) == 9600
    mistakes: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("public.t", ("7",), r"KEY has 1 value, but the key of public\.t is \(id, part\)"),
        ("public.t", ("x", "a"), "not valid for its column"),
        ("public.*", ("7",), "matches"),
        ("public.nothing", ("7",), "neither has the source"),
    )
    for table, wrong, message in mistakes:
        with pytest.raises(ConfigError, match=message):
            read_history(pipeline.config, table, wrong)
    with pytest.raises(LakeError, match=r"The key of public\.entire is not known"):
        read_history(pipeline.config, "public.entire", ("1",))


@pytest.mark.quick
def test_a_row_is_found_by_the_value_of_its_hashed_key(make_pipeline: MakePipeline) -> None:
    made = make_pipeline(create_publication="all")
    columns = ColumnRules(hash={"mail": "hmac-sha256"})
    pipeline = with_rules(made, TableRule("public.*", columns=columns))
    source = replace(pipeline.config.source, hash_key="the key of the tests, 123")
    pipeline = replace(pipeline, config=replace(pipeline.config, source=source))
    pipeline.ingest("CREATE TABLE t (n int, mail text, PRIMARY KEY (n, mail))")
    pipeline.ingest(
        "INSERT INTO t VALUES (1, 'a@b'), (1, 'c@d')", "UPDATE t SET mail = 'e@f' WHERE mail = 'a@b'"
    )
    for mail in ("a@b", "e@f"):
        [life] = read_history(pipeline.config, "public.t", ("1", mail)).as_json()["rows"]
        assert [entry["op"] for entry in life] == ["I", "U"]
    other = replace(pipeline.config, source=replace(source, hash_key="another key of the tests"))
    with pytest.raises(LakeError, match="is hashed with another"):
        read_history(other, "public.t", ("1", "a@b"))
