"""The file that `pgdelta init` writes: it loads, its rules match what was chosen, and no name ends a line."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from pipeline.config.config import Config
from pipeline.config.load import load_text
from pipeline.config.yaml_document import quote_yaml
from pipeline.errors import ConfigError
from pipeline.operate.init import choose_tables, read_source, suggest_name
from pipeline.operate.init_file import AMBIGUOUS, Choices, MatchedTables, select_tables, write_file
from pipeline.postgres.checks.copy_checks import LeafPrivileges
from pipeline.postgres.checks.source_facts import MANAGED, OBSTACLE, SourceFacts, SourceTable
from pipeline.postgres.checks.source_preparation import Preparation, identifier, preparation
from pipeline.postgres.replica_identities import IdentityFault
from pipeline.table_name import TableName

_NO_IDENTITY = OBSTACLE.format(IdentityFault.MISSING.value)
HOSTILE = (
    'say "hi"',
    "it's",
    "a\nb: c",
    "# no comment",
    "a.b",
    "${HOME}",
    "$${x",
    "ünï😀",
    "back\\slash",
    "tab\tand\r",
    "\u2028line\u0085",
    "\u202eright",
    "{table}",
    "- source: '*.*'",
    "%TAG",
    "*",
    "&anchor",
    "\ufeffbom",
    "\x7f\x1b[31m",
    " padded ",
    "null",
)


def table(schema: str, name: str, *, obstacle: str = "", owned: bool = True) -> SourceTable:
    return SourceTable(TableName(schema, name), "owner", owned, 8192, 8192, 100, False, obstacle)


def facts(tables: Sequence[SourceTable], **changes: object) -> SourceFacts:
    values: dict[str, object] = {
        "database": "shop",
        "user": "pgdelta",
        "role": "pgdelta",
        "version": "18.4",
        "wal_level": "logical",
        "slot_limit": 10,
        "walsender_limit": 10,
        "walsenders": 0,
        "is_superuser": False,
        "role_exists": True,
        "may_log_in": True,
        "may_connect": True,
        "may_create": True,
        "may_replicate": True,
        "is_standby": False,
        "slots": (),
        "publications": (),
        "tables": tuple(tables),
        **changes,
    }
    return SourceFacts(**values)  # type: ignore[arg-type]


def load(
    selection: MatchedTables, tables: Sequence[SourceTable], conninfo: str = "", root: str = "/lake"
) -> Config:
    text = write_file(Choices("shop", conninfo, root, "shop.yaml"), facts(tables), selection)
    assert all(line.isprintable() for line in text.split("\n"))
    return load_text(text, "shop.yaml", {"HOME": "/root"})


def matched(config: Config, tables: Sequence[SourceTable]) -> list[SourceTable]:
    return [each for each in tables if config.rule_for(each.name) is not None]


def test_the_rules_match_exactly_what_was_chosen_whatever_the_names() -> None:
    names = list(itertools.product(HOSTILE, HOSTILE))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(20):
        tables = [
            table(*name, obstacle=_NO_IDENTITY if chance.random() < 0.3 else "")
            for name in chance.sample(names, 60)
        ]
        selection = select_tables(tables, ())
        config = load(selection, tables)
        assert matched(config, tables) == [each for each in tables if each in selection.tables]
        left_out = {each.name: reason for each, reason in selection.left_out}
        assert {each.name for each in tables if each.obstacle} <= set(left_out)
        assert set(left_out.values()) <= {_NO_IDENTITY, AMBIGUOUS}
        assert len(selection.tables) + len(left_out) == len(tables)


def test_a_schema_is_one_rule_that_excludes_what_is_left_out() -> None:
    left_out = [table(schema, "Y.y", obstacle=_NO_IDENTITY) for schema in ("b", "c")]
    tables = [table("a", "x"), table("a", "y"), table("b", "x"), table("b", "z"), table("c", "x"), *left_out]
    config = load(select_tables(tables, ()), tables)
    rules = [(rule.source, rule.exclude) for rule in config.tables]
    # as many are left out of c as are in it
    assert rules == [("a.*", ()), ("b.*", ('b."Y.y"',)), ("c.x", ())]
    # tables that somebody names are a list
    config = load(select_tables(tables, ("a.*", "b.x", "b.z")), tables)
    assert [rule.source for rule in config.tables] == ["a.*", "b.x", "b.z"]


def test_globs_choose_tables() -> None:
    tables = [table("a", "x"), table("a", "y"), table("b", "x")]
    config = load(select_tables(tables, ("a.y", "b.*")), tables)
    assert [rule.source for rule in config.tables] == ["a.y", "b.*"]


def test_a_name_that_would_match_a_table_that_is_left_out_is_left_out() -> None:
    tables = [table("a", "x?"), table("a", "xy", obstacle=_NO_IDENTITY), table("a", "z")]
    selection = select_tables(tables, ())
    assert [each.name.table for each in selection.tables] == ["z"]
    assert [(each.name.table, reason) for each, reason in selection.left_out] == [
        ("xy", _NO_IDENTITY),
        ("x?", AMBIGUOUS),
    ]


@pytest.mark.parametrize("value", [*HOSTILE, "host=db dbname='a b' user=\"x\"", "C:\\lake", "\U0001f600"])
def test_a_quoted_value_is_read_as_it_is(value: str) -> None:
    quoted = quote_yaml(value)
    assert quoted.isprintable()
    assert yaml.safe_load(quoted) == value
    assert yaml.safe_load(f"a: {quoted}  # c\nb: [{quoted}, {quoted}]") == {"a": value, "b": [value, value]}


def test_the_values_that_were_chosen_are_in_the_file() -> None:
    tables = [table("a", "x")]
    conninfo = "host=db dbname='a \"b\" \\'c' user=me"
    config = load(select_tables(tables, ()), tables, conninfo, '/data/my "lake" #1')
    assert (config.source.conninfo, config.storage.root) == (conninfo, '/data/my "lake" #1')
    assert (config.pipeline, config.source.slot, config.source.publication) == ("shop", "shop", "shop")
    assert load(select_tables(tables, ()), tables).source.conninfo == ""


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "shop"),
        ({"database": "My Shop-1"}, "my_shop_1"),
        ({"database": "магазин"}, "pgdelta"),
        ({"database": "x" * 63}, "x" * 59),
        ({"slots": ("shop",)}, "shop_2"),
        ({"slots": ("shop",), "publications": ("shop_2",)}, "shop_3"),
    ],
)
def test_the_name_comes_from_the_database_and_is_free(changes: dict[str, object], name: str) -> None:
    assert suggest_name(facts([], **changes)) == name


def prepare(
    leaves: Sequence[LeafPrivileges] = (), tables: Sequence[SourceTable] = (), **changes: Any
) -> list[Preparation]:
    return list(preparation(facts(tables, **changes), "shop", tables or [table("a", "x")], leaves))


def test_a_source_that_is_ready_needs_nothing() -> None:
    assert prepare([LeafPrivileges(TableName("a", "x"), True, True, False)]) == []


@pytest.mark.parametrize(
    ("changes", "statement", "restarts"),
    [
        ({"wal_level": "replica"}, "ALTER SYSTEM SET wal_level = 'logical';", True),
        ({"slot_limit": 0}, "ALTER SYSTEM SET max_replication_slots = 5;", True),
        ({"walsenders": 10}, "ALTER SYSTEM SET max_wal_senders = 15;", True),
        ({"may_replicate": False}, 'ALTER ROLE "pgdelta" REPLICATION;', False),
        ({"may_create": False}, 'CREATE PUBLICATION "shop" FOR TABLE "a"."x";', False),
        (
            {"may_create": False, "publishes_roots": True},
            'CREATE PUBLICATION "shop" FOR TABLE "a"."x" WITH (publish_via_partition_root = true);',
            False,
        ),
    ],
)
def test_what_is_missing_is_a_statement(changes: dict[str, Any], statement: str, restarts: bool) -> None:
    [found] = prepare(**changes)
    assert (found.statements, found.needs_restart) == ((statement,), restarts)


@pytest.mark.parametrize(
    ("administrator", "setting", "statements"),
    [
        (
            "rds_superuser",
            "rds.logical_replication = 1",
            ('CREATE ROLE "pgdelta" LOGIN;', 'GRANT rds_replication TO "pgdelta";'),
        ),
        (
            "cloudsqlsuperuser",
            "cloudsql.logical_decoding = on",
            ('CREATE ROLE "pgdelta" LOGIN REPLICATION;',),
        ),
    ],
)
def test_a_managed_server_has_settings_of_its_own(
    administrator: str, setting: str, statements: tuple[str, ...]
) -> None:
    settings, role = prepare(
        managed=MANAGED[administrator],
        wal_level="replica",
        slot_limit=0,
        role_exists=False,
        may_replicate=False,
    )
    assert (settings.statements, settings.settings) == ((), (setting, "max_replication_slots = 5"))
    assert role.statements == statements


def test_a_role_that_may_not_connect_or_log_in_gets_these_rights() -> None:
    found = prepare(role='a"b', may_log_in=False, may_connect=False)
    assert [each.statements for each in found] == [
        ('ALTER ROLE "a""b" LOGIN;',),
        ('GRANT CONNECT ON DATABASE "shop" TO "a""b";',),
    ]


def test_an_existing_publication_and_a_standby_need_no_statement() -> None:
    assert prepare(may_create=False, publications=("shop",)) == []
    [found] = prepare(may_create=False, is_standby=True)
    assert found.statements == ()


def test_grants_name_the_leaves_that_cannot_be_read() -> None:
    leaves = [
        LeafPrivileges(TableName("a", "x"), True, True, False),
        LeafPrivileges(TableName("a", "y"), True, False, False),
        LeafPrivileges(TableName('b"', "z"), False, False, True),
    ]
    reading, rows = prepare(leaves)
    assert reading.statements == (
        'GRANT USAGE ON SCHEMA "b""" TO "pgdelta";',
        'GRANT SELECT ON "a"."y" TO "pgdelta";',
        'GRANT SELECT ON "b"""."z" TO "pgdelta";',
    )
    assert rows.statements == ('ALTER ROLE "pgdelta" BYPASSRLS;',)


def test_an_identifier_is_one_line() -> None:
    assert identifier("a", 'b"c') == '"a"."b""c"'
    assert identifier('a\n"\\b') == 'U&"a\\+00000A""\\\\b"'


def test_a_source_without_a_table_to_replicate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"No table in the database shop\. Create one"):
        choose_tables(facts([]), ())
    with pytest.raises(ConfigError, match="No table in the database shop matches --table"):
        choose_tables(facts([table("a", "x")]), ("b.*",))
    with pytest.raises(ConfigError, match=r"Of 1 table, none can be replicated as it is: a\.x has no"):
        choose_tables(facts([table("a", "x", obstacle=_NO_IDENTITY)]), ())
    with pytest.raises(ConfigError, match="x is not a"):
        choose_tables(facts([table("a", "x")]), ("x",))


@pytest.mark.parametrize("conninfo", ["host=x password=geheim", "postgresql://me:geheim@db/shop"])
def test_a_password_is_refused_and_not_repeated(conninfo: str) -> None:
    with pytest.raises(ConfigError, match="has a password") as caught:
        read_source(conninfo)
    assert "geheim" not in str(caught.value)
