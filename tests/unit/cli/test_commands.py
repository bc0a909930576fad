"""What each command calls, with which options, and which options exclude each other."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from pipeline.cli import main
from pipeline.cli.command import PipelineCommand
from pipeline.cli.output import show
from pipeline.cli.signals import CommandKind
from pipeline.key_ranges import KeyRange
from pipeline.tail.source import TailOptions
from tests.support.pages import PLAN
from tests.support.paths import ROOT
from tests.support.processes import ended


class Done:
    """A result without content."""

    def lines(self) -> list[str]:
        return ["done"]

    def as_json(self) -> dict[str, Any]:
        return {"done": True}

    def exit_code(self, strict: bool) -> int:
        return 0


Replace = Callable[[str, str], list[tuple[tuple[Any, ...], dict[str, Any]]]]


@pytest.fixture
def replace(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Return what puts a function in a module's place, and the calls that it gets."""

    def put(module: str, function: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def call(config: Any, *arguments: Any, **keywords: Any) -> Done:
            calls.append((arguments, keywords))
            return Done()

        place = ModuleType(module)
        setattr(place, function, call)
        monkeypatch.setitem(sys.modules, module, place)
        return calls

    return put


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    path.write_text("pipeline: shop\n")
    return str(path)


def test_apply_without_tables_is_the_job_and_with_tables_one_batch(config: str, replace: Replace) -> None:
    job = replace("pipeline.apply.job", "run_apply")
    batch = replace("pipeline.operate.rebuild", "apply_tables")
    assert main.main(["apply", "--config", config]) == 0
    assert (len(job), batch) == (1, [])
    assert main.main(["apply", "--config", config, "--table", "public.a", "--table", "s.*", "--confirm"]) == 0
    [((globs,), keywords)] = batch
    assert (globs, keywords["confirms"]) == (("public.a", "s.*"), True)
    assert len(job) == 1


@pytest.mark.parametrize("option", [["--table", "public.a"], ["--confirm"]])
def test_tables_are_applied_once_not_continuously(
    option: list[str], config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["apply", "--config", config, *option, "--trigger", "continuous"]) == 2
    assert capsys.readouterr().err.endswith("apply once. Leave out --trigger continuous.\n")


def test_a_confirmation_is_not_repeated_by_the_next_run() -> None:
    apply = main.cli.commands["apply"]
    assert isinstance(apply, PipelineCommand)
    assert callable(apply.kind)
    assert (apply.kind({"confirm": False}), apply.kind({"confirm": True})) == (
        CommandKind.JOB,
        CommandKind.ONCE,
    )


def test_rebuild_takes_tables_and_a_confirmation(config: str, replace: Replace) -> None:
    calls = replace("pipeline.operate.rebuild", "run_rebuild")
    assert main.main(["rebuild", "--config", config]) == 0
    assert main.main(["rebuild", "--config", config, "--table", "public.a", "--confirm"]) == 0
    assert [(arguments, keywords["confirms"]) for arguments, keywords in calls] == [
        (((),), False),
        ((("public.a",),), True),
    ]


def test_rebuild_into_a_path_takes_an_lsn_or_a_time(config: str, replace: Replace) -> None:
    calls = replace("pipeline.operate.rebuild_into", "build_into")
    into = ["rebuild", "--config", config, "--table", "public.a", "--into", "/x"]
    assert main.main(into) == 0
    assert main.main([*into, "--to-lsn", "0/10"]) == 0
    assert main.main([*into, "--to-time", "2026-01-31"]) == 0
    assert [keywords for _, keywords in calls] == [
        {"lsn": None, "time": None},
        {"lsn": "0/10", "time": None},
        {"lsn": None, "time": "2026-01-31"},
    ]
    for wrong in (
        ["rebuild", "--config", config, "--to-lsn", "0/10"],
        ["rebuild", "--config", config, "--to-time", "2026-01-31"],
        [*into, "--to-lsn", "0/10", "--to-time", "2026-01-31"],
        [*into, "--confirm"],
    ):
        assert main.main(wrong) == 2
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["adopt", "--table", "public.a", "/x", "--dry-run", "--no-run"], "--dry-run and --no-run"),
        (["as-of", "--lsn", "0/10", "--timestamp", "2026-01-31"], "--lsn and --timestamp"),
        (["query", "SELECT 1", "--live", "--as-of", "0/10"], "--live and --as-of"),
        (["query", "SELECT 1", "--csv", "--json"], "--csv and --json"),
        (["tail", "--messages", "--transactions"], "--messages and --transactions"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    arguments: list[str], options: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert main.main([command, "--config", config, *rest]) == 2
    assert f"{options} exclude each other. Give one of them." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ranges"),
    [
        ([], []),
        (["--key", "17"], [KeyRange(("17",), ("17",))]),
        (
            ["--key", "17", "a b", "--key=-5"],
            [KeyRange(("17", "a b"), ("17", "a b")), KeyRange(("-5",), ("-5",))],
        ),
        (["--key", "-5", "-6", "--run"], [KeyRange(("-5", "-6"), ("-5", "-6"))]),
        (["--from-key", "1", "x", "--to-key", "2"], [KeyRange(("1", "x"), ("2",))]),
        (["--to-key", "2"], [KeyRange((), ("2",))]),
    ],
)
def test_keys_have_as_many_values_as_are_given(
    arguments: list[str], ranges: list[KeyRange], config: str, replace: Replace
) -> None:
    calls = replace("pipeline.operate.resync", "run_resync")
    assert main.main(["resync", "--config", config, "--table", "public.a", *arguments]) == 0
    [((globs,), keywords)] = calls
    assert globs == ("public.a",)
    assert keywords["key_ranges"] == ranges
    assert keywords["runs"] == ("--run" in arguments)


@pytest.mark.parametrize(
    "arguments", [["--key"], ["--key", "1", "--kye", "2"], ["--table", "public.a", "17"], ["--run", "17"]]
)
def test_a_key_that_is_none_ends_with_2(arguments: list[str], config: str) -> None:
    assert main.main(["resync", "--config", config, *arguments]) == 2


def test_plan_takes_tables_and_shows_sql_on_request(config: str, replace: Replace) -> None:
    calls = replace("pipeline.operate.plan", "make_plan")
    assert main.main(["plan", "--config", config]) == 0
    assert main.main(["plan", "public.*", "--config", config, "s.t", "--sql"]) == 0
    assert calls == [(((),), {"shows_sql": False}), ((("public.*", "s.t"),), {"shows_sql": True})]


def test_the_environment_can_name_the_configuration(
    config: str, replace: Replace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = replace("pipeline.operate.plan", "make_plan")
    monkeypatch.delenv("PGDELTA_CONFIG", raising=False)
    assert main.main(["plan"]) == 2
    assert capsys.readouterr().err.startswith("pgdelta: Missing option '--config'")
    for value, code in (("", 2), (config, 0)):
        monkeypatch.setenv("PGDELTA_CONFIG", value)
        assert main.main(["plan"]) == code
    assert len(calls) == 1


def test_the_environment_can_configure_tail_unless_it_is_given_a_server(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TailOptions] = []
    place = ModuleType("pipeline.tail.follow")

    def run_tail(request: TailOptions, stop: threading.Event) -> int:
        seen.append(request)
        return 0

    monkeypatch.setattr(place, "run_tail", run_tail, raising=False)
    monkeypatch.setitem(sys.modules, "pipeline.tail.follow", place)
    monkeypatch.setenv("PGDELTA_CONFIG", config)
    assert main.main(["tail", "--no-follow", "--limit", "3", "--until-lsn", "0/64"]) == 0
    assert main.main(["tail", "--conninfo", "host=x", "--slot", "s"]) == 0
    assert [request.config is None for request in seen] == [False, True]
    assert (seen[0].follow, seen[0].limit, seen[0].until_lsn) == (False, 3, 100)
    assert main.main(["tail", "--messages", "--transactions"]) == 2


def test_the_schema_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ModuleType("pipeline.config.load")
    monkeypatch.setattr(place, "schema_text", lambda: '{"type": "object"}\n', raising=False)
    monkeypatch.setitem(sys.modules, "pipeline.config.load", place)
    assert main.main(["schema"]) == 0
    assert capsys.readouterr().out == '{"type": "object"}\n'


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pipeline.config.load")
    assert main.main(["schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_calls_pgdelta(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_PGDELTA_COMPLETE={shell}_complete" in script
    assert "pgdelta" in script


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("pgdelta re", {"reconcile", "resync", "rebuild", "resume"}),
        ("pgdelta apply --co", {"--config", "--confirm"}),
        ("pgdelta run --trigger ", {"available-now", "continuous"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, found: set[str]) -> None:
    environ = {
        "PYTHONPATH": str(ROOT),
        "_PGDELTA_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {line.removeprefix("plain,") for line in done.stdout.split()} == found


@pytest.mark.costly
def test_a_reader_that_closes_the_pipe_leaves_the_exit_code_as_it_is() -> None:
    code = (
        "import sys; from tests.support.pages import RECONCILED; from pipeline.cli.output import finish;"
        "sys.stdin.readline(); sys.exit(finish(RECONCILED, as_json=len(sys.argv) > 1))"
    )
    for arguments in ([], ["json"]):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with ended(process):
            assert process.stdout is not None
            process.stdout.close()
            _, err = process.communicate("go\n")
        assert (process.returncode, err) == (1, "")


def test_data_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(PLAN, as_json=True)
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert json.loads(text) == PLAN.as_json()
    assert "sql" not in text


def test_a_stop_before_the_end_is_1_where_no_run_repeats_the_command(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ModuleType("pipeline.operate.rebuild")

    def stopped(config: Any, globs: Any, *, confirms: bool, stop: threading.Event) -> Done:
        stop.set()
        return Done()

    monkeypatch.setattr(place, "run_rebuild", stopped, raising=False)
    monkeypatch.setitem(sys.modules, "pipeline.operate.rebuild", place)
    assert main.main(["rebuild", "--config", config]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "done\n",
        "pgdelta: Stopped before all was done. Run the same command again.\n",
    )


def test_every_command_runs_under_the_guard_and_no_option_has_no_help() -> None:
    for command in main.cli.commands.values():
        assert isinstance(command, PipelineCommand)
        for each in command.params:
            assert isinstance(each, click.Argument) or each.help, each.name
