"""An archive of classes with which Spark's JVM starts sooner: `pgdelta setup` makes it.

A cold JVM spends most of its first half minute on loading and checking the classes of Spark and Delta. While
the archive is made, a JVM does what `_train` says and writes all classes that it has loaded into one file
beside Spark's JARs. The JVMs that pgdelta and this environment's spark-submit start later map that file. Java
itself passes over an archive of another Java, of other JARs or of another kind of heap, and starts as it does
without one.

Java also passes over it while a folder on the class path has files, and the first entry of Spark's class path
is its `conf/`. So these JVMs get an empty folder instead, and options that name the two files which setup
writes there. Whoever uses more of that folder, or other JARs, starts as without an archive.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OWN_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
_OWN_OPTIONS = (
    *("--jars", "--packages", "--driver-class-path", "--properties-file", "extraClassPath"),
    *("--master", "spark.master", "--deploy-mode"),  # a cluster may get files of conf/
)
_QUIET = "-Xlog:cds*=off"  # that an archive is passed over is no news
_DEFAULTS, _LOGGING = "spark-defaults.conf", "log4j2.properties"


def make_archive(spark_home: Path, java: Path) -> bool:
    """Make the archive for this Java and Spark's JARs, and remove others; return False if it is there.

    Takes about a minute, and 200 MB of disk. A folder with spaces in its name, which options for Java cannot
    have, gets none. Raises LakeError if Spark cannot run; it works without an archive.
    """
    folder = _folder(spark_home)
    archive = folder / f"classes-{_digest(spark_home, java)}.jsa"
    if archive.exists() or " " in str(archive):
        return False
    _conf(spark_home).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, archive.name)
        options = f"{_options(spark_home)} -XX:ArchiveClassesAtExit={made} -XX:TieredStopAtLevel=1"
        done = subprocess.run(
            [
                *(str(spark_home / "bin" / "spark-submit"), "--properties-file"),
                *(str(spark_home / "conf" / _DEFAULTS), __file__, "train", str(Path(scratch, "table"))),
            ],
            env=_without_own_settings()
            | _environment(spark_home, options)
            | {"SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not made.exists():
            last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
            raise LakeError(
                f"Spark's classes could not be archived ({last}), so its JVM starts more slowly. "
                "Run pgdelta setup again."
            )
        made.chmod(0o644)
        made.replace(archive)
    for other in folder.glob("classes-*.jsa"):
        if other != archive:
            other.unlink()
    return True


@contextmanager
def used_archive(spark_home: Path) -> Iterator[None]:
    """Let the JVM that pyspark starts in the block use the archive, if there is one that it can use."""
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    variables, options = _additions(spark_home, arguments)
    if options:
        variables["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} {arguments}"
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def shell_lines(spark_home: Path, arguments: Sequence[str]) -> list[str]:
    """Return the lines of a shell by which its spark-submit with these arguments uses the archive."""
    variables, options = _additions(spark_home, shlex.join(arguments))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return [*lines, f'set -- {shlex.join(options)} "$@"'] if options else []


def _additions(spark_home: Path, arguments: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables and options with which a spark-submit uses the archive; none if it cannot."""
    archive = next(_folder(spark_home).glob("classes-*.jsa"), None)
    if archive is None or not _is_plain(spark_home, arguments):
        return {}, []
    variables = _environment(spark_home, f"{_options(spark_home)} -XX:SharedArchiveFile={archive}")
    return variables, ["--properties-file", str(spark_home / "conf" / _DEFAULTS)]


def is_other_spark(spark_home: Path) -> bool:
    """Return whether SPARK_HOME names another Spark than that of this environment."""
    home = os.environ.get("SPARK_HOME", "")
    return home != "" and Path(home).resolve() != spark_home.resolve()


def _is_plain(spark_home: Path, arguments: str) -> bool:
    """Return whether a JVM of these arguments needs nothing of Spark's conf folder but what setup wrote."""
    if is_other_spark(spark_home):
        return False
    names = {path.name for path in (spark_home / "conf").iterdir() if path.suffix != ".template"}
    return (
        names == {_DEFAULTS, _LOGGING}
        and not any(os.environ.get(name) for name in _OWN_VARIABLES)
        and not any(option in arguments for option in _OWN_OPTIONS)
    )


def _folder(spark_home: Path) -> Path:
    return spark_home / "pgdelta"


def _conf(spark_home: Path) -> Path:
    return _folder(spark_home) / "conf"


def _options(spark_home: Path) -> str:
    """Return the options of Java, with those of the user, by which it needs no `conf/`."""
    logging = f"-Dlog4j2.configurationFile=file:{spark_home / 'conf' / _LOGGING}"
    return f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {logging} {_QUIET}".strip()


def _without_own_settings() -> dict[str, str]:
    """Return the environment without what puts folders or JARs of the user on Spark's class path."""
    own = {*_OWN_VARIABLES, "PYSPARK_SUBMIT_ARGS"}
    return {name: value for name, value in os.environ.items() if name not in own}


def _environment(spark_home: Path, options: str) -> dict[str, str]:
    return {"SPARK_CONF_DIR": str(_conf(spark_home)), "SPARK_SUBMIT_OPTS": options}


def _digest(spark_home: Path, java: Path) -> str:
    """Return what differs between the Javas and the JARs of two archives."""
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    jars = sorted((path.name, path.stat().st_size) for path in (spark_home / "jars").glob("*.jar"))
    return sha256(repr((version, jars)).encode()).hexdigest()[:16]


def _train(table: str) -> None:
    """Do once, on a small Delta table, what jobs do with Spark."""
    from delta.tables import DeltaTable

    from pipeline.delta.spark.session import start_session

    spark = start_session("archive")
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id INT, text STRING")
    rows.write.format("delta").save(table)
    silver = DeltaTable.forPath(spark, table)
    merge = silver.alias("t").merge(rows.alias("s"), "t.id = s.id + 1")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def count(batch: DataFrame, number: int) -> None:
        batch.groupBy("text").count().collect()

    stream = spark.readStream.format("delta").load(table).writeStream.trigger(availableNow=True)
    stream = stream.option("checkpointLocation", f"{table}-checkpoint").foreachBatch(count)
    stream.start().awaitTermination()
    silver.optimize().executeCompaction()


def main(task: str, place: str, *arguments: str) -> None:
    """`train`: run what is archived, with a new table; `shell`: print lines for a Spark's spark-submit."""
    if task == "train":
        _train(place)
    else:
        print("\n".join(shell_lines(Path(place), arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
