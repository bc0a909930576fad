"""JVMs that pgdelta starts use the archive of classes that setup made, unless they need more."""

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.delta.spark import jars
from pipeline.delta.spark.class_archive import shell_lines, used_archive

NAMES = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_SUBMIT_OPTS",
)


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a Spark's folder as setup leaves it, and no variable that concerns it."""
    for name in (*NAMES, "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("conf", "pgdelta/conf"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("spark-defaults.conf", "log4j2.properties", "workers.template"):
        (tmp_path / "conf" / name).touch()
    (tmp_path / "pgdelta" / "classes-0123.jsa").touch()
    return tmp_path


def test_the_archive_and_both_files_of_conf_are_named(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.x=1 pyspark-shell")
    before = dict(os.environ)
    with used_archive(spark_home):
        options = os.environ["SPARK_SUBMIT_OPTS"].split()
        assert options[0] == "-Dmine=1"
        assert f"-XX:SharedArchiveFile={spark_home}/pgdelta/classes-0123.jsa" in options
        assert f"-Dlog4j2.configurationFile=file:{spark_home}/conf/log4j2.properties" in options
        assert os.environ["SPARK_CONF_DIR"] == f"{spark_home}/pgdelta/conf"
        assert os.environ["PYSPARK_SUBMIT_ARGS"] == (
            f"--properties-file {spark_home}/conf/spark-defaults.conf --conf spark.x=1 pyspark-shell"
        )
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_HOME", "/opt/spark"),
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("PYSPARK_SUBMIT_ARGS", "--jars mine.jar pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--properties-file mine.conf pyspark-shell"),
    ],
)
def test_a_class_path_of_the_user_s_own_is_left_alone(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with used_archive(spark_home):
        assert dict(os.environ) == before
    if "SUBMIT" not in name:
        assert shell_lines(spark_home, ["job.py"]) == []


def test_spark_submit_runs_what_was_asked_with_the_archive(spark_home: Path) -> None:
    arguments = ["--name", "it's mine", "job.py", "--master"]
    lines = shell_lines(spark_home, arguments[:3])
    script = "\n".join([*lines, 'printf "%s\\n" "$SPARK_SUBMIT_OPTS" "$@"'])
    done = subprocess.run(["sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=True)
    options, *submitted = done.stdout.splitlines()
    assert f"-XX:SharedArchiveFile={spark_home}/pgdelta/classes-0123.jsa" in options
    assert submitted == ["--properties-file", f"{spark_home}/conf/spark-defaults.conf", *arguments]
    assert shell_lines(spark_home, arguments) == []  # on a cluster


@pytest.mark.parametrize("change", ["a file of the user in conf", "no archive"])
def test_without_an_archive_or_with_more_settings_nothing_changes(spark_home: Path, change: str) -> None:
    if change == "no archive":
        (spark_home / "pgdelta" / "classes-0123.jsa").unlink()
    else:
        (spark_home / "conf" / "hive-site.xml").touch()
    before = dict(os.environ)
    with used_archive(spark_home):
        assert dict(os.environ) == before


def test_setup_says_why_classes_could_not_be_archived_and_ends_well(
    spark_home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path_factory.mktemp("java") / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    (spark_home / "jars").mkdir()
    (spark_home / "bin").mkdir()
    submit = spark_home / "bin" / "spark-submit"
    submit.write_text('#!/bin/sh\necho "no memory${HADOOP_CONF_DIR}${PYSPARK_SUBMIT_ARGS}" >&2\nexit 1\n')
    submit.chmod(0o755)
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars mine.jar pyspark-shell")
    monkeypatch.setattr(jars, "check_java", lambda: java)
    assert jars._archive(spark_home) == [
        "Spark's classes could not be archived (no memory), so its JVM starts more slowly. "
        "Run pgdelta setup again."
    ]
    assert [path.name for path in (spark_home / "pgdelta").iterdir() if path.is_file()] == [
        "classes-0123.jsa"
    ]
