"""Silver tables and columns have the comments on the source's, and properties, by both writers."""

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from pipeline.config.tables import ColumnRules, TableRule
from pipeline.verify.reconcile import run_reconcile
from tests.support.lockstep import ALONE, CAPTURED, Group, Lane, Steps, lockstep
from tests.support.spark_sessions import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

GROUP = Group(copy="initial", writers=("native", "spark"))
HOSTILE = [
    "it's \"quoted\", `so`; -- DROP TABLE t",
    "two\nlines\r\n\tand a tab",
    "back\\slash \\n \\u0041 %s ${env:HOME} $1 {}",
    "emoji 🎉 and ünïcödé \u2028",
    "x" * 10_240,
    "'", "\\", "$$",
]  # fmt: skip
Comments = dict[str | None, str]


def comment(lane: Lane, text: str | None, column: str | None = None, table: str = "t") -> None:
    """Set the comment on a table of the source, or on a column."""
    what = f"TABLE {table}" if column is None else f'COLUMN {table}."{column}"'
    value = "NULL" if text is None else "$$" + text + "$$" if "$$" not in text else f"'{text}'"
    lane.run(f"COMMENT ON {what} IS {value}")


def comments(lane: Lane, table: str = "t") -> Comments:
    """Return the comments that a silver table has, by Delta's log: under None its own."""
    found = DeltaTable(lane.silver(table).path)
    named: dict[str | None, str | None] = {None: found.metadata().description}
    named |= {field.name: field.metadata.get("comment") for field in found.schema().fields}
    return {name: text for name, text in named.items() if text}


def create(lane: Lane) -> None:
    """Create a table with comments that no run has seen yet."""
    lane.run("CREATE TABLE t (id int PRIMARY KEY, v text, w text)", "INSERT INTO t VALUES (1, 'a', 'b')")
    comment(lane, "the table")
    comment(lane, "the key", "id")


@pytest.mark.promise("comments")
@lockstep()
def test_comments_are_set_at_creation_and_follow_the_source(lane: Lane) -> Steps:
    create(lane)
    yield
    assert comments(lane) == {None: "the table", "id": "the key"}
    # with the next change
    comment(lane, "a value", "v")
    comment(lane, "the number", "id")
    lane.run("INSERT INTO t VALUES (2, 'c', 'd')")
    yield CAPTURED
    [plan] = lane.plan()
    assert "Comments of columns are set: id, v" in [step.sentence for step in plan.steps]
    yield
    assert comments(lane) == {None: "the table", "id": "the number", "v": "a value"}
    # without any change of rows
    before = {*lane.silver("t").snapshot().files}
    comment(lane, "another")
    comment(lane, None, "v")
    yield
    assert comments(lane) == {None: "another", "id": "the number"}
    assert {*lane.silver("t").snapshot().files} == before
    version, recorded = lane.silver("t").version(), lane.records("comments", "t")
    yield  # nothing is set or recorded again
    assert lane.silver("t").version() == version
    assert lane.records("comments", "t") == recorded
    lane.run("UPDATE t SET v = 'e'")
    yield
    assert lane.silver("t").version() == version + 1
    lane.assert_equal("t")
    yield ALONE
    assert run_reconcile(lane.config, [str(lane.name("t"))], runs=True).exit_code(strict=True) == 0


@pytest.mark.promise("comments")
@lockstep()
def test_hostile_comments_arrive_as_they_are(lane: Lane) -> Steps:
    columns = [f"c{n}" for n in range(len(HOSTILE))]
    lane.run(f"CREATE TABLE h (id int PRIMARY KEY, {', '.join(f'{c} int' for c in columns)})")
    lane.run("INSERT INTO h VALUES (1)", 'CREATE TABLE "o" (id int PRIMARY KEY, "a`b c" int)')
    lane.run('INSERT INTO "o" VALUES (1, 2)')
    for text, column in zip(HOSTILE, columns, strict=True):
        comment(lane, text, column, "h")
    comment(lane, HOSTILE[0], None, "h")
    comment(lane, HOSTILE[2], "a`b c", "o")
    yield
    wanted: Comments = dict(zip([None, *columns], [HOSTILE[0], *HOSTILE], strict=True))
    assert comments(lane, "h") == wanted
    h, o = (shared_session().read.format("delta").load(lane.silver(name).path).schema for name in "ho")
    assert [h[c].metadata["comment"] for c in columns] == HOSTILE
    assert o["a`b c"].metadata["comment"] == HOSTILE[2]
    for text, column in zip(HOSTILE[1:] + HOSTILE[:1], columns, strict=True):
        comment(lane, text, column, "h")
    comment(lane, HOSTILE[1], None, "h")
    yield
    wanted = dict(zip([None, *columns], [HOSTILE[1], *HOSTILE[1:], HOSTILE[0]], strict=True))
    assert comments(lane, "h") == wanted
    lane.assert_equal("h")


@pytest.mark.promise("comments")
@lockstep()
def test_comments_follow_columns_copies_and_rebuilds(lane: Lane) -> Steps:
    create(lane)
    yield
    lane.run("ALTER TABLE t ADD x int")
    comment(lane, "the x", "x")
    lane.run("INSERT INTO t VALUES (2, 'a', 'b', 3)")
    yield
    assert comments(lane)["x"] == "the x"
    lane.run("ALTER TABLE t RENAME x TO y")
    comment(lane, "the y", "y")
    lane.run("INSERT INTO t VALUES (3, 'a', 'b', 3)")
    yield
    wanted: Comments = {None: "the table", "id": "the key", "y": "the y"}
    assert comments(lane) == wanted
    lane.rebuild("t")
    assert comments(lane) == wanted
    lane.resync("t")
    yield
    assert comments(lane) == wanted
    # a table that was created again has its own comments
    lane.run("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text, y int)")
    comment(lane, "the new v", "v")
    comment(lane, "the new y", "y")
    lane.run("INSERT INTO t VALUES (7, 'a', 1)")
    yield
    assert comments(lane) == {"v": "the new v", "y": "the new y"}
    lane.assert_equal("t")


@lockstep(TableRule("*.*", comment="configured", columns=ColumnRules(exclude=("w",))))
def test_the_configuration_precedes_the_source(lane: Lane) -> Steps:
    create(lane)
    comment(lane, "an excluded column", "w")
    yield
    assert comments(lane) == {None: "configured", "id": "the key"}
    assert {row.column_name for row in lane.records("comments", "t")} == {None, "id"}
    comment(lane, "changed")
    yield
    assert comments(lane)[None] == "configured"


@lockstep(TableRule("*.*", source_comments=False))
def test_comments_of_the_source_can_be_left_out(lane: Lane) -> Steps:
    create(lane)
    yield
    assert comments(lane) == {}
    assert not lane.records("comments", "t")


@lockstep()
def test_comments_that_others_set_stay(lane: Lane) -> Steps:
    create(lane)
    yield
    path = lane.silver("t").path
    shared_session().sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN v COMMENT 'by an analyst'")
    comment(lane, "the number", "id")
    lane.run("INSERT INTO t VALUES (2, 'c', 'd')")
    yield
    assert comments(lane) == {None: "the table", "id": "the number", "v": "by an analyst"}


def described(lane: Lane) -> tuple[str | None, dict[str, str]]:
    """Return the comment and the properties of the table, as Spark reads them."""
    detail = shared_session().sql(f"DESCRIBE DETAIL delta.`{lane.silver('t').path}`").collect()[0]
    return detail.description, dict(detail.properties)


GIVEN = {"team": "sales", "delta.dataSkippingNumIndexedCols": "8"}


@pytest.mark.promise("comments and properties")
@lockstep(TableRule("*.*", comment="it's a table", properties=GIVEN))
def test_comment_and_properties_are_set_at_creation_and_later(lane: Lane) -> Steps:
    lane.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    yield
    text, found = described(lane)
    assert text == "it's a table"
    assert found.items() >= GIVEN.items()
    lane.set_rules(replace(lane.rules[0], comment="another", properties={"team": "stock"}))
    lane.run("INSERT INTO t VALUES (2, 'b')")
    yield CAPTURED
    steps = [step.sentence for table in lane.plan() for step in table.steps]
    assert "The table's properties are set: comment = another, team = stock" in steps
    yield
    version = lane.silver("t").version()
    assert described(lane)[0] == "another"
    # what the rule does not name stays
    assert described(lane)[1].items() >= (GIVEN | {"team": "stock"}).items()
    lane.run("UPDATE t SET v = 'c' WHERE id = 2")
    yield
    assert lane.silver("t").version() == version + 1  # nothing is set again
    lane.resync("t")
    yield
    lane.rebuild("t")
    assert described(lane)[0] == "another"
    assert described(lane)[1].items() >= {"team": "stock"}.items()
    lane.assert_equal("t")
