"""`password_command` in the file: a list of a program and its arguments, and where it is refused."""

import copy
import pickle
from dataclasses import replace

import pytest

from pipeline.config.conninfo import CommandConninfo
from pipeline.tail.source import TailOptions, resolve
from tests.support.config_texts import load, mistake

SOURCE = "pipeline: s\nsource:\n  conninfo: host=db\n"


def test_the_connection_string_brings_its_program() -> None:
    source = load(SOURCE + '  password_command: [token, --port, 5432, "", "${ROLE}"]\n', ROLE="me").source
    assert source.password_command == ("token", "--port", "5432", "", "me")
    assert isinstance(source.conninfo, CommandConninfo)
    assert (source.conninfo, source.conninfo.password_command) == ("host=db", source.password_command)
    assert source.conninfo.key == "source.password_command"
    assert "token" not in repr(source)
    assert source.snapshot_conninfo is source.conninfo


def test_a_connection_string_without_a_program_is_plain_text() -> None:
    assert type(load(SOURCE).source.conninfo) is str
    with_program = load(SOURCE + "  password_command: [token]\n").source
    assert type(replace(with_program, password_command=()).conninfo) is str


def test_a_copy_keeps_the_program() -> None:
    source = load(SOURCE + "  password_command: [token]\n").source
    for copied in (copy.deepcopy(source).conninfo, pickle.loads(pickle.dumps(source.conninfo))):
        assert isinstance(copied, CommandConninfo)
        assert (copied, copied.password_command, copied.key) == (
            "host=db",
            ("token",),
            "source.password_command",
        )


def test_a_server_of_copies_has_its_own_program() -> None:
    text = SOURCE + "  password_command: [token]\n  copying:\n    conninfo: host=standby\n"
    assert type(load(text).source.snapshot_conninfo) is str
    conninfo = load(text + "    password_command: [other]\n").source.snapshot_conninfo
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
def test_what_is_no_program_is_refused_with_its_place(lines: str, sentence: str) -> None:
    assert mistake(SOURCE + lines, PW="geheim").startswith(sentence)


@pytest.mark.parametrize(
    "conninfo",
    ["host=x password=${PW}", "postgresql://me:${PW}@db/shop", "postgresql://db?password=${PW}", "${ALL}"],
)
def test_a_password_and_a_program_are_refused_together(conninfo: str) -> None:
    text = f'pipeline: s\nsource:\n  conninfo: "{conninfo}"\n  password_command: [token]\n'
    sentence = mistake(text, PW="geheim", ALL="host=x password=geheim")
    assert sentence == (
        "c.yaml:4: source.password_command: source.conninfo has a password already. Keep one of the two."
    )


def test_secrets_that_are_no_password_go_with_a_program() -> None:
    text = 'pipeline: s\nsource:\n  conninfo: "host=x sslpassword=${PW}"\n  password_command: [token]\n'
    assert isinstance(load(text, PW="geheim").source.conninfo, CommandConninfo)


def test_another_server_of_tail_does_not_get_the_password_of_the_pipeline() -> None:
    config = load(SOURCE + "  password_command: [token]\n")
    assert isinstance(resolve(TailOptions(config=config)).conninfo, CommandConninfo)
    assert type(resolve(TailOptions(config=config, conninfo="host=other")).conninfo) is str
