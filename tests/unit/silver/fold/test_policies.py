"""Changes that hold a table: the SQL that finds them, and the sentence."""

import pytest

from pipeline.silver.fold.policies import change_without_row, refusal_of
from pipeline.table_name import TableName
from tests.support.silver.relations import INT4, column, relation, survey

KEYED = relation(column("id", 1, INT4, is_key=True), column("v", 2), version=1)
FULL = relation(column("id", 1, INT4, is_key=True), column("v", 2, is_key=True), version=3, identity="f")
BARE = relation(column("id", 1, INT4), column("v", 2), version=4)
RELATIONS = {r.version: r for r in (KEYED, FULL, BARE)}


@pytest.mark.promise("updates without an old row")
def test_update_without_an_old_row_matters_only_if_whole_rows_are_compared() -> None:
    keyed = survey(1, (10, 0), (20, 0), updates=2, without_old_row=2)
    whole = survey(3, (30, 0), (40, 0), updates=2)
    assert change_without_row([keyed, whole], RELATIONS) is None
    some = survey(3, (30, 0), (40, 0), updates=2, without_old_row=1)
    found = change_without_row([keyed, some, survey(4, (50, 0), (60, 0))], RELATIONS)
    update = "op = 'U' AND coalesce(old_kind, '') <> 'O' AND relation_version IN (3)"
    assert found == f"CASE WHEN {update} THEN relation_version END"
    found = change_without_row([survey(4, (50, 0), (60, 0), updates=1)], RELATIONS)
    assert found == "CASE WHEN op IN ('U', 'D') AND relation_version IN (4) THEN relation_version END"


def test_update_without_an_old_row_holds_the_table_with_what_to_run() -> None:
    held = refusal_of(TableName("public", "r"), 30, None, 3, RELATIONS)
    assert (held.commit_lsn, held.kind) == (30, "held")
    assert "REPLICA IDENTITY FULL for each partition" in held.sentence
    assert held.sentence.endswith("pgdelta resync --table public.r.")
    assert refusal_of(TableName("public", "r"), 30, "v", None, RELATIONS).kind == "refused"
