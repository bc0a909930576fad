"""`pgdelta setup` prepares the environment's Spark, and `spark-submit` uses it."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.delta.spark import jars
from pipeline.delta.spark.jars import check_java, prepare_spark
from pipeline.delta.spark.log_store import JAR_NAME, manifest, require_log_store
from pipeline.delta.spark.releases import SPARK_RELEASES, installed_release, release_of
from pipeline.delta.spark.settings import LOG_STORES, SPARK_SETTINGS, log_store_setting
from pipeline.errors import LakeError
from tests.support.paths import ROOT

RELEASE = installed_release()
SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"


@contextmanager
def submitted(job: Path, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a job by spark-submit, and leave no process behind."""
    command = [str(SPARK_SUBMIT), str(job), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()  # nothing to a process that has ended


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Return a Spark that has Delta's JARs and the log store, but no settings."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "bin").mkdir()
    for _, artifact, version in RELEASE.delta_jars:
        with zipfile.ZipFile(tmp_path / "jars" / f"{artifact}-{version}.jar", "w") as jar:
            jar.writestr("x", "")
    with zipfile.ZipFile(tmp_path / "jars" / JAR_NAME, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", manifest())
    return tmp_path


def test_a_second_setup_changes_nothing(spark_home: Path) -> None:
    assert len(prepare_spark(spark_home, spark_home / "bin", RELEASE)) == 3
    assert prepare_spark(spark_home, spark_home / "bin", RELEASE) == []
    lines = (spark_home / "conf" / "spark-defaults.conf").read_text().splitlines()
    assert dict(line.split(" ", 1) for line in lines) == SPARK_SETTINGS


def test_a_file_that_was_changed_is_written_again(spark_home: Path) -> None:
    prepare_spark(spark_home, spark_home / "bin", RELEASE)
    (spark_home / "conf" / "spark-defaults.conf").write_text("spark.master yarn\n")
    assert prepare_spark(spark_home, spark_home / "bin", RELEASE) == ["spark-defaults.conf written"]


def test_a_spark_without_ivy_is_named(spark_home: Path) -> None:
    _, artifact, version = RELEASE.delta_jars[0]
    (spark_home / "jars" / f"{artifact}-{version}.jar").write_bytes(b"half a jar")
    with pytest.raises(LakeError, match="has no Ivy"):
        prepare_spark(spark_home, spark_home / "bin", RELEASE)


def test_the_first_session_prepares_its_environment_but_no_other_spark(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[None] = []
    monkeypatch.setattr(jars, "spark_folder", lambda: spark_home)
    monkeypatch.setattr(jars, "prepare_environment", lambda **_: prepared.append(None))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    jars.prepare_at_first_need()
    assert not prepared  # all is in place
    _, artifact, version = RELEASE.delta_jars[0]
    (spark_home / "jars" / f"{artifact}-{version}.jar").unlink()
    for name, value in (
        ("SPARK_HOME", str(spark_home.parent)),
        ("PYSPARK_SUBMIT_ARGS", "--packages io.delta:x:1 pyspark-shell"),
    ):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            jars.prepare_at_first_need()
    assert not prepared
    monkeypatch.setenv("SPARK_HOME", str(spark_home))
    jars.prepare_at_first_need()
    assert prepared == [None]


def test_an_environment_that_cannot_be_written_is_named(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/opt/spark/jars/x.jar")

    monkeypatch.setattr(jars, "spark_folder", lambda: spark_home)
    monkeypatch.setattr(jars, "prepare_spark", refuse)
    with pytest.raises(LakeError, match=r"^/opt/spark/jars/x.jar cannot be written. Run pgdelta setup as"):
        jars.prepare_environment()


def test_a_log_store_of_another_source_is_compiled_again(spark_home: Path) -> None:
    jar = spark_home / "jars" / JAR_NAME
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nSource-SHA-256: 0\n")
    with pytest.raises(LakeError, match="has no Ivy"):  # to fetch the compiler with
        prepare_spark(spark_home, spark_home / "bin", RELEASE)


def test_a_session_with_another_log_store_is_refused() -> None:
    setting, log_store = log_store_setting("file"), LOG_STORES["file"]

    def session(
        store: str | None, *, has_class: bool, hadoop: str = "3.5.0", lacks: str | None = None
    ) -> Any:
        def for_name(name: str, *_: object) -> None:
            if not has_class or name == lacks:
                raise RuntimeError("ClassNotFoundException")

        java = SimpleNamespace(lang=SimpleNamespace(Class=SimpleNamespace(forName=for_name)))
        thread = SimpleNamespace(currentThread=lambda: SimpleNamespace(getContextClassLoader=lambda: None))
        context = SimpleNamespace(getConf=lambda: {setting: store})
        version = SimpleNamespace(VersionInfo=SimpleNamespace(getVersion=lambda: hadoop))
        org = SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(util=version)))
        return SimpleNamespace(sparkContext=context, _jvm=SimpleNamespace(java=java, Thread=thread, org=org))

    require_log_store(session(log_store, has_class=True), "file")
    require_log_store(session(None, has_class=True), "ofs")
    for store in (None, "io.delta.storage.HDFSLogStore"):
        with pytest.raises(LakeError, match=rf"Start Spark with --conf {setting}={log_store}\.$"):
            require_log_store(session(store, has_class=True), "file")
    with pytest.raises(LakeError, match=f"{JAR_NAME} is not on Spark's class path. Run `pgdelta setup`"):
        require_log_store(session(log_store, has_class=False), "file")
    setting, log_store = log_store_setting("hdfs"), LOG_STORES["hdfs"]
    require_log_store(session(log_store, has_class=True), "hdfs")
    require_log_store(session("io.delta.storage.HDFSLogStore", has_class=True), "hdfs")
    with pytest.raises(
        LakeError, match=rf"does not stop a job that has lost .* --conf {setting}={log_store}\.$"
    ):
        require_log_store(session(None, has_class=True), "hdfs")
    setting, log_store = log_store_setting("s3a"), LOG_STORES["s3a"]
    for hadoop in ("3.4.2", "3.4.3-amzn-0"):
        require_log_store(session(log_store, has_class=True, hadoop=hadoop), "s3a")
    with pytest.raises(
        LakeError, match=r"has Hadoop 3\.4\.1-amzn-2, .* Run `pgdelta setup --s3`, or .* 3\.4\.2 or"
    ):
        require_log_store(session(log_store, has_class=True, hadoop="3.4.1-amzn-2"), "s3a")
    client = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    with pytest.raises(LakeError, match=r"Hadoop's client for s3a: is not .* Run `pgdelta setup --s3`"):
        require_log_store(session(log_store, has_class=True, lacks=client), "s3a")
    require_log_store(session("io.delta.storage.S3DynamoDBLogStore", has_class=False), "s3a")
    for store in (None, "io.delta.storage.S3SingleDriverLogStore"):
        with pytest.raises(LakeError, match=rf"commit to s3a: .* --conf {setting}={log_store}\.$"):
            require_log_store(session(store, has_class=True), "s3a")


def test_each_release_of_spark_has_jars_of_its_own() -> None:
    for version, release in zip(("4.0.1", "4.1.4", "4.2.0"), SPARK_RELEASES, strict=True):
        assert release_of(version) is release
        assert release.delta_jars[0][1] == f"delta-spark_{version[:3]}_2.13"
        assert ("org.apache.hadoop", "hadoop-aws", release.hadoop) in release.s3_jars
    for version in ("3.5.7", "4.3.0", "4.20.0"):
        with pytest.raises(
            LakeError, match=rf"^Spark {version} is not supported\. Use Spark 4\.0, 4\.1 or 4\.2\.$"
        ):
            release_of(version)


def test_a_missing_or_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LakeError, match=r"JAVA_HOME has no Java\. Install Java 17"):
        check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    with pytest.raises(LakeError, match="is not Java 17"):
        check_java()


def test_a_session_names_a_missing_java(tmp_path: Path) -> None:
    code = "from pipeline.delta.spark.session import start_session; start_session('test')"
    environ = {**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert "LakeError: JAVA_HOME has no Java. Install Java 17" in done.stderr


def test_this_environment_needs_no_setup() -> None:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    assert prepare_spark(Path(spec.origin).parent, Path(sys.executable).parent, RELEASE) == []


JOB = """
import sys
sys.path.insert(0, sys.argv[1])
from pipeline.cli.signals import main_guard
from pipeline.delta.spark.settings import SPARK_SETTINGS
def work(stop):
    from pyspark.sql import SparkSession
    session = SparkSession.builder.getOrCreate()
    assert all(session.conf.get(key) == value for key, value in SPARK_SETTINGS.items())
    session.range(5).write.format("delta").save(sys.argv[2])
    print("python", sys.executable, flush=True)
    print("ready", flush=True)
    stop.wait(60)
    print("rows", session.read.format("delta").load(sys.argv[2]).count(), flush=True)
    return 0
sys.exit(main_guard(work))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_needs_no_options_and_a_signal_ends_it_with_0(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    environ = {key: value for key, value in os.environ.items() if "SPARK" not in key}
    # a PATH without the environment: the command is called by its path, as cron does
    java = shutil.which("java")
    assert java is not None
    environ["PATH"] = os.pathsep.join([str(Path(java).parent), "/usr/bin", "/bin"])
    arguments = (str(ROOT), str(tmp_path / "table"))
    options = {"cwd": tmp_path, "env": environ, "stderr": subprocess.PIPE}
    with submitted(tmp_path / "job.py", *arguments, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"python {sys.executable}\n"
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "rows 5\n")
    # the JVM's own line about a module that Spark asks for; nothing of Spark's
    assert [line for line in err.splitlines() if "incubator" not in line] == []


@pytest.mark.costly
def test_a_job_does_not_outlive_the_jvm_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import os, sys, threading\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from pipeline.cli.signals import main_guard\n"
        "def work(stop):\n"
        "    print(os.getpid(), flush=True)\n"
        "    stop.wait(60)\n"
        "    return 0\n"
        "main_guard(work)\n"
    )
    with submitted(tmp_path / "job.py", stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        job = int(process.stdout.readline())
    for _ in range(100):
        try:
            os.kill(job, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{job}/stat").exists() and Path(f"/proc/{job}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    os.kill(job, signal.SIGKILL)
    pytest.fail("the job went on for 10 s after its JVM was killed")
