"""A rule follows its column and its table: nothing becomes plain because something was renamed."""

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from pipeline.bronze.protection import ColumnProtection, Protection, protected_text
from pipeline.bronze.relations import relation_version, relations_table
from pipeline.bronze.source_moves import MovedTable, SourceMoves, match_columns
from pipeline.bronze.source_relations import SourceColumn, SourceRelation, source_relation
from pipeline.config.config import Config, Source
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.postgres.attributes import Attribute, CatalogHorizon, TableAttributes
from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
from pipeline.protected_columns import EXCLUDE, LAST4_MASK, NULL_MASK, POSSIBLE
from pipeline.protocol.lsn import LSN
from pipeline.protocol.messages import Column, Relation
from pipeline.table_name import TableName

KEY = "the key of the tests"
RULES = ColumnRules(exclude=("out",), hash={"mail": "hmac-sha256"}, mask={"card": "last4", "note": None})
COLUMNS = ("id", "out", "mail", "card", "note")
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
INT4 = 23


def config(rules: ColumnRules = RULES, *tables: TableRule) -> Config:
    rule = TableRule("public.t", columns=rules)
    return Config("p", Source(hash_key=KEY), tables=(rule, *tables, TableRule("public.*")))


def relation(*names: str, name: str = "t", identity: str = "d") -> Relation:
    columns = tuple(Column(n == "id" or identity == "f", n, INT4, -1) for n in names or COLUMNS)
    return Relation(500, "public", name, identity, columns)


def catalog(*numbers: int, missing: str | None = None) -> CatalogRelation:
    facts = ("pg_catalog", "int4", "b", INT4, -1, None, None, None, "int4out", None, missing)
    column = CatalogColumn(0, *facts, not_null=True, has_default=True)
    columns = tuple(replace(column, attribute_number=n) for n in numbers or range(1, 6))
    return CatalogRelation(columns, ("id",), NOW)


def table(*names: str | None, changed: tuple[int, ...] = (), **facts: Any) -> TableAttributes:
    """Return attributes, dropped ones without a name; those that `changed` did so after HORIZON."""
    columns = (Attribute(n, name, 150 if n in changed else 50) for n, name in enumerate(names, 1))
    return TableAttributes(tuple(columns), **facts)


HORIZON = CatalogHorizon(LSN(5), 100)


def rules_of(found: Protection | None) -> list[str | None]:
    assert found is not None
    return [rule.split()[0] if rule and rule.startswith("hmac") else rule for rule in found.rules]


USUAL = [None, EXCLUDE, "hmac-sha256", LAST4_MASK, NULL_MASK]


def test_bronze_has_the_relation_without_what_is_protected() -> None:
    found = ColumnProtection(config()).protect(relation(), catalog(missing="123456789"))
    version = relation_version(relation(), catalog(missing="123456789"), LSN(1), None, found)
    assert [(c.name, c.type_oid) for c in version.relation.columns] == [
        ("id", INT4), ("mail", 25), ("card", 25), ("note", INT4),
    ]  # fmt: skip
    assert version.sent == relation()
    assert version.catalog is not None
    values = [c.missing_value for c in version.catalog.columns]
    assert values[0] == "123456789"  # of the plain column
    hashed = protected_text(b"123456789", "hmac-sha256 x", KEY.encode())
    assert values[1] == (hashed or b"").decode()
    assert values[2:] == ["****6789", None]
    assert "123456789" not in str(relations_table([version]).to_pylist()[0]["columns"][1:])


def test_the_relation_version_depends_on_the_rules_and_is_stable() -> None:
    ids = set()
    for rules in (RULES, replace(RULES, mask={"card": "last4", "note": "x"}), ColumnRules(exclude=("out",))):
        protect = ColumnProtection(config(rules)).protect
        made = [
            relation_version(relation(), catalog(), LSN(1), None, protect(relation(), catalog()))
            for _ in range(2)
        ]
        assert made[0].id == made[1].id
        ids.add(made[0].id)
    assert len(ids) == 3
    plain = relation_version(relation(), catalog(), LSN(1))
    assert plain.id not in ids


def test_the_relation_version_depends_on_the_types_of_hashed_columns() -> None:
    protect = ColumnProtection(config()).protect
    sent, found = relation(), catalog()
    types, ids = [], set()
    for modifier in (-1, 7):
        columns = tuple(replace(c, base_oid=1700, base_modifier=modifier) for c in found.columns)
        each = replace(found, columns=columns)
        made = relation_version(sent, each, LSN(1), None, protect(sent, each))
        row = source_relation(relations_table([made]).to_pylist()[0])
        types.append([column.type for column in row.protected])
        ids.add(made.id)
    assert types == [[None, (1700, n), (1700, n), None] for n in (-1, 7)]
    assert len(ids) == 2
    without = ColumnProtection(config()).protect_sent(replace(sent, oid=501), None, table(*COLUMNS), LSN(7))
    assert without is not None
    assert [column.type for column in without.columns] == [None, (INT4, -1), (INT4, -1), None]
    enum = Relation(
        502, "public", "t", "d", (Column(True, "id", INT4, -1), Column(False, "mail", 20_000, -1))
    )
    unknown = ColumnProtection(config()).protect_sent(enum, None, table("id", "mail"), LSN(7))
    assert unknown is not None
    assert [(c.name, c.type) for c in unknown.columns if c.name is not None] == [("mail", None)]


def recorded(
    protection: ColumnProtection,
    sent: Relation,
    found: CatalogRelation | None,
    now: TableAttributes | None = None,
) -> SourceRelation:
    """Return a version of a copy, or of a message if `now` is given, as a later run reads it from bronze."""
    if now is None:
        return read_back(sent, found, LSN(7), protection.protect(sent, found))
    return read_back(sent, found, LSN(8), protection.protect_sent(sent, found, now, LSN(8)))


def read_back(
    sent: Relation, found: CatalogRelation | None, lsn: LSN, protection: Protection | None
) -> SourceRelation:
    [row] = relations_table([relation_version(sent, found, lsn, None, protection)]).to_pylist()
    return source_relation(row)


@pytest.mark.promise("protected columns")
@pytest.mark.parametrize("is_later_run", [False, True])
def test_a_renamed_column_keeps_its_rule(is_later_run: bool) -> None:
    protection = ColumnProtection(config())
    first = recorded(protection, relation(), catalog())
    if is_later_run:
        protection = ColumnProtection(config(), [first])
    renamed = ("id", "outside", "contact", "bank", "remark")
    assert rules_of(protection.protect(relation(*renamed), catalog())) == USUAL
    # another column has the name now: both are protected
    again = (*renamed, "mail", "fresh")
    numbers = (1, 2, 3, 4, 5, 6, 7)
    assert rules_of(protection.protect(relation(*again), catalog(*numbers))) == [*USUAL, "hmac-sha256", None]


@pytest.mark.parametrize("is_later_run", [False, True])
def test_a_column_that_is_renamed_at_the_next_server_keeps_its_rule(is_later_run: bool) -> None:
    first = recorded(ColumnProtection(config()), relation(), catalog())
    numbers = match_columns(first, catalog(*range(2, 7)), relation())
    assert numbers == {2: 1, 3: 2, 4: 3, 5: 4, 6: 5}
    moves = SourceMoves((MovedTable(TableName("public", "t"), LSN(9), 700, 500, numbers),))
    protection = ColumnProtection(config(), [first], moves)
    moved = replace(relation(), oid=700)
    if is_later_run:
        second = recorded(protection, moved, catalog(*range(2, 7)))
        protection = ColumnProtection(config(), [first, moves.translate(replace(second, lsn=10))], moves)
    # the oid is that of another table on the next server
    other = replace(relation("id", "contact", name="other"), oid=500)
    assert protection.protect(other, catalog(2, 4)) is None
    renamed = replace(relation("id", "outside", "contact", "bank", "remark", name="u"), oid=700)
    found = protection.protect(renamed, catalog(*range(2, 7)))
    assert rules_of(found) == USUAL
    assert found is not None
    assert [column.attribute_number for column in found.columns] == [3, 4, 5, 6]  # as the server has them
    version = recorded(protection, renamed, catalog(*range(2, 7)))
    translated = moves.translate(replace(version, lsn=11))
    assert (translated.oid, [c.attribute_number for c in translated.protected]) == (500, [2, 3, 4, 5])


@pytest.mark.parametrize("is_later_run", [False, True])
def test_a_renamed_column_keeps_its_rule_if_another_one_got_its_name(is_later_run: bool) -> None:
    """The catalog is ahead: the column with the secret is dropped there, and contradicts the message."""
    protection = ColumnProtection(config())
    protection.horizons.add(HORIZON)
    first = recorded(protection, relation(), catalog())
    if is_later_run:
        protection = ColumnProtection(config(), [first], horizons=protection.horizons)
    sent = relation("id", "old", "mail", "card", "note", "out")
    now = table("id", None, "mail", "card", "note", "out", changed=(2, 6))
    assert rules_of(protection.protect_sent(sent, None, now, LSN(9))) == [*USUAL, EXCLUDE]
    version = recorded(protection, sent, None, now)
    assert [(c.name, c.attribute_number) for c in version.protected][:2] == [("old", 2), ("mail", 3)]
    if is_later_run:
        protection = ColumnProtection(config(), [first, version], horizons=protection.horizons)
    # nothing is left of the name
    later = relation("id", "old", "mail", "card", "note")
    assert rules_of(protection.protect_sent(later, None, now, LSN(10))) == USUAL


@pytest.mark.parametrize("is_later_run", [False, True])
def test_what_may_be_a_protected_column_has_its_rule_until_a_copy(is_later_run: bool) -> None:
    protection = ColumnProtection(config())
    protection.horizons.add(HORIZON)
    first = recorded(protection, relation("id", "name", "mail"), catalog(1, 2, 3))
    if is_later_run:
        protection = ColumnProtection(config(), [first], horizons=protection.horizons)
    sent, now = relation("id", "name", "x"), table("id", "name", None, "x", changed=(3, 4))
    found = protection.protect_sent(sent, catalog(1, 2, 4), now, LSN(9))
    assert rules_of(found) == [None, None, "hmac-sha256"]
    assert found is not None
    guess = found.columns[0]
    assert (guess.name, guess.configured_name, guess.is_guess) == ("x", "mail", True)
    assert found.catalog(sent, catalog(1, 2, 4)) is None  # it may be that of another column
    assert rules_of(protection.protect(sent, catalog(1, 2, 4))) == [None, None, None]
    protection.horizons.add(CatalogHorizon(LSN(19), 200))
    assert rules_of(protection.protect_sent(sent, catalog(1, 2, 4), now, LSN(21))) == [None, None, None]


@pytest.mark.parametrize("is_later_run", [False, True])
def test_each_number_that_a_named_column_may_have_is_protected(is_later_run: bool) -> None:
    protection = ColumnProtection(config())
    protection.horizons.add(HORIZON)
    # of two columns that were added, one was dropped: the name does not tell which one it is
    sent, now = relation("id", "mail"), table("id", None, "mail", changed=(2, 3))
    first = recorded(protection, sent, None, now)
    assert [c.attribute_number for c in first.protected if c.rule == POSSIBLE] == [2, 3]
    if is_later_run:
        protection = ColumnProtection(config(), [first], horizons=protection.horizons)
    renamed, both = relation("id", "a", "b"), table("id", "a", "b", changed=(2, 3))
    hashed = [None, "hmac-sha256", "hmac-sha256"]
    assert rules_of(protection.protect_sent(renamed, None, both, LSN(9))) == hashed
    # a copy knows as little: the values may be from when the column had the name
    assert rules_of(protection.protect(renamed, catalog(1, 2, 3))) == hashed


def test_the_strictest_rule_counts_where_several_columns_may_be_meant() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), catalog())
    protection.horizons.add(HORIZON)
    now = table("id", None, None, "card", "note", "z", changed=(2, 3, 6))
    sent = relation("id", "a", "card", "note", "b")
    found = protection.protect_sent(sent, None, now, LSN(9))
    assert rules_of(found) == [None, EXCLUDE, LAST4_MASK, NULL_MASK, None]


def test_a_column_that_gets_the_name_of_a_weaker_rule_keeps_its_own() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), catalog())
    swapped = ("id", "card", "mail", "out", "note")
    found = protection.protect_sent(relation(*swapped), None, table(*swapped), LSN(9))
    assert rules_of(found) == [None, EXCLUDE, "hmac-sha256", EXCLUDE, NULL_MASK]


def test_the_strictest_rule_of_a_column_of_the_key_is_null() -> None:
    """It stays in its place, and is no fault of the configuration."""
    protection = ColumnProtection(config(ColumnRules(exclude=("out",))))
    protection.protect(relation("out", "n", "id"), catalog(1, 2, 3))
    now = table(None, "n", "id", "z")
    found = protection.protect_sent(relation("id", "n", "z"), None, now, LSN(9))
    assert rules_of(found) == [NULL_MASK, None, None]


def test_every_column_is_masked_if_nothing_is_known_of_the_table() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), catalog())
    for now in (None, table(*COLUMNS, is_aborted=True)):
        assert rules_of(protection.protect_sent(relation(), None, now, LSN(9))) == [
            NULL_MASK, EXCLUDE, NULL_MASK, NULL_MASK, NULL_MASK,
        ]  # fmt: skip
        sent = relation("id", "a", "b")
        assert rules_of(protection.protect_sent(sent, None, now, LSN(9))) == [NULL_MASK] * 3


def test_a_column_is_protected_if_it_has_the_name_of_a_rule_now() -> None:
    protection = ColumnProtection(config())
    found = protection.protect_sent(relation("id", "letters"), None, table("id", "mail"), LSN(9))
    assert rules_of(found) == [None, "hmac-sha256"]


def test_a_column_not_included_stays_out_under_the_name_of_another_one() -> None:
    configured = config(ColumnRules(include=("id", "name")))
    protection = ColumnProtection(configured)
    protection.protect(relation("id", "name", "secret"), catalog(1, 2, 3))
    sent, now = relation("id", "old", "name"), table("id", None, "name")
    assert rules_of(protection.protect_sent(sent, None, now, LSN(9))) == [None, EXCLUDE, EXCLUDE]
    # columns that were never seen
    fresh = ColumnProtection(configured)
    now = table("id", "name", "secret")
    assert rules_of(fresh.protect_sent(relation("id", "x", "name"), None, now, LSN(9))) == [
        None,
        EXCLUDE,
        EXCLUDE,
    ]


def test_a_dropped_column_leaves_its_rule_to_no_other() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), catalog())
    found = protection.protect(relation("id", "out", "card", "note", "new"), catalog(1, 2, 4, 5, 6))
    assert rules_of(found) == [None, EXCLUDE, LAST4_MASK, NULL_MASK, None]


@pytest.mark.parametrize("is_later_run", [False, True])
def test_a_renamed_table_stays_protected(is_later_run: bool) -> None:
    protection = ColumnProtection(config())
    versions = [recorded(protection, relation(), catalog())]
    for name in ("t2", "t3"):
        if is_later_run:
            protection = ColumnProtection(config(), versions)
        assert rules_of(protection.protect(relation(name=name), catalog())) == USUAL
        versions.append(recorded(protection, relation(name=name), catalog()))


@pytest.mark.parametrize("is_later_run", [False, True])
def test_a_table_that_is_renamed_to_one_with_other_rules_keeps_its_own(is_later_run: bool) -> None:
    own = ColumnRules(hash={"id": "hmac-sha256"}, mask={"mail": None})
    configured = config(RULES, TableRule("public.t2", columns=own))
    protection = ColumnProtection(configured)
    versions = [recorded(protection, relation(), catalog())]
    for name in ("t2", "t3", "t2"):
        if is_later_run:
            protection = ColumnProtection(configured, versions)
        sent = relation(name=name)
        expected = ["hmac-sha256", EXCLUDE, NULL_MASK, LAST4_MASK, NULL_MASK]
        assert rules_of(protection.protect(sent, catalog())) == expected
        versions.append(recorded(protection, sent, catalog()))


def test_what_include_leaves_out_stays_out_of_a_renamed_table() -> None:
    configured = config(ColumnRules(include=("id", "n")))
    first = recorded(ColumnProtection(configured), relation("id", "n"), catalog(1, 2))
    renamed = ColumnProtection(configured, [first]).protect(
        relation("id", "n", "a", name="t2"), catalog(1, 2, 3)
    )
    assert rules_of(renamed) == [None, None, EXCLUDE]


def test_a_table_without_rules_is_plain() -> None:
    assert ColumnProtection(config()).protect(replace(relation(name="other"), oid=9), catalog()) is None
    assert ColumnProtection(Config("p")).protect(relation(), catalog()) is None


def test_only_named_columns_are_captured_with_include() -> None:
    rules = ColumnRules(include=("id", "mail"), hash={"mail": "hmac-sha256"})
    found = ColumnProtection(config(rules)).protect(relation(*COLUMNS, "later"), catalog(1, 2, 3, 4, 5, 6))
    assert rules_of(found) == [None, EXCLUDE, "hmac-sha256", EXCLUDE, EXCLUDE, EXCLUDE]


@pytest.mark.parametrize(
    "rules", [ColumnRules(exclude=("id",)), ColumnRules(mask={"id": "x"}), ColumnRules(include=("mail",))]
)
def test_a_key_that_is_not_hashed_identifies_no_row(rules: ColumnRules) -> None:
    found = recorded(ColumnProtection(config(rules)), relation(), catalog())
    assert (found.key, found.replica_identity) == ((), "n")
    # the whole row identifies it
    found = recorded(ColumnProtection(config(rules)), relation(identity="f"), catalog())
    assert found.replica_identity == "f"


def test_a_row_without_a_column_is_of_nulls() -> None:
    found = ColumnProtection(config(ColumnRules(exclude=COLUMNS))).protect(relation(), catalog())
    assert rules_of(found) == [NULL_MASK] * len(COLUMNS)


def test_names_without_a_column_are_recorded() -> None:
    protection = ColumnProtection(config(ColumnRules(exclude=("Mail",))))
    found = recorded(protection, relation(), catalog())
    assert [(c.configured_name, c.rule) for c in found.protected] == [("Mail", "missing")]
    assert [c.name for c in found.columns] == list(COLUMNS)
    assert isinstance(found.columns[0], SourceColumn)


def test_the_key_is_in_no_text() -> None:
    found = ColumnProtection(config()).protect(relation(), catalog())
    version = relation_version(relation(), catalog(), LSN(1), None, found)
    assert KEY not in repr((config(), found, version))
