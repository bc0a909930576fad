"""The configuration: defaults as documented, and every mistake named with file, line and key."""

from pathlib import Path

import pytest

from pipeline.config.config import Copying, Create, Protocol
from pipeline.config.load import load_config
from pipeline.config.tables import Guards, TableRule
from pipeline.errors import ConfigError
from pipeline.table_name import TableName
from tests.support.config_texts import load, mistake
from tests.support.paths import ROOT


def test_a_name_is_enough_and_the_rest_has_defaults() -> None:
    config = load("pipeline: shop\n")
    assert (config.pipeline, config.source.publication, config.source.slot) == ("shop", "shop", "shop")
    assert (config.source.conninfo, config.source.route) == ("", "walsender")
    assert config.source.create == Create("configured", True, False)
    assert (config.source.copy, config.source.copying) == ("initial", Copying(None, 2, 0, 64 << 20))
    assert config.source.protocol == Protocol()
    assert config.storage.root == "./lake"
    assert (config.silver.mode, config.silver.metadata_columns) == ("mirror", True)
    assert config.tables == (TableRule("public.*"),)
    assert config.path.endswith("c.yaml")


def test_the_example_is_valid_and_states_the_defaults() -> None:
    example = load_config(ROOT / "conf" / "pipeline.yaml", {})
    plain = load("pipeline: shop\n")
    assert example.source.conninfo == "host=localhost dbname=shop"
    assert (example.storage, example.silver, example.tables) == (plain.storage, plain.silver, plain.tables)
    assert repr(example.source) == repr(plain.source)


def test_every_key_is_read() -> None:
    config = load(
        """
pipeline: shop-2
source:
  conninfo: postgresql://me@db/shop
  publication: Pub "1"
  slot: s_1
  route: sql
  create: {publication: never, slot: false, failover: true, via_partition_root: false}
  copy: never
  lost_slot: resync
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
    assert (source.route, source.create) == ("sql", Create("never", False, True, False))
    assert (source.copy, source.copying) == ("never", Copying("host=standby", 4, 20 << 20, 1 << 30))
    assert source.lost_slot == "resync"
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
    assert config.tables == (TableRule("sales.orders", "orders", "mirror", types=types),)


@pytest.mark.parametrize(
    ("written", "bytes_read"),
    [("0", 0), ("7", 7), ("500kB", 512_000), ("20 MB", 20 << 20), ("${MOST}", 5 << 30)],
)
def test_bytes_have_units(written: str, bytes_read: int) -> None:
    text = f"pipeline: s\nsource: {{copying: {{rate_limit: {written!r}, range_size: {written!r}}}}}\n"
    copying = load(text, MOST="5GB").source.copying
    assert (copying.rate_limit, copying.range_size) == (bytes_read, bytes_read)


@pytest.mark.parametrize(
    ("written", "seconds"), [("0", 0), ("7", 7), ("30s", 30), ("5 min", 300), ("${WAIT}", 7200)]
)
def test_an_interval_has_units(written: str, seconds: int) -> None:
    text = f"pipeline: s\nsilver: {{min_interval: {written!r}}}\ntables: [{{source: a.b}}]\n"
    config = load(text, WAIT="2h")
    assert (config.silver.min_interval, config.tables[0].min_interval) == (seconds, seconds)


def test_the_interval_of_a_table_goes_before_that_of_all() -> None:
    text = "pipeline: s\nsilver: {min_interval: 1h}\n"
    config = load(text + "tables: [{source: a.b, min_interval: 0}, {source: '*.*'}]\n")
    assert [rule.min_interval for rule in config.tables] == [0, 3600]
    assert load("pipeline: s\n").silver.min_interval == 0


@pytest.mark.parametrize("text", ["30sec", "-1", "1.5h", "5m", "[1]", "", "1234567890"])
def test_an_interval_of_another_form_is_refused(text: str) -> None:
    assert mistake(f"pipeline: s\nsilver:\n  min_interval: {text}\n") == (
        "c.yaml:3: silver.min_interval: Expected a time in whole units, such as 30s, 5min or 1h."
    )


def test_guards_of_a_table_go_before_those_of_all() -> None:
    config = load(
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
    assert load("pipeline: shop\n").tables[0].guards == Guards()


@pytest.mark.costly
@pytest.mark.promise("mistakes in the file")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "pipeline: s\nsilver:\n  guards: {deletes: many}\n",
            "c.yaml:3: silver.guards.deletes: Expected a whole number, or none for no limit.",
        ),
        (
            "pipeline: s\nsilver: {guards: {deletes: -1}}\n",
            "c.yaml:2: silver.guards.deletes: Expected a whole",
        ),
        ("pipeline: s\nsilver: {guards: {deletes: }}\n", "c.yaml:2: silver.guards.deletes: Expected a whole"),
        (
            "pipeline: s\nsilver: {guards: {deletes: []}}\n",
            "c.yaml:2: silver.guards.deletes: Expected a whole number, or none for no limit.",
        ),
        (
            "pipeline: s\nsilver: {guards: 5}\n",
            "c.yaml:2: silver.guards: Expected a section of keys, found a number.",
        ),
        (
            "pipeline: s\ntables:\n  - {source: a.b, guards: {delete: 5}}\n",
            "c.yaml:3: tables[0].guards.delete: Unknown key. Did you mean deletes?",
        ),
        ("", "c.yaml: The file is empty. Start from conf/pipeline.yaml."),
        ("# nothing\n", "c.yaml: The file is empty. Start from conf/pipeline.yaml."),
        ("- a\n", "c.yaml:1: Expected a section of keys, found a list."),
        ("source: {}\n", "c.yaml:1: pipeline: Required key is missing. Write it, such as `pipeline: shop`."),
        ("pipeline: s\nsource:\n  rout: sql\n", "c.yaml:3: source.rout: Unknown key. Did you mean route?"),
        (
            "pipeline: s\nzzz: 1\n",
            "c.yaml:2: zzz: Unknown key. Known keys: pipeline, source, storage, silver, tables, bronze, "
            "maintenance, ingest, apply, catalog, alerts, verify, lineage.",
        ),
        (
            "pipeline: s\nsource:\n  create: {slots: 1}\n",
            "c.yaml:3: source.create.slots: Unknown key. Did you mean slot?",
        ),
        (
            "pipeline: s\ntables:\n  - {source: a.b, modes: x}\n",
            "c.yaml:3: tables[0].modes: Unknown key. Did you mean mode?",
        ),
        ("pipeline: s\npipeline: t\n", "c.yaml:2: pipeline: Duplicate key. Keep one."),
        (
            "pipeline: s\nsource:\n\troute: sql\n",
            "c.yaml:3: Tab in the indentation. Indent with spaces.",
        ),
        ("pipeline: 'a\n", "c.yaml:2: Not valid YAML: found unexpected end of stream. Correct the syntax."),
        (
            "pipeline: s\n---\npipeline: t\n",
            "c.yaml:2: Not valid YAML: but found another document. Correct the syntax.",
        ),
        ("pipeline: s\na: " + "[" * 5000, "c.yaml: Not valid YAML: nested too deeply. Reduce the nesting."),
        (
            "pipeline: \x07\n",
            "c.yaml: Not valid YAML: a character is not allowed. Remove control characters.",
        ),
        ("pipeline: s\n[a]: 1\n", "c.yaml:2: Not a plain key. Write `key: value`."),
        ("pipeline: 17\n", "c.yaml:1: pipeline: Expected text, found a number. Put it in quotes."),
        ("pipeline:\n", "c.yaml:1: pipeline: Expected text, found nothing."),
        ("pipeline: ''\n", "c.yaml:1: pipeline: Value is empty. Write a value or leave the key out."),
        ("pipeline: [s]\n", "c.yaml:1: pipeline: Expected text, found a list."),
        (
            'pipeline: s\nsource: {publication: "a\\0b"}\n',
            "c.yaml:2: source.publication: Value contains a NUL character",
        ),
        ("pipeline: a b\n", "c.yaml:1: pipeline: A pipeline name has 1 to 63 letters"),
        ("pipeline: s\nsource: no\n", "c.yaml:2: source: Expected a section of keys, found true or false."),
        (
            "pipeline: s\nsource: {route: tcp}\n",
            "c.yaml:2: source.route: Unknown value. Allowed values: walsender, sql.",
        ),
        (
            "pipeline: s\nsource: {route: walsendr}\n",
            "Unknown value. Did you mean walsender? Allowed values: walsender, sql.",
        ),
        (
            "pipeline: s\nsource: {route: [sql]}\n",
            "c.yaml:2: source.route: Expected one of walsender, sql, found a list.",
        ),
        (
            "pipeline: s\nsource: {create: {slot: 1}}\n",
            "source.create.slot: Expected true or false, found a number.",
        ),
        ("pipeline: s\ntables: {}\n", "c.yaml:2: tables: Expected a list, found a section of keys."),
        ("pipeline: s\ntables: [a.b]\n", "c.yaml:2: tables[0]: Expected a section of keys, found text."),
        (
            "pipeline: s\ntables: [{target: x}]\n",
            "c.yaml:2: tables[0].source: Required key is missing. Write it, such as",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, sentence: str) -> None:
    assert sentence in mistake(text)


@pytest.mark.parametrize("text", ["0", "65", "-1", "many", "4.0", "1_0", "٣", "${N}", "[4]", ""])
def test_a_number_has_bounds(text: str) -> None:
    assert mistake(f"pipeline: s\nsource:\n  copying:\n    connections: {text}\n", N="65") == (
        "c.yaml:4: source.copying.connections: Expected a whole number from 1 to 64."
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [("auto", "auto"), ("1", 1), ("64", 64), ("${N}", 7), ('"8"', 8), ("${M:-auto}", "auto")],
)
def test_tables_at_once_are_a_number_or_auto(text: str, number: object) -> None:
    config = load(f"pipeline: s\napply:\n  tables_at_once: {text}\n", N="7")
    assert config.apply.tables_at_once == number
    assert load("pipeline: s\n").apply.tables_at_once == "auto"


@pytest.mark.parametrize("text", ["0", "65", "-1", "all", "2.0", "[4]", "''"])
def test_tables_at_once_have_bounds(text: str) -> None:
    assert mistake(f"pipeline: s\napply:\n  tables_at_once: {text}\n") == (
        "c.yaml:3: apply.tables_at_once: Expected a number from 1 to 64, or auto."
    )


@pytest.mark.parametrize("text", ["20mb", "-1", "1.5GB", "[1]", "", "1234567890123"])
def test_bytes_of_another_form_are_refused(text: str) -> None:
    assert mistake(f"pipeline: s\nsource:\n  copying:\n    rate_limit: {text}\n") == (
        "c.yaml:4: source.copying.rate_limit: Expected a number of bytes, such as 500kB, 20MB or 1GB."
    )


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            "path: x",
            "path: Unknown key. Known keys: pipeline, source, storage, silver, tables, bronze, maintenance, "
            "ingest, apply, catalog, alerts, verify, lineage.",
        ),
        ("tables: [{source: a.b, misfit: text}]", "tables[0].misfit: Unknown key. Did you mean misfits?"),
        (
            "source: {protocol: {written: [binary]}}",
            "source.protocol.written: Unknown key. Known keys: version, streaming, two_phase, binary,"
            " messages, origin.",
        ),
        ("source: {create_slot: false}", "source.create_slot: Unknown key. Did you mean create?"),
    ],
)
def test_a_field_that_is_no_key_is_refused(written: str, sentence: str) -> None:
    assert mistake(f"pipeline: s\n{written}\n") == f"c.yaml:2: {sentence}"


def test_of_several_mistakes_the_first_in_the_file_is_named() -> None:
    lines = [
        "silver: {mode: mirrored}",
        "source:",
        "  rout: ${UNSET}",
        "  conninfo: ${UNSET}",
        "  copying: {connections: 0}",
        "pipeline: a b",
        "tables:",
        "  - target: t",
    ]
    keys = [
        "silver.mode",
        "source.rout",
        "source.conninfo",
        "source.copying.connections",
        "pipeline",
        "tables[0].source",
    ]
    good = [
        "silver: {mode: mirror}",
        "  route: sql",
        "  conninfo: host=x",
        "  copying: {connections: 1}",
        "pipeline: s",
    ]
    numbers = [1, 3, 4, 5, 6, 8]
    for index, (number, key) in enumerate(zip(numbers, keys, strict=True)):
        assert mistake("\n".join(lines)).startswith(f"c.yaml:{number}: {key}: ")
        if index < len(good):
            lines[number - 1] = good[index]


@pytest.mark.parametrize("text", ['pipeline: "\\ud800"', "pipeline: ${NAME}"])
def test_a_value_that_is_not_unicode_is_refused(text: str) -> None:
    assert mistake(text, NAME="\udcff") == (
        "c.yaml:1: pipeline: Value is not valid Unicode. Correct its escape sequences."
    )
    sentence = mistake('pipeline: s\n"\\ud800": 1\n')
    assert sentence == "c.yaml:2: Key is not valid Unicode. Correct its escape sequences."


@pytest.mark.parametrize("key", ["on_delete", "on_truncate"])
def test_what_a_mode_never_removes_cannot_be_ignored(key: str) -> None:
    text = f"pipeline: s\nsilver: {{mode: soft_delete}}\ntables:\n  - source: a.b\n    {key}: ignore\n"
    assert mistake(text) == (
        f"c.yaml:5: tables[0].{key}: Mode soft_delete never removes rows, so there is nothing to ignore. "
        "Leave the key out, or write mode: mirror."
    )
    [rule] = load(text.replace("a.b\n", "a.b\n    mode: mirror\n")).tables
    assert (rule.mode, getattr(rule, key), rule.keeps_past) == ("mirror", "ignore", True)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("streaming", ["auto", "off", "on", "parallel"])
def test_every_protocol_option_is_read(version: int, streaming: str) -> None:
    options = f"version: {version}, streaming: {streaming}, two_phase: true, binary: true, origin: none"
    protocol = load(f"pipeline: s\nsource: {{protocol: {{{options}}}}}\n").source.protocol
    assert (protocol.version, protocol.streaming) == (version, streaming)
    assert (protocol.two_phase, protocol.binary, protocol.origin) == (True, True, "none")
    assert protocol.written == {"version", "streaming", "two_phase", "binary", "origin"}


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("version: 5", "source.protocol.version: Unknown value. Allowed values: auto, 1, 2, 3, 4."),
        (
            "streaming: true",
            "source.protocol.streaming: Unknown value. Allowed values: auto, off, on, parallel.",
        ),
        ("two_phase: maybe", "source.protocol.two_phase: Expected true or false, found text."),
        ("origin: north", "source.protocol.origin: Unknown value. Allowed values: any, none."),
    ],
)
def test_a_protocol_option_that_is_none_is_named(option: str, sentence: str) -> None:
    assert sentence in mistake(f"pipeline: s\nsource: {{protocol: {{{option}}}}}\n")


def test_variables_are_expanded_in_values() -> None:
    text = """
pipeline: ${NAME}
source: {conninfo: "host=${HOST:-localhost} dbname=${DB:-shop}", create: {slot: "${MAKE_SLOT:-false}"}}
storage: {root: "${EMPTY:-/lake}"}
"""
    config = load(text, NAME="shop", DB="other", EMPTY="")
    assert config.pipeline == "shop"
    assert config.source.conninfo == "host=localhost dbname=other"
    assert config.source.create.slot is False
    assert config.storage.root == "/lake"


def test_an_unset_variable_is_named() -> None:
    sentence = mistake("pipeline: s\nsource:\n  conninfo: host=${NO_SUCH}\n")
    assert sentence == (
        "c.yaml:3: source.conninfo: Variable NO_SUCH is not set. Set it, or write ${NO_SUCH:-default}."
    )


def test_an_unfinished_variable_is_refused() -> None:
    assert "Incomplete variable. Write ${NAME} or ${NAME:-default}." in mistake(
        'pipeline: "${NAME"\n', NAME="s"
    )


def test_an_expanded_value_is_not_expanded_again() -> None:
    assert load("pipeline: s\nsource: {conninfo: '${A}'}\n", A="${B}").source.conninfo == "${B}"


@pytest.mark.promise("configuration errors repeat no secret")
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
def test_a_password_in_the_file_is_refused_and_not_repeated(conninfo: str) -> None:
    sentence = mistake(f'pipeline: s\nsource:\n  conninfo: "{conninfo}"\n')
    assert sentence.startswith("c.yaml:3: source.conninfo: The file contains a password. Remove it, ")
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
def test_a_password_from_outside_is_taken_and_never_shown(conninfo: str) -> None:
    config = load(f'pipeline: s\nsource: {{conninfo: "{conninfo}"}}\n', PW="geheim")
    assert config.source.conninfo == conninfo.replace("${PW}", "geheim")
    assert "geheim" not in repr(config)
    assert "conninfo" not in repr(config)


def test_a_valid_file_is_read_without_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("the JSON Schema takes longer than the file")

    monkeypatch.setattr("pipeline.config.load._models", fail)
    assert load("pipeline: shop\n").source.slot == "shop"


def test_a_pipeline_whose_name_cannot_name_a_slot_needs_a_slot_name() -> None:
    sentence = mistake("pipeline: Shop\n")
    assert sentence == (
        "c.yaml:1: pipeline: The pipeline also names the slot. A slot name has 1 to 63 lower-case letters,"
        " digits or `_`. Rename the pipeline or set source.slot."
    )
    assert load("pipeline: Shop\nsource: {slot: shop}\n").source.publication == "Shop"
    assert "c.yaml:2: source.slot: A slot name has 1 to 63" in mistake("pipeline: s\nsource: {slot: a-b}\n")
    assert "63 bytes" in mistake(f"pipeline: s\nsource: {{publication: {'ä' * 32}}}\n")


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


def test_a_rule_may_exclude_tables_which_a_later_one_may_have() -> None:
    first = "{source: 'public.*', exclude: ['public.tmp_*', 'public.\"a.b\"']}"
    text = f"pipeline: s\ntables: [{first}, {{source: public.tmp_b}}]\n"
    config = load(text)
    rules = config.tables
    names = ("a", "a.b", "tmp_a", "tmp_b")
    found = {name: config.rule_for(TableName("public", name)) for name in names}
    assert found == {"a": rules[0], "a.b": None, "tmp_a": None, "tmp_b": rules[1]}
    assert not rules[0].matches_schema("public")
    fault = mistake(text.replace("public.tmp_*", "tmp_*"))
    assert "tables[0].exclude[0]: Not a `schema.table` glob." in fault


@pytest.mark.parametrize("glob", ["orders", "a.b.c", ".b", "a.", 'a."b', 'a."b"c'])
def test_a_source_that_is_no_glob_is_refused(glob: str) -> None:
    assert "tables[0].source: Not a `schema.table` glob. Write schema.table, and double-quote" in mistake(
        f"pipeline: s\ntables: [{{source: '{glob}'}}]\n"
    )


def test_what_becomes_of_values_columns_and_types_is_read_and_a_rule_wins() -> None:
    config = load(
        "pipeline: s\nsilver: {misfits: clamp, dropped_columns: drop, type_changes: rebuild}\ntables:\n"
        "  - {source: a.b, misfits: {day: text, n: null}, type_changes: hold}\n  - {source: a.*}\n",
    )
    first, second = config.tables
    assert [first.misfit_of(name) for name in ("day", "n", "x")] == ["text", "null", "clamp"]
    assert (first.dropped_columns, first.type_changes) == ("drop", "hold")
    assert (second.misfit_of("day"), second.type_changes) == ("clamp", "rebuild")
    assert load("pipeline: s\nsilver: {misfits: text}\n").tables[0].misfit_of("x") == "text"
    assert "tables[0].misfits.c: Unknown value. Allowed values: null, text, clamp, error." in mistake(
        "pipeline: s\ntables: [{source: a.b, misfits: {c: nil}}]\n"
    )


def test_the_first_rule_that_matches_wins() -> None:
    config = load(
        "pipeline: s\ntables:\n  - {source: a.b, target: first}\n  - source: a.*\n  - source: '*.b'\n",
    )
    assert config.rule_for(TableName("a", "b")) == config.tables[0]
    assert config.rule_for(TableName("a", "c")) == config.tables[1]
    assert config.rule_for(TableName("x", "b")) == config.tables[2]
    assert config.rule_for(TableName("x", "y")) is None
    assert load("pipeline: s\ntables: []\n").rule_for(TableName("public", "t")) is None


def test_two_tables_cannot_share_a_target() -> None:
    text = "pipeline: s\ntables:\n  - {source: a.b, target: t}\n  - {source: c.d, target: t}\n"
    assert mistake(text).startswith("c.yaml:4: tables[1].target: Another rule has the same target.")
    text = "pipeline: s\ntables: [{source: 'a.*', target: t}]\n"
    assert "A rule with a target matches one table only." in mistake(text)
    text = "pipeline: s\ntables: [{source: a.b, target: c}, {source: c.d}]\n"
    assert "The target is the folder of a schema in silver." in mistake(text)


@pytest.mark.parametrize(
    "text", ["TEXT", "DECIMAL(39,0)", "DECIMAL(0,0)", "DECIMAL(3,4)", "DECIMAL", "ARRAY<ARRAY<INT>>", "INT;"]
)
def test_a_type_that_silver_does_not_have_is_refused(text: str) -> None:
    sentence = mistake(f"pipeline: s\ntables: [{{source: a.b, types: {{c: '{text}'}}}}]\n")
    assert sentence.startswith("c.yaml:2: tables[0].types.c: ")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, sentence in ((tmp_path / "none.yaml", "File not found"), (tmp_path, "Cannot read the file")):
        with pytest.raises(ConfigError, match=sentence):
            load_config(path)
    (tmp_path / "latin.yaml").write_bytes(b"pipeline: \xe4\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.yaml")
