"""`make bench`: limits and rows, delays, logs and processes, and each part with a fake rig."""

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.config.tables import RowMode
from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.threads import wait_until
from tools.bench import __main__ as bench
from tools.bench.ideal import Ideal
from tools.bench.latency import Sample, Seen, delays, percentile
from tools.bench.limits import BY_KEY, FIGURES, WIDTH, Figure, Measured, Row, heading, rows_of
from tools.bench.logs import Logs, TableLog
from tools.bench.modes import ModeCost
from tools.bench.parts import PARTS
from tools.bench.parts.demo import greatest_lag
from tools.bench.parts.mixed import scripts
from tools.bench.processes import Job, Run, batches_of, family_of, run, run_in_terminal, started
from tools.bench.rig import Rig, Source, Writer, parse_lsn

FRAME = """\x1b[1A\x1b[2K{second} s, {stage}
table             source rows   silver rows   changes     lag       WAL
shop.customers          1,000         1,000     4,012   {lag} s   1.2 MiB
shop.audit_log held        10            10         3   0.0 s       0 B
\x1b[2m3 changes made, 4 in bronze\x1b[0m
"""


# --- limits


def test_figures_have_unique_keys_and_known_parts() -> None:
    assert len(BY_KEY) == len(FIGURES)
    assert {figure.part for figure in FIGURES} == PARTS.keys()
    assert {figure.unit for figure in FIGURES} == {"s", "MiB", "x", "/s"}


@pytest.mark.parametrize("value", [None, 0.0, 0.0123, 9.999, 133.26, 123456.7])
def test_rows_fit_a_terminal(value: float | None) -> None:
    lines = [heading(), *(Row(figure, value).line() for figure in FIGURES)]
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize(
    ("limit", "is_least", "value", "ok", "line"),
    [
        (2.0, False, 1.944, True, "1.94 s ≤ 2 s ok"),
        (2.0, False, 2.0, True, "2 s ≤ 2 s ok"),
        (0.05, False, 0.0513, False, "0.051 s ≤ 0.050 s missed"),
        (None, False, 7.0, None, "7 s"),
        (2.0, False, None, False, "failed ≤ 2 s missed"),
        (None, False, None, False, "failed missed"),
        (0.8, True, 0.79, False, "0.790 s ≥ 0.800 s missed"),
        (0.8, True, 0.8, True, "0.800 s ≥ 0.800 s ok"),
    ],
)
def test_a_row_is_held_to_its_limit(
    limit: float | None, is_least: bool, value: float | None, ok: bool | None, line: str
) -> None:
    row = Row(Figure("part", "key", "text", "s", limit, is_least), value)
    assert row.is_ok is ok
    assert " ".join(row.line().split()) == f"text {line}"


def test_an_unlisted_figure_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        list(rows_of([Measured("unheard_of", 1.0)]))


# --- arithmetic


def test_delays_are_from_the_commit_to_the_first_offset_beyond_it() -> None:
    seen = {"a": [Seen(10, 1.0), Seen(20, 2.0), Seen(30, 3.0)], "b": [Seen(100, 9.0)]}
    samples = [Sample("a", 9, 0.5), Sample("a", 10, 1.5), Sample("a", 25, 2.9), Sample("b", 0, 9.5)]
    assert delays(samples, seen) == pytest.approx([0.5, 0.5, 0.1, 0.0])


def test_a_change_that_is_never_visible_is_an_error() -> None:
    with pytest.raises(ValueError, match="a is not visible"):
        delays([Sample("a", 30, 0.0)], {"a": [Seen(30, 1.0)]})


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(each) for each in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0, 0.0)] == [50.0, 99.0, 100.0, 1.0]
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_an_lsn_is_a_number() -> None:
    assert parse_lsn("1/A") == (1 << 32) + 10


def test_the_greatest_lag_is_of_frames_that_show_the_load() -> None:
    frames = [("filling the shop", 9.5), ("changing the shop", 2.1), ("changing the shop", 2.9)]
    frames += [("changing the shop", 0.3), ("catching up", 8.0)]
    text = "".join(
        FRAME.format(second=second, stage=stage, lag=lag) for second, (stage, lag) in enumerate(frames)
    )
    assert greatest_lag(text.replace("\n", "\r\n")) == 2.9
    with pytest.raises(RuntimeError, match="no lag"):
        greatest_lag(FRAME.format(second=1, stage="catching up", lag=3.0))


def test_the_demo_s_live_table_is_what_the_lag_is_read_from() -> None:
    from rich.console import Console

    from pipeline.demo.board import Board

    class OneChangeBehind:
        counts = SimpleNamespace(total=lambda: 12)
        rows = dict.fromkeys(("customers", "products", "orders", "order_items", "carts", "audit_log"), 1000)

        def lag_of(self, offset: object) -> tuple[float, int]:
            return 12.3, 4096

    board = Board(Path("/nowhere"), "shop", cast(Any, OneChangeBehind()), None)
    board.stage = "changing the shop"
    console = Console(width=120, force_terminal=True)
    with console.capture() as capture:
        console.print(board._table())
    assert greatest_lag(capture.get()) == 12.3


def test_scripts_of_the_mixed_load_have_every_kind_of_change() -> None:
    text = "\n".join(scripts())
    for kind in ("INSERT", "UPDATE", "DELETE", "SET id = id +", "repeat(md5("):
        assert kind in text
    assert len(scripts()) == len(set(scripts())) == 10


# --- logs


def _commit(folder: Path, version: int, *actions: Mapping[str, object]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def _add(path: str, rows: int, deleted: int = 0) -> dict[str, object]:
    vector = {"deletionVector": {"cardinality": deleted}} if deleted else {}
    return {"add": {"path": path, "stats": json.dumps({"numRecords": rows}), **vector}}


def _txn(version: int, suffix: str = "") -> dict[str, object]:
    return {"txn": {"appId": f"pgdelta:shop:1{suffix}", "version": version}}


def test_a_log_gives_offsets_and_rows(tmp_path: Path) -> None:
    log = TableLog(tmp_path)
    log.refresh()
    assert (log.offset, log.rows) == (0, 0)
    _commit(tmp_path, 0, _add("a", 5), _add("b", 7), _txn(10))
    _commit(tmp_path, 1, {"remove": {"path": "a"}}, _add("a", 5, deleted=2), _txn(99, "#3"))
    log.refresh()
    assert (log.offset, log.rows) == (10, 10)  # the commit of a part does not advance the table
    _commit(tmp_path, 2, {"remove": {"path": "b"}}, _txn(20), {"txn": {"appId": "other", "version": 70}})
    log.refresh()
    assert (log.offset, log.rows) == (20, 3)
    assert [each.offset for each in log.seen] == [10, 20]


def test_waiting_ends_when_every_table_shows_an_lsn(tmp_path: Path) -> None:
    logs = Logs(tmp_path, ["a", "b"])
    for table in ("a", "b"):
        _commit(tmp_path / "silver" / "public" / table, 0, _add("x", 2), _txn(10))
    with logs.reading():
        assert logs.wait(9, lambda: None) <= time.monotonic()
    logs.check_rows({"a": 2, "b": 2})
    with pytest.raises(RuntimeError, match="silver b has 2 rows, its source 3"):
        logs.check_rows({"a": 2, "b": 3})
    with pytest.raises(RuntimeError, match="did not show the changes: a, b"):
        logs.wait(10, lambda: None, patience=0.0)


def test_waiting_ends_with_the_jobs(tmp_path: Path) -> None:
    def ended() -> None:
        raise RuntimeError("apply ended")

    with pytest.raises(RuntimeError, match="apply ended"):
        Logs(tmp_path, ["a"]).wait(0, ended)


# --- processes


def test_a_command_is_timed_and_its_memory_is_watched() -> None:
    code = "import time; block = bytearray(60 << 20); print('done'); time.sleep(0.5)"
    found = run("memory", [sys.executable, "-c", code])
    assert found.output == "done\n"
    assert found.seconds > 0.5
    assert found.peak_mib > 60


def test_a_command_that_fails_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="short failed, 3: so sorry"):
        run("short", [sys.executable, "-c", "import sys; print('so sorry', file=sys.stderr); sys.exit(3)"])


def test_nothing_is_left_of_a_job_that_did_not_end() -> None:
    code = "import subprocess; subprocess.run(['sleep', '600'])"
    with contextlib.suppress(ZeroDivisionError), started("parent", [sys.executable, "-c", code]) as job:
        wait_until(lambda: len(family_of(job.process.pid)) > 1, 120)
        pids = family_of(job.process.pid)
        assert len(pids) > 1
        raise ZeroDivisionError
    assert job.process.poll() is not None
    # one that was killed and is no child of this process may take a moment
    wait_until(lambda: _living(pids) == [], 120)


def _living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and not _is_zombie(pid)]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_job_that_ends_early_is_noticed() -> None:
    with started("early", [sys.executable, "-c", "print(1)"]) as job:
        job.process.wait(30)
        with pytest.raises(RuntimeError, match="early ended, 0"):
            job.check()


def test_a_command_in_a_terminal_writes_to_one() -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns)"
    found = run_in_terminal("terminal", [sys.executable, "-c", code])
    assert found.output.split() == ["True", "120"]
    with pytest.raises(RuntimeError, match="terminal failed, 1"):
        run_in_terminal("terminal", [sys.executable, "-c", "raise SystemExit(1)"])


def test_batches_are_read_from_the_log_of_a_run() -> None:
    batch = {"event": "batch", "position": "0/A", "tables": 3, "seconds": 1.5}
    lines = ['{"event": "start"}', json.dumps(batch), "no JSON", "[1]", '{"event": "pass", "pos']
    assert batches_of("\n".join(lines)) == [batch]


# --- parts with a fake rig


class FakeClock:
    """Time that moves only during a sleep or a command."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lsn = 1000


class FakeSource(Source):
    """A database that records statements; each takes the clock's LSN further."""

    def __init__(self, name: str, clock: FakeClock) -> None:
        self.name, self.conninfo = name, "dbname=fake"
        self.statements: list[str] = []
        self.fake = clock

    def execute(self, *statements: str) -> None:
        self.statements += statements
        self.fake.lsn += 10

    def transaction(self, *statements: str) -> None:
        self.execute(*statements)

    def lsn(self) -> int:
        return self.fake.lsn

    def count(self, table: str) -> int:
        return 7

    def pgbench(self, scripts: Sequence[str], transactions: int, *, clients: int = 4) -> None:
        assert "{rows}" not in "".join(scripts)
        self.execute(*scripts)

    @contextmanager
    def pgbench_at(
        self, scripts: Sequence[str], per_second: float, seconds: int, *, clients: int = 4
    ) -> Iterator[Job]:
        assert 10_000 / 4 < per_second < 10_000 / 2  # two to four changes each
        self.execute(*scripts)
        yield cast(Job, FakeJob(is_stopped=True))

    def create_slot(self, name: str) -> None:
        self.execute(name)

    def recvlogical(self, slot: str, publication: str) -> float:
        return 4.0

    def copy_out(self, table: str) -> float:
        return 0.2

    def close(self) -> None:
        pass


class FakeLogs(Logs):
    """Logs that show everything half a second after it was committed."""

    def __init__(self, tables: list[str], clock: FakeClock) -> None:
        super().__init__(Path("/nowhere"), tables)
        self.fake = clock

    def refresh(self) -> None:
        for log in (self.bronze, *self.silver.values()):
            log.seen.append(Seen(self.fake.lsn + 1, self.fake.now + 0.5))

    def wait(self, lsn: int, is_alive: Any, *, patience: float = 0.0) -> float:
        is_alive()
        self.refresh()
        self.fake.now += 6.0
        return self.fake.now

    def check_rows(self, expected: Mapping[str, int]) -> None:
        assert set(expected) == set(self.silver)
        self.refresh()


class FakeJob:
    """A job that runs until it is stopped."""

    peak_mib = 123.0

    def __init__(self, *, is_stopped: bool = False) -> None:
        self.is_stopped = is_stopped
        self.used = 0.0

    def check(self) -> None:
        assert not self.is_stopped

    def processor_seconds(self) -> float:
        self.used += 0.5
        return self.used

    def end(self) -> str:
        return "number of failed transactions: 0 (0.000%)\ntps = 4000.5 (without initial connection time)\n"

    def stop(self) -> None:
        self.is_stopped = True


class FakeReader(FakeJob):
    """Reads that end half a second after a commit."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.fake = clock
        self.lines: list[str] = []

    @property
    def output(self) -> str:
        read = {"lsn": self.fake.lsn + 1, "at": self.fake.now + 0.5, "seconds": 0.25, "rows": 20_000}
        self.lines.append(json.dumps(read) + "\n")
        return "".join(self.lines) + '{"lsn": 1'


class FakeIdeal(Ideal):
    """Merges and writes that take three seconds."""

    def copy_table(self, table: Path, target: Path) -> None:
        pass

    def write(self, table: Path, target: Path) -> float:
        return 3.0

    def merge_into_empty(self, table: Path, target: Path, key: str) -> float:
        return 4.0

    def write_net_changes(self, old: Path, new: Path, key: str, target: Path) -> int:
        return 1

    def merge(self, changes: Mapping[Path, Path], key: str) -> float:
        return 3.0

    def write_copied_rows(self, changes: Path, target: Path) -> tuple[int, float]:
        return 10 * 100, 3.0


class FakeRig(Rig):
    """Commands that take two seconds, on a clock that does not wait."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scale = folder, 0.00005
        self.said: list[str] = []
        self.say = self.said.append
        self.ideal = FakeIdeal(folder)
        self.fake = FakeClock()
        self.jobs: list[FakeJob] = []
        self.sources: list[FakeSource] = []
        self.applies = 0

    @contextmanager
    def source(self, name: str) -> Iterator[Source]:
        self.sources.append(FakeSource(name, self.fake))
        yield self.sources[-1]

    def _run(self, seconds: float, output: str = "") -> Run:
        self.fake.now += seconds
        return Run(seconds, 250.0, output)

    def ingest(self, config: Path) -> Run:
        assert config.exists()
        return self._run(2.0)

    def apply(self, config: Path) -> Run:
        return self._run(10.0)

    def spark_start(self) -> Run:
        return self._run(4.0)

    def reconcile(self, config: Path) -> Run:
        return self._run(1.0)

    def prove(self, config: Path) -> Run:
        return replace(self._run(1.5), output='{"files": {"read": 0}}')

    def spark_query(self, pipeline: str) -> Run:
        return self._run(9.0)

    def ask(self, config: Path, *command: str) -> Run:
        if command == ("apply",):  # each takes longer than the one before
            self.applies += 1
            return self._run(self.applies)
        return self._run(0.9 if command[0] == "audit" else 0.5)

    def demo(self, seconds: int) -> Run:
        return self._run(70.0, FRAME.format(second=1, stage="changing the shop", lag=1.5))

    def modes(self, rows: int, changes: int, rounds: int) -> Iterator[ModeCost]:
        ratios: dict[RowMode, float] = {"mirror": 1, "soft_delete": 1.1, "history": 1.5, "append": 0.25}
        seconds: dict[WriterSetting, float] = {"native": 0.5, "spark": 2.0}
        for writer, mirror in seconds.items():
            for mode, ratio in ratios.items():
                yield ModeCost(mode, writer, (0.1, mirror * ratio, 9.0))

    @contextmanager
    def job(self, name: str, config: Path) -> Iterator[Job]:
        assert config.exists()
        self.jobs.append(FakeJob())
        yield cast(Job, self.jobs[-1])

    @contextmanager
    def live_reader(self, config: Path) -> Iterator[Job]:
        assert config.exists()
        self.jobs.append(FakeReader(self.fake))
        yield cast(Job, self.jobs[-1])

    def follow(self, pipeline: str, tables: list[str]) -> AbstractContextManager[Logs]:
        return contextlib.nullcontext(FakeLogs(tables, self.fake))

    def clock(self) -> float:
        return self.fake.now

    def sleep(self, seconds: float) -> None:
        self.fake.now += max(0.0, seconds)

    def wait_for_batch(self, apply: Job, lsn: int) -> float:
        return 6.0


EXPECTED: dict[str, dict[str, float]] = {
    "start": {
        "first_apply": 1.0,
        "ingest_empty": 2.0,
        "ingest_empty_memory": 250.0,
        "run": 0.5,
        "apply_empty": 10.0,
        "submit_extra": 1.0,
        "spark_start": 4.0,
    },
    "commands": {"commands_58": 0.9, "commands_1000": 0.9},
    "tables": {"first_load": 8.0, "first_load_ingest": 2.0, "native_table": 6.0, "spark_table": 6.0},
    "latency": {"ingest_memory": 123.0, "apply_memory": 123.0},
    "live": {"live_read": 0.25, "live_memory": 123.0},
    "mixed": {
        "reference": 4.0,
        "capture": 2.0,
        "capture_ratio": 2.0,
        "mixed_ideal": 3.0,
        "end_to_end": 8.0,
        "end_to_end_ratio": 7 / 8,
        "mixed_memory": 250.0 + 123.0,
    },
    "sustained": {"sustained_rate": 4000.5 * 2.7, "sustained_ingest_cpu": 10.0, "sustained_memory": 246.0},
    "one_table": {
        "narrow_capture_ratio": 2.0,
        "narrow_apply": 1.0,
        "narrow_apply_ratio": 3.0,
        "very_wide_apply_ratio": 4.0,
        "very_wide_memory": 250.0,
    },
    "apply": {"apply_ideal": 3.0, "apply_batch": 6.0, "apply_ratio": 2.0},
    "copy": {"copy_reference": 3.0, "copy_ingest": 2.0, "copy_silver": 8.0, "copy_ratio": 3 / 8},
    "prove": {"copy_out": 2.0, "proof": 1.5, "proof_ratio": 0.75, "reconcile": 1.0},
    "demo": {"demo_lag": 1.5, "demo_seconds": 70.0},
    "modes": {"native_mirror": 0.5, "native_history": 1.5, "spark_mirror": 2.0, "spark_append": 0.25},
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_gives_all_its_figures(part: str, tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    found = {each.key: each.value for each in PARTS[part](rig)}
    assert list(found) == [figure.key for figure in FIGURES if figure.part == part]
    assert {key: found[key] for key in EXPECTED[part]} == pytest.approx(EXPECTED[part])
    assert all(job.is_stopped for job in rig.jobs)


def test_updates_of_wide_rows_change_three_columns(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    list(PARTS["one_table"](rig))
    for source, columns in zip(rig.sources, (5, 100, 400), strict=True):
        create, *_, update = source.statements
        assert create.count(",") - create.count("(12,2)") == columns - 1
        assert update.count("=") == 3 + update.count("<=")


def test_latency_is_measured_at_a_thousand_changes_per_second(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    list(PARTS["latency"](rig))
    updates = [each for each in rig.sources[0].statements if "amount + 1" in each]
    assert len(updates) == (3 + 5) * 100
    for update in updates:
        low, high = map(int, re.findall(r"id >=? (\d+) AND id <= (\d+)", update)[0])
        assert (high - low, high <= 2000) == (10, True)


def test_the_spark_writer_is_set_in_the_configuration(tmp_path: Path) -> None:
    rig = FakeRig(tmp_path)
    with rig.source("many") as source:
        writers: tuple[Writer, ...] = ("auto", "spark")
        auto, spark = (rig.configure(source, writer=writer).read_text() for writer in writers)
    assert "silver:" not in auto
    assert "silver: {writer: spark}" in spark


# --- the command


def test_parts_print_rows_as_they_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run_parts(FakeRig(tmp_path), ["demo"], as_json=False, strict=True) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["figure", "measured", "limit"],
        *(
            [
                "make",
                "demo,",
                "greatest",
                "lag",
                "in",
                "its",
                "live",
                "table",
                "1.50",
                "s",
                "≤",
                "3",
                "s",
                "ok",
            ],
        ),
        ["the", "whole", "demo", "70", "s", "≤", "75", "s", "ok"],
    ]


@pytest.mark.parametrize("strict", [False, True])
def test_a_missed_limit_fails_a_strict_run_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strict: bool
) -> None:
    assert bench.run_parts(FakeRig(tmp_path), ["apply", "demo"], as_json=True, strict=strict) == int(strict)
    found = json.loads(capsys.readouterr().out)
    assert [(each["figure"], each["ok"]) for each in found["figures"]] == [
        ("apply_ideal", None),
        ("apply_batch", None),
        ("apply_ratio", False),
        ("demo_lag", True),
        ("demo_seconds", True),
    ]


def test_a_part_that_fails_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rig: Rig) -> Iterator[Measured]:
        yield Measured("apply_ideal", 2.0)
        raise RuntimeError("no space")

    monkeypatch.setitem(PARTS, "apply", broken)
    rig = FakeRig(tmp_path)
    assert bench.run_parts(rig, ["apply", "demo"], as_json=False, strict=False) == 1
    verdicts = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert verdicts == ["s", "missed", "missed", "ok", "ok"]
    assert "apply failed: no space" in rig.said


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["--only", "nothing"], ["start", "--only", "sync"], ["--scale", "0"]]
)
def test_mistakes_in_the_command_line_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(arguments)
    assert caught.value.code == 2


def test_comparisons_are_the_ones_of_the_command_line() -> None:
    from tools.bench.comparisons import COMPARISONS

    assert tuple(COMPARISONS) == bench.COMPARISONS
