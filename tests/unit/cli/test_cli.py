"""The command: what it teaches, what it calls, and how it ends."""

import errno
import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline import __version__
from pipeline.cli import main
from pipeline.cli.command import PipelineCommand
from pipeline.cli.options import parse_address
from pipeline.cli.signals import CommandKind, main_guard
from pipeline.errors import ConfigError, GapError, LakeError, describe_error, report_error
from pipeline.postgres.embedded import find_free_port
from tests.support.paths import ROOT
from tests.support.processes import ended

COMMANDS = (
    *("check", "ingest", "apply", "run", "status", "plan", "as-of", "tail", "reconcile", "audit"),
    *("resync", "rebuild", "maintain", "optimize", "demo"),
)


@dataclass
class Ran:
    """A summary that remembers how the run was called."""

    called: dict[str, Any]

    def lines(self) -> list[str]:
        return ["captured 3 changes", "public.t: held"]

    def as_json(self) -> dict[str, Any]:
        return {"changes": 3}

    def exit_code(self, strict: bool) -> int:
        return int(strict)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the jobs that the commands call by stand-ins; return what they were called with."""
    seen: list[dict[str, Any]] = []

    def stand_in(module: str, function: str) -> None:
        def run(config: Any, **keywords: Any) -> Ran:
            seen.append({"function": function, "pipeline": config.pipeline, **keywords})
            return Ran(seen[-1])

        place = ModuleType(module)
        setattr(place, function, run)
        monkeypatch.setitem(sys.modules, module, place)

    stand_in("pipeline.ingest.job", "run_ingest")
    stand_in("pipeline.apply.job", "run_apply")
    stand_in("pipeline.operate.run", "run_both")
    return seen


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "c.yaml"
    path.write_text("pipeline: shop\n")
    return str(path)


@contextmanager
def started(code: str, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python on some code with the checkout on its path, as a shell would."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ended(process):
        yield process


def shown_help(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def test_help_teaches_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(capsys)
    assert all(f"\n  {command} " in text for command in (*COMMANDS, "schema", "completion"))
    for section in ("Set up:", "Replicate:", "Observe:", "Verify:", "Repair:", "Exit codes:"):
        assert f"\n{section}\n" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_json_and_debug(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(capsys, command)
    assert "--json" in text
    assert "--debug" in text


@pytest.mark.parametrize("command", sorted(main.cli.commands))
def test_help_of_a_command_has_examples_that_parse_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown_help(capsys, command)
    assert max(map(len, text.splitlines())) <= 80
    assert "\nExamples:\n  # " in text
    assert re.search(r"\nExit codes:\n  0 +\S.*\n +1 +\S", text)
    chosen = main.cli.commands[command]
    assert isinstance(chosen, PipelineCommand)
    lines = [shlex.split(line.replace("\\\n", " "), comments=True) for _, line in chosen.examples]
    for program, *arguments in filter(None, (line for line in lines if line)):
        if program == "pgdelta" and ">" not in arguments:
            assert arguments[0] == command
            main.cli.commands[command].make_context(command, arguments[1:])


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_both_names_of_help_end_with_0(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ingest", flag]) == 0
    assert capsys.readouterr().out.startswith("Usage: pgdelta ingest ")


def test_help_loads_neither_spark_nor_psycopg() -> None:
    code = (
        "import sys; from pipeline.cli.main import main;"
        "codes = [main([*command, '--help']) for command in ([], ['ingest'], ['tail'], ['check'])];"
        "heavy = {'pyspark', 'psycopg', 'pyarrow', 'yaml', 'rich', 'pydantic', 'numpy'};"
        "print(codes, sorted(heavy & set(sys.modules)))"
    )
    with started(code) as process:
        assert process.communicate()[0].splitlines()[-1] == "[0, 0, 0, 0] []"


def test_only_the_command_and_no_caller_of_main_collects_garbage_rarely() -> None:
    code = (
        "import gc, os, sys; from pipeline.cli.main import main; before = gc.get_threshold();"
        "os._exit = lambda _: None; main(['schema']); unchanged = gc.get_threshold() == before;"
        "sys.argv = ['pgdelta', 'schema']; main(); print(); print(unchanged, gc.get_threshold()[0])"
    )
    with started(code) as process:
        assert process.communicate()[0].splitlines()[-1] == "True 500000"


def test_tail_needs_no_spark() -> None:
    code = (
        "import sys; from pipeline.cli.main import main;"
        "print(main(['tail', '--conninfo', 'host=/nowhere', '--slot', 'shop']));"
        "print(sorted({'pyspark', 'py4j', 'delta', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    with started(code) as process:
        out, err = process.communicate()
    assert out == "1\n[]\n"
    assert err.startswith("pgdelta: Cannot connect to the source: ")


def test_a_flag_that_changes_a_slot_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tail", "--slot", "shop", "--ack"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("pgdelta: No such option '--ack'.")
    assert said.endswith(" See pgdelta tail --help.\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--limit", "0"], ["--limit", "x"], ["--until-lsn", "12"], ["--value-length", "-1"]]
)
def test_a_number_or_position_that_is_none_ends_with_2(arguments: list[str]) -> None:
    assert main.main(["tail", "--slot", "shop", *arguments]) == 2


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pgdelta {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["ingst"], ["ingest"], ["run", "--config", "x", "--trigger", "no"]]
)
def test_a_mistake_in_the_command_line_ends_with_2(arguments: list[str]) -> None:
    assert main.main(arguments) == 2


def test_a_mistake_in_the_configuration_is_one_sentence_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text("pipeline: s\nsorce: {}\n")
    assert main.main(["ingest", "--config", str(tmp_path / "c.yaml")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"pgdelta: {tmp_path}/c.yaml:2: sorce: Unknown key. Did you mean source?\n"


@pytest.mark.parametrize(
    ("command", "function"), [("ingest", "run_ingest"), ("apply", "run_apply"), ("run", "run_both")]
)
def test_a_run_gets_config_trigger_and_stop_and_prints_its_lines(
    command: str,
    function: str,
    config: str,
    calls: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main([command, "--config", config]) == 0
    assert main.main([command, "--config", config, "--trigger", "continuous", "--strict"]) == 1
    assert [call["function"] for call in calls] == [function] * 2
    assert [call["trigger"] for call in calls] == ["available-now", "continuous"]
    assert all(isinstance(call["stop"], threading.Event) for call in calls)
    assert capsys.readouterr().out == "captured 3 changes\npublic.t: held\n" * 2


def test_json_is_one_object(
    config: str, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["ingest", "--config", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changes": 3}


@pytest.mark.parametrize("command", ["ingest", "apply", "run"])
def test_a_log_of_json_begins_and_ends_with_the_run(
    command: str, config: str, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([command, "--config", config, "--log", "json", "--strict"]) == 1
    said = capsys.readouterr()
    start, end = map(json.loads, said.err.splitlines())
    assert said.out == "captured 3 changes\npublic.t: held\n"
    assert (start["event"], start["command"], start["pipeline"]) == ("start", command, "shop")
    assert (end["event"], end["exit_code"]) == ("end", 1)


def test_a_failed_run_has_one_last_line_in_its_log(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(config: Any, **keywords: Any) -> Ran:
        raise GapError("the slot is gone")

    place = ModuleType("pipeline.ingest.job")
    monkeypatch.setattr(place, "run_ingest", fail, raising=False)
    monkeypatch.setitem(sys.modules, "pipeline.ingest.job", place)
    assert main.main(["ingest", "--config", config, "--log", "json"]) == 1
    _, end = map(json.loads, capsys.readouterr().err.splitlines())
    assert (end["event"], end["exit_code"], end["sentence"]) == ("end", 1, "the slot is gone")


@pytest.mark.parametrize("arguments", [["--metrics", "0"], ["--metrics", ":9187"], ["--log", "xml"]])
def test_a_way_to_watch_that_is_none_ends_with_2(arguments: list[str]) -> None:
    assert main.main(["run", "--config", "x", *arguments]) == 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9187", ("127.0.0.1", 9187)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("db-1.local:65535", ("db-1.local", 65535)),
        ("[::1]:9187", ("::1", 9187)),
    ],
)
def test_an_address_is_a_port_or_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "0", "65536", ":9187", "x", "host:", "host:0", "-1", "1.5", "٣"])
def test_anything_else_is_no_address(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="Write a port from 1 to 65535"):
        parse_address(text)
    assert main.main(["run", "--config", "x", f"--metrics={text}"]) == 2
    assert "Write a port from 1 to 65535" in capsys.readouterr().err


def test_check_prints_passes_and_fixes(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = SimpleNamespace(name="wal_level", ok=True, sentence="wal_level is logical", fix=None)
    bad = SimpleNamespace(name="slot", ok=False, sentence="slot [x] is busy", fix="stop process 17")
    checks = [good, bad]
    monkeypatch.setattr("pipeline.operate.machine_checks.run_checks", lambda *_, **__: checks)
    assert main.main(["check", "--config", config]) == 1
    text = capsys.readouterr().out
    for part in ("✔", "✘", "slot [x] is busy", "stop process 17", "1 of 4 checks failed", "Java", "lake"):
        assert part in text
    assert main.main(["check", "--config", config, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert [check["name"] for check in said["checks"][:3]] == ["Java", "lake", "wal_level"]
    assert said["checks"][3] == {
        "name": "slot",
        "ok": False,
        "sentence": "slot [x] is busy",
        "fix": "stop process 17",
    }
    checks.remove(bad)
    assert main.main(["check", "--config", config]) == 0
    assert "ready" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"), [(GapError("the slot is gone"), 1), (LakeError("x"), 1), (ConfigError("y"), 2)]
)
def test_a_pgdelta_error_prints_its_message_and_ends_with_its_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(stop: threading.Event) -> int:
        raise error

    assert main_guard(fail) == code
    assert capsys.readouterr().err == f"pgdelta: {error}\n"


def test_any_other_error_is_named_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(stop: threading.Event) -> int:
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # pyspark's
            logging.getLogger(name).error("geheim")
        raise ValueError("the row holds geheim")

    assert main_guard(fail) == 1
    said = capsys.readouterr().err
    assert said.startswith("pgdelta: Unexpected ValueError in test_cli.py line ")
    assert said.endswith("Run again with --debug for the stack trace.\n")
    assert "geheim" not in said
    assert said.count("\n") == 1


def test_debug_shows_the_stack_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDELTA_SPARK_LOG", "warn")

    def fail(stop: threading.Event) -> int:
        raise LakeError("no lake")

    assert main_guard(fail, debug=True) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.endswith("pgdelta: no lake\n")


@pytest.mark.parametrize("debug", [False, True])
def test_debug_shows_stack_traces_of_errors_after_which_the_run_continues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    monkeypatch.setenv("PGDELTA_SPARK_LOG", "warn")

    sentences: list[str] = []

    def go_on(stop: threading.Event) -> int:
        try:
            raise ValueError("the row holds geheim")
        except ValueError as error:
            sentences.append(report_error(error))
        return 0

    for _ in range(2):
        assert main_guard(go_on, debug=debug) == 0
        said = capsys.readouterr().err
        assert said.count("Traceback (most recent call last)") == int(debug)
        assert ("geheim" in said) is bool(said) is debug
    assert all(sentence.startswith("Unexpected ValueError in test_cli.py") for sentence in sentences)


def test_an_error_of_a_side_thread_is_a_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    def run(stop: threading.Event) -> int:
        side = threading.Thread(target=lambda: 1 // 0)
        side.start()
        side.join()
        return 0

    assert main_guard(run) == 0
    assert capsys.readouterr().err.startswith("pgdelta: Unexpected ZeroDivisionError in test_cli.py line ")


def spark_error(name: str, text: str, module: str = "pyspark.errors") -> Exception:
    """Return an exception as Spark's Python side has it."""
    error: Exception = type(name, (Exception,), {"__module__": module})(text)
    return error


def test_a_spark_error_is_its_first_line_without_values() -> None:
    text = "[CAST_INVALID_INPUT] The value 'geheim' of the type \"STRING\" is malformed.\n\tat x.y(Z.scala:1)"
    sentence = describe_error(spark_error("SparkRuntimeException", text))
    assert sentence.startswith(
        "Spark failed: [CAST_INVALID_INPUT] The value … of the type … is malformed. Run"
    )
    sentence = describe_error(
        spark_error("AnalysisException", "[PATH_NOT_FOUND] Path 'x' does not exist.\nat")
    )
    assert "Path 'x' does not exist. Run again" in sentence
    invariant = 'x.DeltaInvariantViolationException: [DELTA_OTHER_LIMIT] Value "geheim" is too long.'
    sentence = describe_error(spark_error("SparkRuntimeException", invariant))
    assert "[DELTA_OTHER_LIMIT] Value … is too long. Run again" in sentence
    sentence = describe_error(
        spark_error("Py4JNetworkError", "Answer from Java side is empty", "py4j.protocol")
    )
    assert sentence.startswith("Lost the connection to Spark's JVM")
    error = spark_error("Py4JJavaError", "", "py4j.protocol")
    error.__dict__["java_exception"] = SimpleNamespace(
        toString=lambda: "java.io.IOException: full\n\tat a.b(C)"
    )
    assert describe_error(error).startswith("Spark failed: java.io.IOException: full. Run again")


def test_a_file_that_may_not_be_written_is_named_with_the_remedy() -> None:
    denied = PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/lake/t/_delta_log/3.json")
    assert describe_error(denied) == (
        "/lake/t/_delta_log/3.json: Operation not permitted. Let this user read and write there, then run "
        "again."
    )


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("silver/t/city=Bern/part-1.snappy.parquet", "silver/t/city=…/part-1.snappy.parquet"),
        ("silver/t/city=New York/day=2026-01-02/0-a.parquet", "silver/t/city=…/day=…/0-a.parquet"),
        ("lake/env=prod/t/city=Bern/part-1.parquet", "lake/env=prod/t/city=…/part-1.parquet"),
        ("t/city%3DBern/part-1.parquet", "t/city%3D…/part-1.parquet"),
        ("t/part-1.parquet", "t/part-1.parquet"),
        ("conf/a=b/pipeline.yaml", "conf/a=b/pipeline.yaml"),
    ],
)
def test_a_file_is_named_without_the_values_of_its_partition(named: str, shown: str) -> None:
    assert str(LakeError(f"The file s3://b/{named} is missing. Run again.")) == (
        f"The file s3://b/{shown} is missing. Run again."
    )
    assert describe_error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"/{named}")).startswith(
        f"/{shown}: No such file or directory."
    )
    text = f"[FAILED_READ_FILE] Error while reading file file:///{named}."
    assert f"file file:///{shown}" in describe_error(spark_error("SparkException", text))


def test_a_lost_gateway_and_a_full_disk_are_each_reported_as_such() -> None:
    refuse = "raise ConnectionRefusedError(111, 'refused')"
    work = compile(refuse, "x/py4j/java_gateway.py", "exec")
    with pytest.raises(ConnectionRefusedError) as caught:
        exec(work)
    assert describe_error(caught.value).startswith("Lost the connection to Spark's JVM")
    with pytest.raises(ConnectionRefusedError) as refused:
        socket.create_connection(("127.0.0.1", find_free_port()))
    assert describe_error(refused.value).startswith("Connection refused")
    full = OSError(errno.ENOSPC, "as Arrow puts it: [errno 28] No space left on device")
    assert describe_error(full) == "No space left on device. Nothing is lost. Free some space and run again."
    text = "[TASK_WRITE_FAILED] x\n\tCaused by: java.io.IOException: No space left on device"
    sentence = describe_error(spark_error("SparkException", text))
    assert sentence.endswith("No space left on device. Nothing is lost. Free some space and run again.")


def test_a_jvm_that_a_signal_ended_with_the_command_was_not_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = spark_error("Py4JNetworkError", "Answer from Java side is empty", "py4j.protocol")
    ended = spark_error("SparkException", "Job 3 cancelled because SparkContext was shut down")

    def work(stop: threading.Event) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(30)
        assert describe_error(ended) == describe_error(lost)
        raise lost

    assert main_guard(work, kind=CommandKind.ONCE) == 1
    expected = "Spark's JVM was stopped together with this command. Nothing is lost: run again."
    assert capsys.readouterr().err == f"pgdelta: {expected}\n"
    assert describe_error(lost).startswith("Lost the connection to Spark's JVM")


STOPPED_DURING_IMPORTS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from pipeline.cli.start import main
main(["status"])
"""


def test_ctrl_c_during_imports_prints_no_stack_trace() -> None:
    command = [sys.executable, "-c", STOPPED_DURING_IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


ANSWERED = """
import atexit, sys
atexit.register(print, "late")
from pipeline.cli.start import main
sys.argv = ["pgdelta", "schema"]
sys.exit(main())
"""


def test_a_process_that_has_answered_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", ANSWERED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


WORK = """
import sys, time
from pipeline.cli import signals
signals._GRACE_SECONDS = float(sys.argv[1])
def work(stop):
    print("ready", flush=True)
    stop.wait(60)
    time.sleep(float(sys.argv[2]))
    print("committed", flush=True)
    return 0
sys.exit(signals.main_guard(work))
"""


def signalled(
    number: signal.Signals, *arguments: str, kind: str = "", timeout: float = 120
) -> tuple[int, str, str]:
    """Send a signal to work that has begun; return its exit code, and what it printed on both streams."""
    work = WORK.replace("(work)", f"(work, kind=signals.CommandKind.{kind})") if kind else WORK
    with started(work, *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_commit_under_way_and_ends_with_0(number: signal.Signals) -> None:
    assert signalled(number, "50", "0.3") == (0, "committed\n", "")


@pytest.mark.parametrize(("kind", "code"), [("READER", 0), ("ANSWER", 1)])
def test_what_commits_nothing_is_not_waited_for(kind: str, code: int) -> None:
    assert signalled(signal.SIGINT, "50", "60", kind=kind, timeout=40) == (code, "", "")


def test_a_commit_that_takes_too_long_is_cut_off_with_0() -> None:
    code, out, err = signalled(signal.SIGTERM, "0.5", "60")
    assert (code, out) == (0, "")
    assert err.startswith("pgdelta: Stopped before the commit in progress had ended. Nothing is lost")


def test_a_command_that_runs_once_is_cut_off_by_a_signal_with_1() -> None:
    code, _, err = signalled(signal.SIGTERM, "0.5", "60", kind="ONCE")
    assert code == 1
    assert err.endswith("Nothing is lost: run the same command again.\n")


def test_a_second_signal_ends_at_once() -> None:
    with started(WORK, "50", "60") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        threading.Event().wait(1.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 130
        assert err.startswith("pgdelta: Stopped at once. Nothing is lost")


@pytest.mark.costly
@pytest.mark.parametrize("job", ["ingest", "apply"])
def test_a_job_is_its_command_from_any_folder(job: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("--help").stdout.startswith(f"Usage: pgdelta {job} ")
    assert run().returncode == 2
    done = run("--config", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pgdelta: none.yaml: File not found. Give --config the path of a YAML file.\n"
