"""Build the JAR of the log stores for local folders, S3 and HDFS, and check that a session uses them.

Delta's own stores for folders and S3 check whether a version exists and write it then: two processes can both
believe that they committed one version, and one commit is lost. `LinkLogStore` and `S3LogStore` create the
version in one step. `S3LogStore` and `HdfsLogStore` refuse commits under a lease that was lost. The
Eclipse compiler compiles the JAR, which needs a Java runtime and no JDK.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.delta.spark.releases import SAFE_S3_HADOOP
from pipeline.delta.spark.settings import LOG_STORES, log_store_setting
from pipeline.delta.store.store import HDFS
from pipeline.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR_NAME = "pgdelta-log-store.jar"
COMPILER = ("org.eclipse.jdt", "ecj", "3.36.0")
SOURCES = Path(__file__).resolve().parent / "java"

_S3_CLIENT = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_LOSES = "can lose commits of two processes"
_UNSAFE_ON_S3 = "io.delta.storage.S3SingleDriverLogStore"
_MANIFEST = "META-INF/MANIFEST.MF"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a ZIP archive


def is_current(jar: Path) -> bool:
    """Return whether the JAR exists and was built from the current sources."""
    if not zipfile.is_zipfile(jar):
        return False
    with zipfile.ZipFile(jar) as archive:
        return archive.read(_MANIFEST).decode() == manifest()


def build_jar(java: Path, compiler: Path, class_path: Path, jar: Path, sources: Path = SOURCES) -> None:
    """Compile the sources against the JARs of a folder, reproducibly; raise LakeError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder, "classes")
        command = [str(java), "-jar", str(compiler), "-source", "17", "-target", "17", "-nowarn", "-g"]
        command += ["-encoding", "UTF-8", "-classpath", ":".join(map(str, sorted(class_path.glob("*.jar"))))]
        command += ["-d", str(classes), str(sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = next((line.strip() for line in done.stderr.splitlines() if "ERROR" in line), "")
            raise LakeError(f"{sources} could not be compiled ({message}). Reinstall pgdelta.")
        partial = jar.with_suffix(".partial")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, _MANIFEST, manifest(sources).encode())
            for path in sorted(classes.rglob("*.class")):
                _add(archive, path.relative_to(classes).as_posix(), path.read_bytes())
        partial.replace(jar)


def require_log_store(spark: SparkSession, scheme: str) -> None:
    """Raise LakeError if commits of this session to storage of a scheme do not exclude other commits.

    On S3 and HDFS another log store is accepted if the user has set it, such as Delta's over DynamoDB. Other
    schemes are left to Delta.
    """
    if scheme not in LOG_STORES:
        return
    setting, needed = log_store_setting(scheme), LOG_STORES[scheme]
    found = spark.sparkContext.getConf().get(setting)
    if found != needed and (scheme == "file" or found in (None, _UNSAFE_ON_S3)):
        risk = "does not stop a job that has lost its lease" if scheme == HDFS else _LOSES
        raise LakeError(
            f"This Spark session would commit to {scheme}: by Delta's own log store, which {risk}. Start"
            f" Spark with --conf {setting}={needed}."
        )
    if found == needed and not is_on_class_path(spark, needed):
        raise LakeError(
            f"{JAR_NAME} is not on Spark's class path. Run `pgdelta setup`, or pass the JAR that `make dist` "
            "builds to spark-submit in --jars."
        )
    if found == needed and scheme in ("s3", "s3a"):
        if not is_on_class_path(spark, _S3_CLIENT):
            raise LakeError(
                f"Hadoop's client for {scheme}: is not on Spark's class path. Run `pgdelta setup --s3`, or "
                "pass the client to spark-submit."
            )
        _require_conditional_creation(spark, scheme)


def _require_conditional_creation(spark: SparkSession, scheme: str) -> None:
    jvm: Any = spark._jvm
    version = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    if numbers < SAFE_S3_HADOOP:
        oldest = ".".join(map(str, SAFE_S3_HADOOP))
        raise LakeError(
            f"This Spark has Hadoop {version}, whose client for {scheme}: cannot create a commit on the "
            "condition that it does not exist. Run `pgdelta setup --s3`, or use a Spark with Hadoop "
            f"{oldest} or newer."
        )


def is_on_class_path(spark: SparkSession, name: str) -> bool:
    """Return whether the driver's JVM finds a class."""
    jvm: Any = spark._jvm
    try:
        jvm.java.lang.Class.forName(name, False, jvm.Thread.currentThread().getContextClassLoader())
    except Exception:
        return False
    return True


def manifest(sources: Path = SOURCES) -> str:
    """Return the manifest of a JAR that is built from the sources; it has their hash."""
    digest = hashlib.sha256()
    for path in sorted(sources.rglob("*.java")):
        digest.update(path.relative_to(sources).as_posix().encode())
        digest.update(path.read_bytes())
    return f"Manifest-Version: 1.0\nSource-SHA-256: {digest.hexdigest()}\n\n"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
