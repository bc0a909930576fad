"""Real injuries of the host: a disk that is full, a heap that is too small, a JVM that is killed, bad bytes.

Both jobs run as processes of their own. Each injury ends a run with a sentence; the next run continues, and
silver equals the source.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.pipelines import MakePipeline, Pipeline
from tests.support.processes import in_own_session

BIN = Path(sys.executable).parent
CONFIG = """\
pipeline: {name}
source:
  conninfo: "{conninfo}"
  copy: never
storage: {{root: "{root}"}}
"""
VERIFIED = "parquet.page.verify-checksum.enabled"
BATCH_SIZE = "spark.sql.parquet.columnarReaderBatchSize"
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, v text)"
FILL = "INSERT INTO items SELECT i, md5(i::text) || md5((-i)::text) FROM generate_series({}, {}) i"


def write_config(pipeline: Pipeline, folder: Path) -> Path:
    file = folder / "pipeline.yaml"
    name, conninfo = pipeline.config.pipeline, pipeline.database.conninfo
    file.write_text(CONFIG.format(name=name, conninfo=conninfo, root=pipeline.root))
    return file


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of the tests' own Spark."""
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key} | variables
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    assert "Traceback" not in done.stdout + done.stderr
    assert "\tat " not in done.stdout + done.stderr
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the sentences about failures; spark-submit gives them out on stdout."""
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("pgdelta: ")]


class Volume:
    """A file system in memory, of a size that can change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this user may not mount a file system")

    def resize(self, mebibytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={mebibytes}m", self.path], check=True)

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """Give a small file system."""
    made = Volume(tmp_path / "lake")  # where the lake of a test is
    yield made
    made.remove()


@pytest.mark.promise("injured machines")
@pytest.mark.parametrize(
    "sizes",
    # Each run that fails leaves its files for VACUUM: the room that is made has to be more than that.
    [(4, 100), pytest.param((4, 6, 9, 13, 20, 30, 45, 70, 100), marks=pytest.mark.slow)],
    ids=["once", "often"],
)
def test_a_disk_that_is_full_costs_time_only(
    make_pipeline: MakePipeline, volume: Volume, tmp_path: Path, sizes: Sequence[int]
) -> None:
    pipeline = make_pipeline(create_publication="all")
    assert pipeline.root == str(volume.path)
    config = write_config(pipeline, tmp_path)
    config.write_text(config.read_text() + "silver: {writer: native}\n")
    pipeline.run(ITEMS)
    volume.resize(4)
    assert run(BIN / "pgdelta", "ingest", "--config", config).returncode == 0
    pipeline.run(FILL.format(1, 1000))
    pipeline.run(FILL.format(1001, 60_000), "UPDATE items SET v = v || '!' WHERE id % 3 = 0")
    sentences = []
    for size in sizes:
        volume.resize(size)
        done = run(BIN / "pgdelta", "run", "--config", config)
        print(size, done.returncode, said(done), flush=True)
        if done.returncode == 0:
            break
        sentences += said(done)
        assert said(done)
        pipeline.run(f"INSERT INTO items VALUES (-{size}, 'while it was full')")
    assert len(sentences) > len(sizes) // 3, "it was hardly ever full"
    full = re.compile(rf"{re.escape(str(volume.path))}/\S+: No space left on device")
    assert [sentence for sentence in sentences if not full.search(sentence)] == []
    pipeline.assert_follows("items")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("injured machines")
@pytest.mark.parametrize("launcher", ["spark-submit", "pgdelta"])
def test_a_heap_that_is_too_small_is_reported_and_loses_nothing(
    make_pipeline: MakePipeline, tmp_path: Path, launcher: str
) -> None:
    pipeline = make_pipeline(create_publication="all")
    config = write_config(pipeline, tmp_path)
    config.write_text(config.read_text() + "silver: {writer: spark}\n")
    pipeline.ingest(ITEMS)
    pipeline.catch_up("INSERT INTO items VALUES (0, 'small')")
    pipeline.ingest("INSERT INTO items SELECT i, repeat(md5(i::text), 65536) FROM generate_series(1, 300) i")
    version = pipeline.version("items")
    if launcher == "pgdelta":
        small = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 470m pyspark-shell"}
        done = run(BIN / "pgdelta", "apply", "--config", config, **small)
        assert done.returncode == 1
    else:
        job = ROOT / "jobs" / "apply.py"
        done = run(BIN / "spark-submit", "--driver-memory", "470m", job, "--config", config)
        assert done.returncode == 52
    assert said(done)[0] == (
        "pgdelta: Spark ended by java.lang.OutOfMemoryError. Nothing is lost. "
        "Run again, after an OutOfMemoryError with a larger spark.driver.memory."
    )
    assert all("Lost the connection to Spark's JVM" in sentence for sentence in said(done)[1:])
    assert pipeline.version("items") == version
    pipeline.catch_up()
    theirs = pipeline.source.execute("SELECT id, md5(v) FROM items").fetchall()
    pipeline.session.conf.set(BATCH_SIZE, "8")  # 4096 of these rows would be too much for the tests' own heap
    try:
        ours = pipeline.frame("silver", "public", "items").selectExpr("id", "md5(v)").collect()
    finally:
        pipeline.session.conf.unset(BATCH_SIZE)
    assert sorted(map(tuple, ours)) == sorted(theirs)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("injured machines")
def test_a_jvm_that_is_killed_ends_the_run_with_a_sentence(
    make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    """As the kernel does it where memory runs out: the JVM is the largest process."""
    pipeline = make_pipeline(create_publication="all")
    config = write_config(pipeline, tmp_path)
    config.write_text(config.read_text() + "silver: {writer: spark}\n")
    pipeline.catch_up(ITEMS)
    for number, job in enumerate(("apply",)):
        pipeline.run(FILL.format(2000 * (number + 1), 2000 * (number + 1) + 999))
        command = [str(BIN / "pgdelta"), job, "--config", str(config), "--trigger", "continuous"]
        environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
        with in_own_session(command, env=environ, stderr=subprocess.PIPE) as process:
            jvm = child_named(process.pid, "java")
            time.sleep(15)
            pipeline.run(FILL.format(-1000 * (number + 1), -1000 * (number + 1) + 99))
            os.kill(jvm, signal.SIGKILL)
            # a run that has nothing to do need not notice before it has
            pipeline.run(FILL.format(-5000 * (number + 1), -5000 * (number + 1) + 99))
            _, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "Traceback" not in errors
        assert "Lost the connection to Spark's JVM, which was probably killed or ran out of memory." in errors
        pipeline.assert_follows("items")


def child_named(parent: int, name: str) -> int:
    """Return the process of this name among what a process started, once it is there."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            command, _, rest = text.partition("(")[2].rpartition(")")
            if command == name and int(rest.split()[1]) == parent:
                return int(folder.name)
        time.sleep(0.1)
    raise AssertionError(f"no {name} of process {parent}")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.promise("damaged files")
def test_a_damaged_page_of_bronze_fails_the_run_and_gives_no_wrong_value(
    make_pipeline: MakePipeline,
) -> None:
    import pyarrow.parquet as pq

    pipeline = make_pipeline(create_publication="all")
    pipeline.catch_up(ITEMS, "CREATE TABLE others (id int PRIMARY KEY)")
    before = set(pipeline.path("bronze", "changes").glob("*.parquet"))
    pipeline.ingest(FILL.format(1, 5000))
    [file] = set(pipeline.path("bronze", "changes").glob("*.parquet")) - before
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    chunk = next(column for column in columns if column.path_in_schema.startswith("new"))
    whole = file.read_bytes()
    place = chunk.data_page_offset + chunk.total_compressed_size - 20
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    summary = pipeline.apply()
    assert summary.exit_code(strict=False) == 1
    assert file.name in " ".join(summary.lines())
    bronze = pipeline.frame("bronze", "changes").where("op = 'I'")
    pipeline.session.conf.set(VERIFIED, "false")
    try:
        values = bronze.selectExpr("new").collect()
    finally:
        pipeline.session.conf.set(VERIFIED, "true")
    assert len(values) == 5000, "unverified, the damage is not noticed"
    file.write_bytes(whole)
    pipeline.assert_follows("items", "others")
