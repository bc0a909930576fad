"""The program that prints a password: what it prints is taken, and its failures show nothing of it."""

import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from pipeline.postgres import password_command
from pipeline.postgres.password_command import read_password
from tests.support.threads import wait_until

KEY = "source.password_command"


def script(text: str) -> list[str]:
    return ["sh", "-c", text]


def refusal(command: list[str], *, limit: float = 20) -> str:
    """Return the one error of a program; it has two sentences and nothing that the program printed."""
    with pytest.raises(SourceError) as caught:
        read_password(command, key=KEY, limit=limit)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    sentence = str(caught.value)
    assert "geheim" not in sentence
    assert "\n" not in sentence
    assert KEY in sentence
    return sentence


def runs(group: int) -> bool:
    """Return whether a process of the group runs; one that has ended and waits for its parent does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, found = stat.read_text().rpartition(")")[2].split()[:3]
            if int(found) == group and state != "Z":
                return True
    return False


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("echo geheim", "geheim"),
        ("printf 'ge heim'", "ge heim"),
        ("printf 'geheim\\r\\n'", "geheim"),
        ("printf ' geheim \\n'", " geheim "),
        ('printf "it\'s \\\\\\\\ gehéim\\n"', "it's \\ gehéim"),
        ("echo noise >&2; echo geheim", "geheim"),
        ("head -c 9000 /dev/zero | tr '\\0' x", "x" * 9000),
    ],
)
def test_the_printed_line_is_the_password(text: str, password: str) -> None:
    assert read_password(script(text), key=KEY) == password


def test_no_shell_reads_the_arguments() -> None:
    program = "import sys; print('|'.join(sys.argv[1:]))"
    arguments = ["$HOME", "a b", "*", "", "'x'", "`id`"]
    assert read_password([sys.executable, "-c", program, *arguments], key=KEY) == "|".join(arguments)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("echo geheim; echo geheim >&2; exit 3", "failed with exit code 3"),
        ("echo geheim; kill -9 $$", "was ended by signal 9"),
        ("exit 0", "printed nothing"),
        ("echo", "printed nothing"),
        ("echo geheim; echo geheim", "printed more than one line of text"),
        ("printf 'ge\\0heim'", "printed more than one line of text"),
        ("yes geheim", "printed more than one line of text"),
        ("printf '\\377geheim'", "printed a text that is not UTF-8"),
    ],
)
def test_what_is_no_password_is_named_without_showing_it(text: str, fault: str) -> None:
    sentence = refusal(script(text))
    assert sentence == f"The program sh of {KEY} {fault}. Run it by itself to find out why."


def test_a_missing_program_and_one_that_cannot_run_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "token"
    assert refusal([str(missing), "geheim"]).startswith(f"The program {missing} of {KEY}, or the interpreter")
    missing.write_text("#!/bin/sh\necho geheim\n")
    assert "cannot be started (Permission denied)" in refusal([str(missing), "geheim"])


@pytest.mark.parametrize("text", ["sleep 60", "sleep 60 & echo geheim", "exec >&-; sleep 60"])
def test_a_program_that_does_not_end_is_killed_with_its_children(text: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    started = time.monotonic()
    sentence = refusal(script(f"echo $$ > {pid}; {text}"), limit=0.5)
    assert time.monotonic() - started < 10
    assert sentence == f"The program sh of {KEY} has not ended after 0.5 s. Run it by itself to find out why."
    wait_until(lambda: not runs(int(pid.read_text())), 10)  # a killed process needs a moment


def test_the_time_limit_is_stated_in_the_reference() -> None:
    from pipeline.config.load import field_schema

    limit = f"{password_command.TIME_LIMIT:g} seconds"
    assert limit in field_schema(("source", "password_command"))["description"]
