"""A rule follows its column and its table: nothing becomes plain because something was renamed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from pipeline.bronze.protection import ColumnProtection, Protection, protected_text
from pipeline.bronze.relations import relation_version, relations_table
from pipeline.bronze.source_moves import MovedTable, SourceMoves, match_columns
from pipeline.bronze.source_relations import SourceColumn, SourceRelation, source_relation
from pipeline.config.config import Config, Source
from pipeline.config.tables import ColumnRules, TableRule
from pipeline.errors import ConfigError
from pipeline.postgres.catalog import CatalogColumn, CatalogRelation
from pipeline.protected_columns import EXCLUDE, LAST4_MASK, NULL_MASK
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
    has_missing = missing is not None
    facts = ("pg_catalog", "int4", "b", INT4, -1, None, None, None, "int4out", has_missing, missing)
    column = CatalogColumn(0, *facts, not_null=True, has_default=True)
    columns = tuple(replace(column, attribute_number=n) for n in numbers or range(1, 6))
    return CatalogRelation(columns, ("id",), NOW)


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


def test_the_version_tells_rules_apart_and_is_stable() -> None:
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


def test_the_version_tells_types_of_hashed_columns_apart() -> None:
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
    without = protect(replace(sent, oid=501), None)
    assert without is not None
    assert [column.type for column in without.columns] == [None, (INT4, -1), (INT4, -1), None]
    enum = Relation(
        502, "public", "t", "d", (Column(True, "id", INT4, -1), Column(False, "mail", 20_000, -1))
    )
    unknown = protect(enum, None)
    assert unknown is not None
    assert unknown.columns[0].type is None


def recorded(protection: ColumnProtection, sent: Relation, found: CatalogRelation | None) -> SourceRelation:
    """Return a version as a later run reads it from bronze."""
    version = relation_version(sent, found, LSN(7), None, protection.protect(sent, found))
    [row] = relations_table([version]).to_pylist()
    return source_relation(row)


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
def test_what_may_be_a_renamed_column_is_protected_if_the_catalog_is_ahead(is_later_run: bool) -> None:
    protection = ColumnProtection(config())
    first = recorded(protection, relation(), catalog())
    if is_later_run:
        protection = ColumnProtection(config(), [first])
    sent = relation("id", "out", "contact", "card", "note")
    assert rules_of(protection.protect(sent, None)) == USUAL
    second = recorded(protection, sent, None)
    if is_later_run:
        protection = ColumnProtection(config(), [first, second])
    assert rules_of(protection.protect(sent, None)) == USUAL
    assert rules_of(protection.protect(sent, catalog())) == USUAL


def test_a_column_whose_number_was_never_known_keeps_its_rule() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), None)
    sent = relation("id", "out", "contact", "card", "note")
    assert rules_of(protection.protect(sent, catalog())) == USUAL
    assert rules_of(protection.protect(sent, catalog())) == USUAL


def test_the_strictest_rule_counts_where_several_columns_may_be_meant() -> None:
    protection = ColumnProtection(config())
    protection.protect(relation(), catalog())
    sent = relation("id", "a", "b", "card", "note")
    assert rules_of(protection.protect(sent, None)) == [None, EXCLUDE, EXCLUDE, LAST4_MASK, NULL_MASK]


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
def test_a_key_is_hashed_at_most(rules: ColumnRules) -> None:
    protection = ColumnProtection(config(replace(rules, places={"id": "c.yaml:7: tables[0].columns.x"})))
    with pytest.raises(ConfigError, match=r"Column id is .* part of the key of table t\. Hash it"):
        protection.protect(relation(), catalog())
    # the whole row identifies it
    assert protection.protect(relation(identity="f"), catalog()) is not None


def test_a_table_needs_a_column() -> None:
    with pytest.raises(ConfigError, match="No column of table t is captured"):
        ColumnProtection(config(ColumnRules(exclude=COLUMNS))).protect(relation(identity="f"), catalog())


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
