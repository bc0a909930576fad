"""Changes that hold a table: the SQL that finds them, and the sentence."""

from __future__ import annotations

import pytest

from pipeline.silver.policies import refusal_of, update_without_row
from pipeline.table_name import TableName
from tests.support.silver.relations import INT4, column, relation, survey

KEYED = relation(column("id", 1, INT4, is_key=True), column("v", 2), version=1)
FULL = relation(column("id", 1, INT4, is_key=True), column("v", 2, is_key=True), version=3, identity="f")
RELATIONS = {r.version: r for r in (KEYED, FULL)}


@pytest.mark.promise("updates without an old row")
def test_update_without_an_old_row_matters_only_if_whole_rows_are_compared() -> None:
    keyed = survey(1, (10, 0), (20, 0), updates=2, without_old_row=2)
    whole = survey(3, (30, 0), (40, 0), updates=2)
    assert update_without_row([keyed, whole], RELATIONS) is None
    some = survey(3, (30, 0), (40, 0), updates=2, without_old_row=1)
    found = update_without_row([keyed, some], RELATIONS)
    assert found == "op = 'U' AND coalesce(old_kind, '') <> 'O' AND relation_version IN (3)"


def test_update_without_an_old_row_holds_the_table_with_what_to_run() -> None:
    held = refusal_of(TableName("public", "r"), 30, None)
    assert (held.commit_lsn, held.kind) == (30, "held")
    assert "REPLICA IDENTITY FULL for each partition" in held.sentence
    assert held.sentence.endswith("pgdelta resync --table public.r.")
    assert refusal_of(TableName("public", "r"), 30, "v").kind == "refused"
