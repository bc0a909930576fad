"""The configuration: defaults as documented, and every mistake named with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.config import Config, Copying, Protocol, load_config
from pipeline.config.tables import Guards, TableRule
from pipeline.errors import ConfigError
from pipeline.table_name import TableName
from tests.support.paths import ROOT


def load(folder: Path, text: str, **environ: str) -> Config:
    """Return the configuration of a text, read as the file c.yaml."""
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environ)


def mistake(folder: Path, text: str, **environ: str) -> str:
    """Return the error's sentence without the folder."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **environ)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{folder}/", "")


def test_a_name_is_enough_and_the_rest_has_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "pipeline: shop\n")
    assert (config.pipeline, config.source.publication, config.source.slot) == ("shop", "shop", "shop")
    assert (config.source.conninfo, config.source.route) == ("", "walsender")
    assert (config.source.create_publication, config.source.create_slot) == ("configured", True)
    assert (config.source.copy, config.source.copying) == ("initial", Copying(None, 2, 0, 64 << 20))
    assert config.source.protocol == Protocol()
    assert config.storage.root == "./lake"
    assert (config.silver.mode, config.silver.metadata_columns) == ("mirror", True)
    assert config.tables == (TableRule("public.*"),)
    assert config.path.endswith("c.yaml")


def test_the_example_is_valid_and_says_the_defaults(tmp_path: Path) -> None:
    example = load_config(ROOT / "conf" / "pipeline.yaml", {})
    plain = load(tmp_path, "pipeline: shop\n")
    assert example.source.conninfo == "host=localhost dbname=shop"
    assert (example.storage, example.silver, example.tables) == (plain.storage, plain.silver, plain.tables)
    assert repr(example.source) == repr(plain.source)


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
pipeline: shop-2
source:
  conninfo: postgresql://me@db/shop
  publication: Pub "1"
  slot: s_1
  route: sql
  create: {publication: never, slot: false}
  copy: never
  copying: {conninfo: host=standby, connections: 4, rate_limit: 20MB, range_size: 1GB}
  protocol: {version: 1, streaming: off, two_phase: false, binary: false, messages: false, origin: any}
storage: {root: "s3a://bucket/lake/"}
silver: {mode: mirror, metadata_columns: false}
tables:
  - {source: sales.orders, target: orders, mode: mirror, types: {price: "decimal(20, 4)", n: array<int>}}
""",
    )
    source = config.source
    assert (source.conninfo, source.publication, source.slot) == (
        "postgresql://me@db/shop",
        'Pub "1"',
        "s_1",
    )
    assert (source.route, source.create_publication, source.create_slot) == ("sql", "never", False)
    assert (source.protocol.version, source.protocol.streaming, source.protocol.messages) == (1, "off", False)
    assert source.protocol.written == {
        "version",
        "streaming",
        "two_phase",
        "binary",
        "messages",
        "origin",
    }
    assert config.storage.root == "s3a://bucket/lake"
    assert not config.silver.metadata_columns
    types = {"price": "DECIMAL(20,4)", "n": "ARRAY<INT>"}
    assert config.tables == (TableRule("sales.orders", "orders", "mirror", types),)


def test_guards_of_a_table_go_before_those_of_all(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
pipeline: shop
silver: {guards: {deletes: 100}}
tables:
  - {source: a.a, guards: {deletes: none, truncates: 0}}
  - {source: a.b, guards: {truncates: "${MOST:-3}"}}
  - {source: a.c}
""",
    )
    assert config.silver.guards == Guards(100, None)
    assert [rule.guards for rule in config.tables] == [Guards(None, 0), Guards(100, 3), Guards(100, None)]
    assert load(tmp_path, "pipeline: shop\n").tables[0].guards == Guards()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "pipeline: s\nsilver:\n  guards: {deletes: many}\n",
            "c.yaml:3: silver.guards.deletes: a whole number is expected, or none for no limit",
        ),
        ("pipeline: s\nsilver: {guards: {deletes: -1}}\n", "c.yaml:2: silver.guards.deletes: a whole number"),
        ("pipeline: s\nsilver: {guards: {deletes: }}\n", "c.yaml:2: silver.guards.deletes: a whole number"),
        (
            "pipeline: s\nsilver: {guards: {deletes: []}}\n",
            "silver.guards.deletes: a number is expected, not a",
        ),
        (
            "pipeline: s\nsilver: {guards: 5}\n",
            "c.yaml:2: silver.guards: a section of keys is expected, not a",
        ),
        (
            "pipeline: s\ntables:\n  - {source: a.b, guards: {delete: 5}}\n",
            "c.yaml:3: tables[0].guards.delete: unknown key; did you mean deletes?",
        ),
        ("", "c.yaml: the file is empty; start from conf/pipeline.yaml"),
        ("# nothing\n", "c.yaml: the file is empty; start from conf/pipeline.yaml"),
        ("- a\n", "c.yaml:1: a section of keys is expected, not a list"),
        ("source: {}\n", "c.yaml:1: pipeline is missing; give the pipeline a name"),
        ("pipeline: s\nsource:\n  rout: sql\n", "c.yaml:3: source.rout: unknown key; did you mean route?"),
        ("pipeline: s\nzzz: 1\n", "c.yaml:2: zzz: unknown key; known here: pipeline, source, storage"),
        (
            "pipeline: s\nsource:\n  create: {slots: 1}\n",
            "c.yaml:3: source.create.slots: unknown key; did you",
        ),
        ("pipeline: s\ntables:\n  - {source: a.b, modes: x}\n", "c.yaml:3: tables[0].modes: unknown key"),
        ("pipeline: s\npipeline: t\n", "c.yaml:2: pipeline: the key is written twice; keep one"),
        (
            "pipeline: s\nsource:\n\troute: sql\n",
            "c.yaml:3: a tab where YAML wants spaces; indent with spaces",
        ),
        ("pipeline: 'a\n", "c.yaml:2: not valid YAML: found unexpected end of stream"),
        ("pipeline: s\n---\npipeline: t\n", "c.yaml:2: not valid YAML: but found another document"),
        ("pipeline: s\na: " + "[" * 5000, "c.yaml: not valid YAML: it is nested too deeply"),
        ("pipeline: \x07\n", "c.yaml: not valid YAML: it holds a character that YAML does not allow"),
        ("pipeline: s\n[a]: 1\n", "c.yaml:2: a key must be a plain word"),
        ("pipeline: 17\n", "c.yaml:1: pipeline: a text is expected, not a number; put it in quotes"),
        ("pipeline:\n", "c.yaml:1: pipeline: a text is expected, not nothing"),
        ("pipeline: ''\n", "c.yaml:1: pipeline: it is empty; write a value or leave the key out"),
        ("pipeline: [s]\n", "c.yaml:1: pipeline: a text is expected, not a list"),
        ('pipeline: s\nsource: {publication: "a\\0b"}\n', "c.yaml:2: source.publication: it holds a NUL"),
        ("pipeline: a b\n", "c.yaml:1: pipeline: a name is 1 to 63 letters"),
        ("pipeline: s\nsource: no\n", "c.yaml:2: source: a section of keys is expected, not true or false"),
        (
            "pipeline: s\nsource: {route: tcp}\n",
            "c.yaml:2: source.route: unknown value; write walsender or sql",
        ),
        ("pipeline: s\nsource: {route: walsendr}\n", "; did you mean walsender?"),
        ("pipeline: s\nsource: {route: [sql]}\n", "one of walsender, sql is expected, not a list"),
        ("pipeline: s\nsource: {create: {slot: 1}}\n", "true or false is expected, not a number"),
        ("pipeline: s\ntables: {}\n", "c.yaml:2: tables: a list is expected, not a section"),
        ("pipeline: s\ntables: [a.b]\n", "c.yaml:2: tables[0]: a section of keys is expected, not a text"),
        ("pipeline: s\ntables: [{target: x}]\n", "c.yaml:2: tables[0]: source is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    assert sentence in mistake(tmp_path, text)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("silver: {mode: history}", "silver.mode"),
        ("tables: [{source: a.b, mode: soft_delete}]", "tables[0].mode"),
        ("tables: [{source: a.b, mode: append}]", "tables[0].mode"),
    ],
)
def test_what_is_not_built_yet_is_refused_where_it_is_written(tmp_path: Path, written: str, key: str) -> None:
    sentence = mistake(tmp_path, f"pipeline: s\n{written}\n")
    assert sentence.startswith(f"c.yaml:2: {key}: ")
    assert "is not built yet" in sentence


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("streaming", ["auto", "off", "on", "parallel"])
def test_every_protocol_option_is_read(tmp_path: Path, version: int, streaming: str) -> None:
    options = f"version: {version}, streaming: {streaming}, two_phase: true, binary: true, origin: none"
    protocol = load(tmp_path, f"pipeline: s\nsource: {{protocol: {{{options}}}}}\n").source.protocol
    assert (protocol.version, protocol.streaming) == (version, streaming)
    assert (protocol.two_phase, protocol.binary, protocol.origin) == (True, True, "none")
    assert protocol.written == {"version", "streaming", "two_phase", "binary", "origin"}


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("version: 5", "source.protocol.version: unknown value; write auto or 1 or 2 or 3 or 4"),
        ("streaming: true", "source.protocol.streaming: unknown value; write auto or off or on or parallel"),
        ("two_phase: maybe", "source.protocol.two_phase: true or false is expected"),
        ("origin: north", "source.protocol.origin: unknown value; write any or none"),
    ],
)
def test_a_protocol_option_that_is_none_is_named(tmp_path: Path, option: str, sentence: str) -> None:
    assert sentence in mistake(tmp_path, f"pipeline: s\nsource: {{protocol: {{{option}}}}}\n")


def test_variables_are_expanded_in_values(tmp_path: Path) -> None:
    text = """
pipeline: ${NAME}
source: {conninfo: "host=${HOST:-localhost} dbname=${DB:-shop}", create: {slot: "${MAKE_SLOT:-false}"}}
storage: {root: "${EMPTY:-/lake}"}
"""
    config = load(tmp_path, text, NAME="shop", DB="other", EMPTY="")
    assert config.pipeline == "shop"
    assert config.source.conninfo == "host=localhost dbname=other"
    assert config.source.create_slot is False
    assert config.storage.root == "/lake"


def test_an_unset_variable_is_named(tmp_path: Path) -> None:
    sentence = mistake(tmp_path, "pipeline: s\nsource:\n  conninfo: host=${NO_SUCH}\n")
    assert sentence == (
        "c.yaml:3: source.conninfo: the environment has no NO_SUCH; set it or write ${NO_SUCH:-default}"
    )


def test_an_unfinished_variable_is_refused(tmp_path: Path) -> None:
    assert "`${` opens no variable" in mistake(tmp_path, 'pipeline: "${NAME"\n', NAME="s")


def test_an_expanded_value_is_not_expanded_again(tmp_path: Path) -> None:
    assert load(tmp_path, "pipeline: s\nsource: {conninfo: '${A}'}\n", A="${B}").source.conninfo == "${B}"


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=x password=geheim",
        "host=x password = 'geheim'",
        "host=x sslpassword=geheim",
        "password=geheim",
        "password=${PW:-geheim}",
        "postgresql://me:geheim@db/shop",
        "postgres://me@db/shop?password=geheim",
    ],
)
def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path: Path, conninfo: str) -> None:
    sentence = mistake(tmp_path, f'pipeline: s\nsource:\n  conninfo: "{conninfo}"\n')
    assert sentence.startswith("c.yaml:3: source.conninfo: a password stands in the file; ")
    assert "geheim" not in sentence


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=x password=${PW}",
        "password='${PW}'",
        "postgresql://me:${PW}@db/shop",
        "postgresql://me@db/shop?password=${PW}",
        "${PW}",
        "host=x passfile=/p application_name='the password'",
        "host=x application_name='a password=b'",
        "postgresql://me@db/a:b",
    ],
)
def test_a_password_from_outside_is_taken_and_never_shown(tmp_path: Path, conninfo: str) -> None:
    config = load(tmp_path, f'pipeline: s\nsource: {{conninfo: "{conninfo}"}}\n', PW="geheim")
    assert config.source.conninfo == conninfo.replace("${PW}", "geheim")
    assert "geheim" not in repr(config)
    assert "conninfo" not in repr(config)


def test_a_pipeline_whose_name_cannot_name_a_slot_asks_for_one(tmp_path: Path) -> None:
    sentence = mistake(tmp_path, "pipeline: Shop\n")
    assert sentence.startswith("c.yaml:1: pipeline: it names the slot too, and a slot's name is 1 to 63")
    assert load(tmp_path, "pipeline: Shop\nsource: {slot: shop}\n").source.publication == "Shop"
    assert "c.yaml:2: source.slot: a slot's name" in mistake(tmp_path, "pipeline: s\nsource: {slot: a-b}\n")
    assert "63 bytes" in mistake(tmp_path, f"pipeline: s\nsource: {{publication: {'ä' * 32}}}\n")


@pytest.mark.parametrize(
    ("glob", "schema", "table", "matches"),
    [
        ("public.*", "public", "orders", True),
        ("public.*", "public", "a.b", True),
        ("public.*", "publicx", "orders", False),
        ("*.*", "a.b", "c.d", True),
        ("sales.order?", "sales", "orders", True),
        ("sales.order?", "sales", "order", False),
        ("Sales.*", "sales", "orders", False),
        ('"my.schema".t', "my.schema", "t", True),
        ('public."a.*"', "public", "a.b", True),
        ('public."a""b"', "public", 'a"b', True),
        ("public.[ab]", "public", "a", False),
        ("public.[ab]", "public", "[ab]", True),
        ("public.a b", "public", "a b", True),
        ("public.*", "public", "a\nb", True),
    ],
)
def test_a_glob_matches_names_as_the_catalog_has_them(
    glob: str, schema: str, table: str, matches: bool
) -> None:
    assert TableRule(glob).matches(TableName(schema, table)) is matches


@pytest.mark.parametrize("glob", ["orders", "a.b.c", ".b", "a.", 'a."b', 'a."b"c'])
def test_a_source_that_is_no_glob_is_refused(tmp_path: Path, glob: str) -> None:
    assert "tables[0].source: write schema.table" in mistake(
        tmp_path, f"pipeline: s\ntables: [{{source: '{glob}'}}]\n"
    )


def test_what_becomes_of_values_columns_and_types_is_read_and_a_rule_wins(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "pipeline: s\nsilver: {misfits: clamp, dropped_columns: drop, type_changes: rewrite}\ntables:\n"
        "  - {source: a.b, misfits: {day: text, n: null}, type_changes: hold}\n  - {source: a.*}\n",
    )
    first, second = config.tables
    assert [first.misfit_of(name) for name in ("day", "n", "x")] == ["text", "null", "clamp"]
    assert (first.dropped_columns, first.type_changes) == ("drop", "hold")
    assert (second.misfit_of("day"), second.type_changes) == ("clamp", "rewrite")
    assert load(tmp_path, "pipeline: s\nsilver: {misfits: text}\n").tables[0].misfit_of("x") == "text"
    assert "write null or text or clamp or error" in mistake(
        tmp_path, "pipeline: s\ntables: [{source: a.b, misfits: {c: nil}}]\n"
    )


def test_the_first_rule_that_matches_wins(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "pipeline: s\ntables:\n  - {source: a.b, target: first}\n  - source: a.*\n  - source: '*.b'\n",
    )
    assert config.rule_for(TableName("a", "b")) == config.tables[0]
    assert config.rule_for(TableName("a", "c")) == config.tables[1]
    assert config.rule_for(TableName("x", "b")) == config.tables[2]
    assert config.rule_for(TableName("x", "y")) is None
    assert load(tmp_path, "pipeline: s\ntables: []\n").rule_for(TableName("public", "t")) is None


def test_two_tables_cannot_share_a_target(tmp_path: Path) -> None:
    text = "pipeline: s\ntables:\n  - {source: a.b, target: t}\n  - {source: c.d, target: t}\n"
    assert mistake(tmp_path, text).startswith("c.yaml:4: tables[1].target: another rule has the same target")
    text = "pipeline: s\ntables: [{source: 'a.*', target: t}]\n"
    assert "one target cannot take the many tables of a glob" in mistake(tmp_path, text)
    text = "pipeline: s\ntables: [{source: a.b, target: c}, {source: c.d}]\n"
    assert "this is a schema's folder" in mistake(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["TEXT", "DECIMAL(39,0)", "DECIMAL(0,0)", "DECIMAL(3,4)", "DECIMAL", "ARRAY<ARRAY<INT>>", "INT;"]
)
def test_a_type_that_silver_does_not_have_is_refused(tmp_path: Path, text: str) -> None:
    sentence = mistake(tmp_path, f"pipeline: s\ntables: [{{source: a.b, types: {{c: '{text}'}}}}]\n")
    assert sentence.startswith("c.yaml:2: tables[0].types.c: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, sentence in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigError, match=sentence):
            load_config(path)
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: \xe4\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")
