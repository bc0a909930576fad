"""`password_command` in the file: a list of a program and its arguments, and where it is refused."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.config import Config
from pipeline.config.conninfo import CommandConninfo
from pipeline.config.load import load_config
from pipeline.errors import ConfigError
from pipeline.tail.source import TailOptions, resolve

SOURCE = "pipeline: s\nsource:\n  conninfo: host=db\n"


def load(folder: Path, text: str, **environ: str) -> Config:
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    return load_config(folder / "c.yaml", environ)


def mistake(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **environ)
    assert "geheim" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/")


def test_the_connection_string_brings_its_program(tmp_path: Path) -> None:
    source = load(
        tmp_path, SOURCE + '  password_command: [token, --port, 5432, "", "${ROLE}"]\n', ROLE="me"
    ).source
    assert source.password_command == ("token", "--port", "5432", "", "me")
    assert isinstance(source.conninfo, CommandConninfo)
    assert (source.conninfo, source.conninfo.password_command) == ("host=db", source.password_command)
    assert source.conninfo.key == "source.password_command"
    assert "token" not in repr(source)
    assert source.snapshot_conninfo is source.conninfo


def test_a_connection_string_without_a_program_is_plain_text(tmp_path: Path) -> None:
    assert type(load(tmp_path, SOURCE).source.conninfo) is str
    with_program = load(tmp_path, SOURCE + "  password_command: [token]\n").source
    assert type(replace(with_program, password_command=()).conninfo) is str


def test_a_copy_keeps_the_program(tmp_path: Path) -> None:
    source = load(tmp_path, SOURCE + "  password_command: [token]\n").source
    for copied in (copy.deepcopy(source).conninfo, pickle.loads(pickle.dumps(source.conninfo))):
        assert isinstance(copied, CommandConninfo)
        assert (copied, copied.password_command, copied.key) == (
            "host=db",
            ("token",),
            "source.password_command",
        )


def test_a_server_of_copies_has_its_own_program(tmp_path: Path) -> None:
    text = SOURCE + "  password_command: [token]\n  copying:\n    conninfo: host=standby\n"
    assert type(load(tmp_path, text).source.snapshot_conninfo) is str
    conninfo = load(tmp_path, text + "    password_command: [other]\n").source.snapshot_conninfo
    assert isinstance(conninfo, CommandConninfo)
    assert (conninfo, conninfo.password_command) == ("host=standby", ("other",))
    assert conninfo.key == "source.copying.password_command"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "  password_command: token geheim\n",
            "c.yaml:4: source.password_command: Expected a list, found text.",
        ),
        ("  password_command: []\n", "c.yaml:4: source.password_command: No program is named."),
        ('  password_command: ["", geheim]\n', "c.yaml:4: source.password_command: No program is named."),
        ("  password_command: [token, [geheim]]\n", "c.yaml:4: source.password_command[1]: Expected text"),
        (
            "  copying: {password_command: [token]}\n",
            "c.yaml:4: source.copying.password_command: source.copying.conninfo is missing",
        ),
        (
            "  copying: {conninfo: 'host=y password=${PW}', password_command: [token]}\n",
            "c.yaml:4: source.copying.password_command: source.copying.conninfo has a password already.",
        ),
    ],
)
def test_what_is_no_program_is_refused_with_its_place(tmp_path: Path, lines: str, sentence: str) -> None:
    assert mistake(tmp_path, SOURCE + lines, PW="geheim").startswith(sentence)


@pytest.mark.parametrize(
    "conninfo",
    ["host=x password=${PW}", "postgresql://me:${PW}@db/shop", "postgresql://db?password=${PW}", "${ALL}"],
)
def test_a_password_and_a_program_are_refused_together(tmp_path: Path, conninfo: str) -> None:
    text = f'pipeline: s\nsource:\n  conninfo: "{conninfo}"\n  password_command: [token]\n'
    sentence = mistake(tmp_path, text, PW="geheim", ALL="host=x password=geheim")
    assert sentence == (
        "c.yaml:4: source.password_command: source.conninfo has a password already. Keep one of the two."
    )


def test_secrets_that_are_no_password_go_with_a_program(tmp_path: Path) -> None:
    text = 'pipeline: s\nsource:\n  conninfo: "host=x sslpassword=${PW}"\n  password_command: [token]\n'
    assert isinstance(load(tmp_path, text, PW="geheim").source.conninfo, CommandConninfo)


def test_another_server_of_tail_does_not_get_the_password_of_the_pipeline(tmp_path: Path) -> None:
    config = load(tmp_path, SOURCE + "  password_command: [token]\n")
    assert isinstance(resolve(TailOptions(config=config)).conninfo, CommandConninfo)
    assert type(resolve(TailOptions(config=config, conninfo="host=other")).conninfo) is str
