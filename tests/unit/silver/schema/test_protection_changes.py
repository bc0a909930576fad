"""A table never has values of two rules; a column that comes or goes at the source changes no rule."""

from dataclasses import replace

import pytest

from pipeline.bronze.protection import fingerprint
from pipeline.bronze.source_relations import SourceRelation
from pipeline.config.config import Config, Source
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.metadata.registry import RegisteredColumn, RegisteredTable
from pipeline.protected_columns import EXCLUDE, LAST4_MASK, MISSING, NULL_MASK, ProtectedColumn
from pipeline.silver.schema.column_mapping import SilverColumns
from pipeline.silver.schema.protection_changes import changed_rule, retyped_columns, rule_notes, rule_to_come
from pipeline.silver.schema.schema_evolution import plan_evolution
from pipeline.silver.schema.schema_operations import AddColumn, CreateTable, Hold, RuleNote
from tests.support.silver.relations import column, relation

KEY = "the key of the tests"
HASH = f"hmac-sha256 {fingerprint(KEY.encode())}"
OTHER_HASH = "hmac-sha256 0badcafe"
NUMBERS: dict[str, int | None] = {"id": 1, "a": 2, "b": 3}


def protected(name: str, rule: str, number: int | None, configured: str | None = None) -> ProtectedColumn:
    return ProtectedColumn(name, configured or name, number, rule)


def version(names: dict[str, int | None], *rules: ProtectedColumn) -> SourceRelation:
    columns = (column(name, number, is_key=name == "id") for name, number in names.items())
    return replace(relation(*columns), protected=rules)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        # plain and protected
        ((), version(NUMBERS, protected("a", HASH, 2)), f"column a changed from none to {HASH[:11]} with"),
        ((protected("a", HASH, 2),), version(NUMBERS), "column a changed from hmac-sha256 with the key"),
        (
            (),
            version({"id": 1, "b": 3}, protected("a", EXCLUDE, 2)),
            "a, whose rule was none, is left out",
        ),
        ((protected("a", EXCLUDE, 2),), version(NUMBERS), "column a changed from exclude to none"),
        # one rule and another
        (
            (protected("a", NULL_MASK, 2),),
            version(NUMBERS, protected("a", LAST4_MASK, 2)),
            "column a changed from mask null to mask last4",
        ),
        (
            (protected("a", OTHER_HASH, 2),),
            version(NUMBERS, protected("a", HASH, 2)),
            "column a changed from hmac-sha256 with the key 0badcafe to",
        ),
        # by name, where the catalog was ahead
        ((), version({"id": 1, "a": None}, protected("a", HASH, None)), "column a changed from none to"),
        ((protected("a", HASH, 2),), version({"id": 1, "a": None}, protected("a", HASH, None)), None),
        ((protected("a", HASH, None),), version(NUMBERS), "column a changed from"),
        # nothing changed
        ((protected("a", HASH, 2),), version(NUMBERS, protected("a", HASH, 2)), None),
        ((protected("a", HASH, 2),), version({"id": 1, "c": 2}, protected("c", HASH, 2, "a")), None),
        ((protected("a", HASH, 2),), version({"id": 1, "b": 3}), None),  # dropped
        ((), version({**NUMBERS, "new": 4}, protected("new", HASH, 4)), None),  # added
        ((), version(NUMBERS, protected("new", EXCLUDE, 4)), None),  # added, and left out
        ((), version(NUMBERS, ProtectedColumn(None, "A", None, MISSING)), None),
    ],
)
def test_a_change_of_a_rule_is_found(
    before: tuple[ProtectedColumn, ...], after: SourceRelation, sentence: str | None
) -> None:
    found = changed_rule(before, NUMBERS, after)
    assert (found is None) == (sentence is None), found
    assert sentence is None or sentence in str(found)
    # the table is held, and a copy helps
    recorded = SilverColumns(after.oid, NUMBERS, protected=before)
    operations = plan_evolution(recorded, after, dict.fromkeys(NUMBERS, "STRING"), TableRule("*.*"))
    holds = [each for each in operations if isinstance(each, Hold)]
    assert bool(holds) == (sentence is not None)
    if holds:
        assert holds[0].kind == "resync"
        assert (
            "pgdelta resync --table public.t, which copies all rows under the new rules." in holds[0].sentence
        )
    # a copy begins without anything recorded
    assert not any(isinstance(each, Hold) for each in plan_evolution(None, after, None, TableRule("*.*")))


def test_a_table_that_was_created_again_has_new_rules() -> None:
    recorded = SilverColumns(499, NUMBERS, protected=(protected("a", HASH, 2),))
    operations = plan_evolution(
        recorded, version(NUMBERS), dict.fromkeys(NUMBERS, "STRING"), TableRule("*.*")
    )
    assert operations == []


def typed(name: str, number: int | None, *kind: int) -> ProtectedColumn:
    return ProtectedColumn(name, name, number, HASH, *kind)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (typed("a", 2, 23, -1), typed("a", 2, 20, -1), []),  # the same texts
        (typed("a", 2, 23, -1), typed("a", 2, 1082, -1), [("a", False)]),
        (typed("id", 1, 25, -1), typed("id", 1, 1042, 9), [("id", True)]),
        (typed("a", 2, 23, -1), typed("c", 2, 1082, -1), [("c", False)]),  # renamed too
        (typed("a", 2, 23, -1), typed("a", 9, 1082, -1), []),  # another column
        (typed("a", 2, 23, -1), typed("a", None, 1082, -1), [("a", False)]),
        (typed("a", 2), typed("a", 2, 1082, -1), []),  # as an earlier version recorded it
        (typed("a", 2, 23, -1), typed("a", 2), []),
    ],
)
def test_a_type_that_has_other_texts_is_found(
    before: ProtectedColumn, after: ProtectedColumn, found: list[tuple[str, bool]]
) -> None:
    later = version(NUMBERS, after)
    assert [(c.name, is_key) for c, is_key in retyped_columns((before,), later)] == found
    # a type that is not known is that of the version before
    recorded = SilverColumns(later.oid, NUMBERS, protected=(before,)).after(later)
    is_same = before.is_same(after.name, after.attribute_number)
    assert recorded.protected[0].type == (after.type or (before.type if is_same else None))


def test_the_rules_of_columns_with_other_names_in_silver_do_not_change() -> None:
    rules = (protected("A", HASH, 3),)
    after = version({"id": 1, "a": 2, "A__3": 3}, *rules)
    assert changed_rule(rules, {"id": 1, "a": 2, "A__3": 3}, after) is None
    assert changed_rule((), {"id": 1, "a": 2, "A__3": 3}, after) is not None


def test_a_possibly_protected_column_is_noted_and_holds_a_table_with_it() -> None:
    guess = ProtectedColumn("c", "ssn", None, EXCLUDE)
    after = version({"id": 1}, guess)
    [note] = rule_notes((), after.name, after.protected)
    assert (note.kind, note.sentence) == (
        "resync",
        "Column c may be column ssn, because the table was altered again before its columns were looked up. "
        "It has the rule exclude until you run pgdelta resync --table public.t.",
    )
    assert changed_rule((), {"id": 1}, after) is None
    held = changed_rule((), {"id": 1, "c": 2}, version({"id": 1, "c": None}, replace(guess, rule=NULL_MASK)))
    assert held is not None
    assert held.startswith("column c may be column ssn, because ")


def test_what_names_no_column_is_noted_once() -> None:
    missing = ProtectedColumn(None, "A", None, MISSING)
    renamed = protected("c", HASH, 2, "a")
    after = version({"id": 1, "c": 2, "b": 3}, missing, renamed)
    first, second = rule_notes((), after.name, after.protected)
    assert first.sentence.startswith("Table public.t has no column A, which tables[].columns names.")
    assert second.sentence.startswith("Column c has the rule of column a")
    assert rule_notes((missing, renamed), after.name, after.protected) == []
    created = plan_evolution(None, after, None, TableRule("*.*"))
    assert [type(each) for each in created] == [CreateTable, RuleNote, RuleNote]
    recorded = SilverColumns(after.oid, {"id": 1}, protected=())
    added = plan_evolution(recorded, version({"id": 1, "b": 3}, missing), {"id": "STRING"}, TableRule("*.*"))
    assert [type(each) for each in added] == [RuleNote, AddColumn]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (ColumnRules(hash={"a": "hmac-sha256"}, exclude=("out",)), None),
        (ColumnRules(exclude=("out",)), "column a changed from hmac-sha256"),
        (ColumnRules(hash={"a": "hmac-sha256"}), "column out changed from exclude to none"),
        (
            ColumnRules(hash={"a": "hmac-sha256"}, exclude=("out", "b")),
            "b, whose rule was none, is left",
        ),
        (ColumnRules(include=("id", "a", "b"), hash={"a": "hmac-sha256"}), None),
        (ColumnRules(), "column a changed from hmac-sha256"),
    ],
)
def test_the_configuration_is_compared_with_what_silver_has(rules: ColumnRules, sentence: str | None) -> None:
    columns = tuple(RegisteredColumn(name, name, n, name, 25, -1) for name, n in NUMBERS.items())
    gone = RegisteredColumn("gone", "gone", 9, "gone")
    table = RegisteredTable("public", "t", "/t", 500, (*columns, gone))
    table = replace(table, protected=(protected("a", HASH, 2), protected("out", EXCLUDE, 4)))
    config = Config("p", Source(hash_key=KEY), tables=(TableRule("public.*", columns=rules),))
    found = rule_to_come(config, table)
    assert (found is None) == (sentence is None), found
    assert sentence is None or sentence in str(found)


def test_a_renamed_table_keeps_the_rules_of_its_earlier_name() -> None:
    columns = tuple(RegisteredColumn(name, name, n, name, 25, -1) for name, n in NUMBERS.items())
    table = RegisteredTable("public", "renamed", "/t", 500, columns, protected=(protected("a", HASH, 2),))
    rules = (TableRule("public.t", columns=ColumnRules(hash={"a": "hmac-sha256"})), TableRule("public.*"))
    config = Config("p", Source(hash_key=KEY), tables=rules)
    before = replace(version(NUMBERS, protected("a", HASH, 2)), oid=500, schema_name="public", table_name="t")
    assert rule_to_come(config, table, [before]) is None
    assert rule_to_come(config, table, [replace(before, oid=501)]) is not None
