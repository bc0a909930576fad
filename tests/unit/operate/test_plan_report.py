"""`pgdelta plan --sql`: the statements of the next apply as a script."""

from pipeline.operate.plan_report import Plan, PlannedTable, PlanStep
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName
from tests.support.pages import render

NAME = TableName("s", "t")
DROP = PlanStep(LSN(2), "Column a was dropped.", "no data is written", "its values", ("ALTER TABLE t\nX",))
HELD = PlanStep(LSN(3), "Table s.t is held.", "nothing is applied from there on", holds=True)


def script(plan: Plan, width: int = 40) -> list[str]:
    return render(plan.print, width).splitlines()


def test_sql_is_a_script_of_statements_with_comments() -> None:
    table = PlannedTable(NAME, LSN(1), {"I": 2}, (DROP, HELD))
    assert script(Plan("p", LSN(3), (table,), has_details=True, has_sql=True)) == [
        "-- p: 1 table has changes to apply, up to 0/3",
        "",
        "-- s.t: 2 inserts after 0/1",
        "-- s.t: Column a was dropped; cost: no data is written; loses: its values",
        "ALTER TABLE t",
        "X;",
        "-- s.t: Table s.t is held; cost: nothing is applied from there on",
    ]


def test_a_table_that_fails_and_a_plan_of_nothing_are_comments() -> None:
    table = PlannedTable(NAME, LSN(1), {}, failure="Its log\ncannot be read.")
    lines = script(Plan("p", LSN(3), (table,), has_details=True, has_sql=True))
    assert lines[0] == "-- p: 1 table is stopped, up to 0/3"
    assert lines[2:] == ["-- s.t: no changes after 0/1", "-- s.t: fails: Its log cannot be read."]
    [nothing] = script(Plan("p", LSN(3), (), has_sql=True))
    assert nothing == "-- p: silver shows all that bronze holds (up to 0/3)"


def test_a_line_end_in_a_name_ends_no_comment_and_no_statement() -> None:
    name = TableName("s", "a\nDROP TABLE b; --")
    write = PlanStep(LSN(2), "append", "one write", None, ("INSERT INTO `a\u2028b`",), is_write=True)
    table = PlannedTable(name, LSN(1), {"I": 1}, (write,))
    lines = script(Plan("p\nq", LSN(3), (table,), has_sql=True), width=200)
    statements = [line for line in lines if line and not line.startswith("-- ")]
    assert len(statements) == 1
    assert statements[0].startswith("INSERT INTO `a")
    assert statements[0].endswith("b`;")


def test_json_has_every_statement_of_a_step() -> None:
    table = PlannedTable(NAME, LSN(1), {"I": 2}, (DROP, HELD))
    [shown] = Plan("p", LSN(3), (table,), has_sql=True).as_json()["tables"]
    assert [step["sql"] for step in shown["steps"]] == [["ALTER TABLE t\nX"], []]


def test_a_table_that_waits_is_not_called_held() -> None:
    waits = PlanStep(LSN(3), "Table s.t waits for its copy. Run pgdelta ingest.", "nothing", holds=True)
    assert PlannedTable(NAME, LSN(1), {}, (waits,)).summary.plain == "waits for its copy. Run pgdelta ingest."
    assert PlannedTable(NAME, LSN(1), {}, (HELD,)).summary.plain == "held."
    both = (PlannedTable(NAME, LSN(1), {}, (waits,)), PlannedTable(TableName("s", "u"), LSN(1), {"I": 1}))
    page = render(Plan("p", LSN(3), both).print, 100)
    assert page.startswith("p: 1 table has changes to apply, 1 table is stopped, up to 0/3\n")
