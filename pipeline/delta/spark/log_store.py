"""The log store for local folders: its Java source, compiled into a JAR when the environment is set up.

Delta's own store for `file:` looks whether a version exists and renames then: two processes can both be told
that they committed one version, and one of the commits is lost. `LinkLogStore` creates the version in one
step and forces it to disk. The Eclipse compiler compiles it: that needs a Java runtime and no JDK.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pipeline.delta.spark.settings import LOG_STORE, LOG_STORE_SETTING
from pipeline.errors import LakeError

JAR_NAME = "pgdelta-log-store.jar"
COMPILER = ("org.eclipse.jdt", "ecj", "3.36.0")
SOURCES = Path(__file__).resolve().parent / "java"

_MANIFEST = "META-INF/MANIFEST.MF"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a ZIP archive can hold


def is_current(jar: Path) -> bool:
    """Say whether the JAR is there and was made of the source as it is."""
    if not zipfile.is_zipfile(jar):
        return False
    with zipfile.ZipFile(jar) as archive:
        return archive.read(_MANIFEST).decode() == manifest()


def build_jar(java: Path, compiler: Path, class_path: Path, jar: Path, sources: Path = SOURCES) -> None:
    """Compile the sources against the JARs of a folder, or raise LakeError; equal sources, equal bytes."""
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder, "classes")
        command = [str(java), "-jar", str(compiler), "-source", "17", "-target", "17", "-nowarn", "-g"]
        command += ["-encoding", "UTF-8", "-classpath", ":".join(map(str, sorted(class_path.glob("*.jar"))))]
        command += ["-d", str(classes), str(sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = next((line.strip() for line in done.stderr.splitlines() if "ERROR" in line), "")
            raise LakeError(f"{sources} could not be compiled ({said}); reinstall pgdelta")
        partial = jar.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, _MANIFEST, manifest(sources).encode())
            for path in sorted(classes.rglob("*.class")):
                _add(archive, path.relative_to(classes).as_posix(), path.read_bytes())
        partial.replace(jar)


def require_log_store(spark: SparkSession) -> None:
    """Raise LakeError where commits to a local folder would not exclude each other in this session."""
    if spark.sparkContext.getConf().get(LOG_STORE_SETTING) != LOG_STORE:
        raise LakeError(
            "this Spark session would commit to a local folder through Delta's own log store, which can lose "
            f"commits of two processes: start Spark with --conf {LOG_STORE_SETTING}={LOG_STORE}"
        )
    if not is_on_class_path(spark, LOG_STORE):
        raise LakeError(
            f"{JAR_NAME} is not on Spark's class path: run `make setup`, or give spark-submit the JAR that "
            "`make dist` builds, in --jars"
        )


def is_on_class_path(spark: SparkSession, name: str) -> bool:
    """Say whether the driver's JVM finds a class."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Class.forName(name, False, jvm.Thread.currentThread().getContextClassLoader())
    except Exception:
        return False
    return True


def manifest(sources: Path = SOURCES) -> str:
    """Return the JAR's manifest, which names the sources that it was made of."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.java")):
        digest.update(path.relative_to(sources).as_posix().encode())
        digest.update(path.read_bytes())
    return f"Manifest-Version: 1.0\nSource-SHA-256: {digest.hexdigest()}\n\n"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
