"""Prepare the environment's Spark for Delta: `pgdelta setup`, and `make setup` by `python -m` this module.

Adds Delta's two JARs and the compiled log store to Spark's JARs, writes Spark's `conf/spark-defaults.conf`
and `conf/log4j2.properties`, lets `bin/spark-submit` find this environment without activating it, and
archives Spark's classes (`class_archive`). The
JARs, and the compiler of the log store, come from Maven Central by the Ivy that Spark ships. Idempotent: only
what is missing or different is written. Never changes a Spark outside this environment. The first session of
an environment that was not prepared does the same.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from pipeline.delta.spark.class_archive import is_other_spark, make_archive
from pipeline.delta.spark.log_store import COMPILER, JAR_NAME, build_jar, is_current
from pipeline.delta.spark.releases import SparkRelease, installed_release
from pipeline.delta.spark.settings import LOG4J_PROPERTIES, SPARK_SETTINGS
from pipeline.errors import NOTICES, LakeError
from pipeline.units import format_count

_OLDEST_JAVA = 17
_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_IVY_MODULE = (
    '<ivy-module version="2.0"><info organisation="" module=""/><dependencies>{}</dependencies></ivy-module>'
)
_IVY_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default" transitive="false"/>'
_FIND_SPARK_HOME = """\
# Sourced by the commands of this folder: this environment's Spark and Python, activated or not.
if [ -z "${SPARK_HOME}" ]; then
  PGDELTA_BIN="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
  export PYSPARK_PYTHON="${PYSPARK_PYTHON:-${PGDELTA_BIN}/python}"
  SPARK_HOME="$("${PGDELTA_BIN}/python" "${PGDELTA_BIN}/find_spark_home.py")" || exit 1
  export SPARK_HOME
  if [ "${0##*/}" = spark-submit ]; then
    PGDELTA_ARCHIVE=(-I -m pipeline.delta.spark.class_archive shell "${SPARK_HOME}")
    eval "$("${PGDELTA_BIN}/python" "${PGDELTA_ARCHIVE[@]}" "$@" || true)"
  fi
fi
"""


def prepare_spark(spark_home: Path, scripts: Path, release: SparkRelease) -> list[str]:
    """Prepare Spark for Delta; return one line for each change that was necessary."""
    check_java()
    changes = [f"{name} placed in Spark's jars" for name in _add_jars(spark_home, release.delta_jars)]
    # before the settings, with which Delta loads its class
    if not is_current(spark_home / "jars" / JAR_NAME):
        with retrieved(spark_home, [COMPILER]) as (compiler,):
            build_jar(check_java(), compiler, spark_home / "jars", spark_home / "jars" / JAR_NAME)
        changes.append(f"{JAR_NAME} compiled into Spark's jars")
    defaults = "".join(f"{key} {value}\n" for key, value in SPARK_SETTINGS.items())
    for path, text in (
        (spark_home / "conf" / "spark-defaults.conf", defaults),
        (spark_home / "conf" / "log4j2.properties", LOG4J_PROPERTIES),
        (scripts / "find-spark-home", _FIND_SPARK_HOME),
    ):
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if path.parent == scripts else 0o644)
            changes.append(f"{path.name} written")
    return changes


def check_java() -> Path:
    """Return the Java that Spark will run; raise LakeError if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        found = "JAVA_HOME has no Java." if home else "There is no Java on the PATH."
        raise LakeError(f"{found} Install Java {_OLDEST_JAVA} (a headless JRE is enough).")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None or int(match[1]) < _OLDEST_JAVA:
        raise LakeError(f"{java} is not Java {_OLDEST_JAVA} or newer. Install it, or set JAVA_HOME.")
    return Path(java)


@contextmanager
def retrieved(spark_home: Path, jars: Sequence[tuple[str, str, str]]) -> Iterator[list[Path]]:
    """Fetch JARs, without what they depend on, into a folder that exists as long as the block.

    Raises LakeError if one cannot be fetched. A damaged Ivy cache is bypassed.
    """
    ivy = next((spark_home / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise LakeError(
            "This Spark has no Ivy to fetch JARs with. Reinstall pyspark and run pgdelta setup again."
        )
    with tempfile.TemporaryDirectory() as folder:
        settings, module = Path(folder, "ivysettings.xml"), Path(folder, "ivy.xml")
        settings.write_text(_IVY_SETTINGS)
        module.write_text(_IVY_MODULE.format("".join(_IVY_DEPENDENCY.format(*jar) for jar in jars)))
        command = [str(check_java()), "-jar", str(ivy), "-settings", str(settings), "-warn"]
        command += ["-ivy", str(module), "-confs", "default", "-types", "jar"]
        command += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        paths = [Path(folder, f"{artifact}-{version}.jar") for _, artifact, version in jars]
        message = ""
        # the user's own cache first, which may have the JARs; then an empty one, in case the first is damaged
        for cache in ([], ["-cache", f"{folder}/cache"]):
            done = subprocess.run([*command, *cache], capture_output=True, text=True, check=False)
            if all(map(_is_jar, paths)):
                yield paths
                return
            message = next((line.strip() for line in done.stdout.splitlines()[::-1] if "ERROR" in line), "")
        lacking = next(":".join(jar) for jar, path in zip(jars, paths, strict=True) if not _is_jar(path))
        raise LakeError(
            f"{lacking} could not be fetched from Maven Central{f' ({message})' if message else ''}. Check "
            "this machine's access to it and run pgdelta setup again."
        )


def prepare_environment(*, with_s3: bool = False, with_archive: bool = True) -> list[str]:
    """Prepare the Spark of this environment; return one line for each change that was necessary.

    Raises LakeError if something cannot be fetched or written. That classes cannot be archived is a line too.
    """
    spark_home, release = spark_folder(), installed_release()
    try:
        with _alone(spark_home):
            changes = prepare_spark(spark_home, Path(sys.prefix, "bin"), release)
            changes += add_s3_client(spark_home, release) if with_s3 else []
            if with_archive:
                changes += _archive(spark_home)
            return changes
    except PermissionError as error:
        raise LakeError(
            f"{error.filename} cannot be written. Run pgdelta setup as the owner of this environment."
        ) from None


def _archive(spark_home: Path) -> list[str]:
    try:
        is_new = make_archive(spark_home, check_java())
        return ["Spark's classes archived: its JVM starts sooner"] if is_new else []
    except LakeError as error:  # Spark works without
        return [str(error)]


def prepare_at_first_need() -> None:
    """Prepare the Spark of this environment if it lacks Delta's JARs or the log store, and say so.

    Another Spark, or one that gets JARs by its options, is left alone.
    """
    spark_home = spark_folder()
    options = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if is_other_spark(spark_home) or re.search(r"--(packages|jars)\b", options):
        return
    names = [
        JAR_NAME,
        *(f"{artifact}-{version}.jar" for _, artifact, version in installed_release().delta_jars),
    ]
    if not all(_is_jar(spark_home / "jars" / name) for name in names):
        NOTICES.info("Fetching Delta's JARs into this environment, once. `pgdelta setup` does the same.")
        prepare_environment(with_archive=False)


def spark_folder() -> Path:
    """Return the folder of this environment's pyspark; raise LakeError if there is none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LakeError("pyspark is not installed in this environment. Run make setup, or install pgdelta.")
    return Path(spec.origin).parent


@contextmanager
def _alone(spark_home: Path) -> Iterator[None]:
    """Let no other process prepare this Spark during a block."""
    handle = os.open(spark_home / "jars" / ".pgdelta-setup.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def add_s3_client(spark_home: Path, release: SparkRelease) -> list[str]:
    """Add Hadoop's client for S3 to Spark's JARs; return one line if something was missing."""
    added = _add_jars(spark_home, release.s3_jars)
    return [f"the client for S3 placed in Spark's jars ({format_count(len(added), 'file')})"] if added else []


def _add_jars(spark_home: Path, jars: Sequence[tuple[str, str, str]]) -> list[str]:
    """Place the JARs that Spark lacks, and remove other versions of them; return their names."""
    folder = spark_home / "jars"
    missing = [jar for jar in jars if not _is_jar(folder / f"{jar[1]}-{jar[2]}.jar")]
    if not missing:
        return []
    with retrieved(spark_home, missing) as fetched:
        for (_, artifact, _), path in zip(missing, fetched, strict=True):
            for stale in folder.glob(f"{artifact.split('_')[0]}[-_][0-9]*.jar"):
                stale.unlink()
            # copied under another name, then renamed: another session never sees half a JAR
            partial = (folder / path.name).with_suffix(".partial")
            shutil.copyfile(path, partial)
            partial.replace(folder / path.name)
        return [path.name for path in fetched]


def main(arguments: Sequence[str]) -> int:
    """Prepare the Spark of this environment, with the argument `s3` for S3 too.

    Prints the changes, or the error on stderr.
    """
    try:
        changes = prepare_environment(with_s3="s3" in arguments)
        for change in changes:
            print(change)
    except (LakeError, OSError) as error:
        print(f"pgdelta: {error}", file=sys.stderr)
        return 1
    return 0


def _is_jar(path: Path) -> bool:
    return path.is_file() and zipfile.is_zipfile(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
