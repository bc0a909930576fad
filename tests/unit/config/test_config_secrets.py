"""A configuration file is data: nothing in it runs, nothing in it grows, and no secret comes out of it."""

import os
import threading
import time
from pathlib import Path

import pytest

from pipeline.cli.signals import main_guard
from pipeline.config.load import load_config
from pipeline.delta.log import json_object
from pipeline.delta.txn import TableCommit, TxnId, escape_variables
from pipeline.errors import ConfigError, one_line
from pipeline.protocol.lsn import LSN
from pipeline.tail.source import TailOptions, resolve

HEAD = "pipeline: shop\nsource:\n  conninfo: "


def mistake(folder: Path, text: str, **environ: str) -> str:
    """Return the sentence that refuses a file; it names a line and no secret."""
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(folder / "c.yaml", environ)
    sentence = str(caught.value)
    assert sentence.startswith(f"{folder}/c.yaml:")
    assert "geheim" not in sentence
    assert "\n" not in sentence
    return sentence.removeprefix(f"{folder}/c.yaml:")


@pytest.mark.promise("the configuration is data")
@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {file}']",
        "!!python/object/new:os.system ['touch {file}']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/tuple [1]",
        "!geheim x",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch {file}']",
    ],
)
@pytest.mark.parametrize("before", ["", HEAD, "tables:\n  - source: ", "silver:\n  mode: "])
def test_a_tag_makes_nothing(tmp_path: Path, value: str, before: str) -> None:
    text = value.format(file=tmp_path / "made")
    mistake(tmp_path, before + text if before else f"pipeline: {text}\n")
    assert not (tmp_path / "made").exists()


@pytest.mark.promise("the configuration is data")
@pytest.mark.parametrize("key", ["pipeline", "tables", "silver", "source"])
def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path, key: str) -> None:
    levels = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    started = time.monotonic()
    mistake(tmp_path, "\n".join(["a0: &a0 [geheim]", *levels, f"{key}: *a39", ""]))
    mistake(tmp_path, f"pipeline: &a [*a]\n{key}x: *a\n")
    mistake(tmp_path, f"pipeline: s\n{key}: &a {{{key}: *a}}\n")
    assert time.monotonic() - started < 5


@pytest.mark.promise("the configuration is data")
@pytest.mark.parametrize(
    "text",
    [
        "pipeline: one\npipeline: two\n",
        "pipeline: s\nsource:\n  slot: a\n  slot: b\n",
        "pipeline: s\nsource: {slot: a}\nsource: {slot: b}\n",
        "pipeline: s\ntables:\n  - source: a.b\n    types: {c: INT, c: STRING}\n",
        "base: &b {slot: a}\npipeline: s\nsource: {<<: *b}\n",
    ],
)
def test_a_duplicate_key_is_refused(tmp_path: Path, text: str) -> None:
    assert "Duplicate key." in (said := mistake(tmp_path, text)) or "Not a plain key." in said


@pytest.mark.costly
def test_several_documents_and_deep_nesting_are_refused(tmp_path: Path) -> None:
    mistake(tmp_path, "pipeline: s\n---\npipeline: t\n")
    assert "nested too deeply" in mistake(tmp_path, f" not valid YAML: {'[' * 2_000}\n".lstrip())


@pytest.mark.promise("configuration errors repeat no secret")
@pytest.mark.parametrize(
    "written",
    [
        "*geheim",
        "!geheim!x y",
        "&a geheim\n  slot: &a geheim",
        "host=x password: geheim",
        "'host=x password=geheim",
        '"host=x password=geheim',
        '"\\geheim"',
        "[geheim",
        "{postgresql://me:geheim@db/shop}",
        "{'postgresql://me:geheim@db/shop': 1, 'postgresql://me:geheim@db/shop': 2}",
        "|geheim\n  x",
        "%geheim",
        "`geheim`",
        "host=x pass\tword=geheim\n\tgeheim",
        "'host=x password=geheim ${'",
        "'host=x password=${PW} ${'",
        "''\n  password: geheim",
        "''\n  postgresql://me:geheim@db/shop: x",
        "postgresql://me:geh%65im@db/shop?password=geheim",
        "'postgresql://me@db/shop?pass%77ord=geheim'",
        "'host=x password = '''geheim''''",
    ],
)
def test_a_secret_in_the_file_is_not_in_the_sentence(tmp_path: Path, written: str) -> None:
    mistake(tmp_path, f"{HEAD}{written}\n", PW="geheim")


@pytest.mark.promise("configuration errors repeat no secret")
@pytest.mark.parametrize("key", ["pipeline", "source.slot", "source.route", "silver.mode", "source.copy"])
def test_a_secret_in_the_wrong_place_is_not_in_the_sentence(tmp_path: Path, key: str) -> None:
    top, _, name = key.partition(".")
    value = "${PW}: x" if name else "${PW} x"
    mistake(
        tmp_path,
        f"pipeline: s\n{top}: {{{name}: '{value}'}}\n" if name else f"{top}: '{value}'\n",
        PW="geheim",
    )


@pytest.mark.promise("configuration errors repeat no secret")
@pytest.mark.parametrize("root", ["s3a://key:geheim@bucket/lake", "s3a://key:${PW}@bucket/lake"])
def test_credentials_in_the_address_of_the_lake_are_refused(tmp_path: Path, root: str) -> None:
    assert "The address contains credentials" in mistake(
        tmp_path, f"pipeline: s\nstorage:\n  root: {root}\n", PW="geheim"
    )


@pytest.mark.parametrize(
    "root", ["abfss://lake@account.dfs.core.windows.net/x", "hdfs://host:8020/a@b", "./a:b@c", "s3a://bucket"]
)
def test_an_address_without_credentials_is_taken(tmp_path: Path, root: str) -> None:
    (tmp_path / "c.yaml").write_text(f"pipeline: s\nstorage:\n  root: '{root}'\n")
    assert load_config(tmp_path / "c.yaml", {}).storage.root == root


@pytest.mark.promise("configuration errors repeat no secret")
@pytest.mark.parametrize(
    "conninfo", ["host=x password=geheim", "postgresql://me:geheim@db/shop", "postgres://db?password=geheim"]
)
def test_a_password_on_the_command_line_is_refused(conninfo: str) -> None:
    with pytest.raises(
        ConfigError, match="--conninfo has a password, which every user of this machine"
    ) as caught:
        resolve(TailOptions(conninfo=conninfo, slot="shop"))
    assert "geheim" not in str(caught.value)
    assert resolve(TailOptions(conninfo="host=x user=me", slot="shop")).conninfo == "host=x user=me"


def test_a_commit_names_no_variable_that_spark_would_replace() -> None:
    commit = TableCommit(TxnId("shop"), LSN(7), {"table": ["sales", "${env:PGPASSWORD}"]})
    text = escape_variables(commit.user_metadata)
    assert "$" not in text
    assert json_object(text)["table"] == ["sales", "${env:PGPASSWORD}"]


def test_a_part_that_fails_and_stops_the_other_is_a_failure() -> None:
    def fail(stop: threading.Event) -> int:
        stop.set()
        time.sleep(0.5)
        raise ConfigError("one half failed")

    assert main_guard(fail) == 2


@pytest.mark.promise("names are never SQL")
def test_a_name_with_line_ends_and_escapes_leaves_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(stop: object) -> int:
        raise ConfigError("the table a\nb\x1b[31m\r\x9b\u202ec is odd")

    assert main_guard(fail) == 2
    assert capsys.readouterr().err == "pgdelta: the table a\\nb\\x1b[31m\\r\\x9b\\u202ec is odd" + os.linesep
    assert one_line("Zoë’s — 表") == "Zoë’s — 表"
