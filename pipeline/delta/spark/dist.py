"""Build what a Spark cluster needs into a folder: `make dist` runs this module.

The folder has the wheel (for the driver's Python environment), a zip of the package (`--py-files`), the JARs
of Delta and of the log store (`--jars`), those of Hadoop's client for S3 if this environment has them, the
jobs, quiet log settings, an archive of the packages that the driver needs if nothing can be installed, and a
README.txt with the exact command. Executors run no Python. Everything comes from this checkout and its
environment; only pip may fetch its build backend.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from pipeline.delta.spark.jars import spark_folder
from pipeline.delta.spark.log_store import JAR_NAME
from pipeline.delta.spark.releases import installed_release
from pipeline.delta.spark.settings import LOG4J_PROPERTIES
from pipeline.errors import LakeError, describe_error

CHECKOUT = Path(__file__).resolve().parents[3]
PACKAGE_FOLDERS = ("pgdelta", "pipeline")
PACKAGES = "packages.tar.gz"
S3_FOLDER = "s3"
README = """\
What a Spark {spark} cluster needs to run the pipeline. Set PYSPARK_DRIVER_PYTHON to the driver's Python and
run in this folder:

  {line}

and the same with jobs/apply.py. The workers need Spark {spark} and nothing else: no Python, no package, no
JAR. The driver needs Python {python} with pyspark {spark} and one of these:

  pip install {wheel}
      with a package index; --py-files is then not needed
  tar -xzf {packages} -C FOLDER; export PYTHONPATH=FOLDER
      without one; built for this Python and platform ({platform})

If the cluster starts the driver (--deploy-mode cluster under YARN or Kubernetes; not tested here),
--archives {packages}#packages unpacks it in the driver's folder, and PYTHONPATH needs ./packages.

storage.root must be a path that driver and executors share and can both write: an object store, HDFS, or a
shared folder. On a shared folder they may be different users of one group: give the folder that group and the
set-group-ID bit (chmod g+ws), run both with umask 002, and add
--conf spark.hadoop.fs.permissions.umask-mode=002 to the command. If storage.root is a folder, staged files
are in it. On an object store they are in the folder that PGDELTA_CACHE names on the driver, by default one
of temporary files; elsewhere in the driver's TMPDIR. It must hold the largest open transactions. The
configuration and its secrets stay with the driver, except the address and credentials of an object store:
executors get them from the driver. The driver's memory is Spark's default of 1g; the jobs were tested with
--driver-memory 3g.

{s3}
"""
_HAS_S3 = f"Hadoop's client for S3 is in {S3_FOLDER}/. Without it in --jars, storage.root cannot be on S3."
_LACKS_S3 = "For a storage.root on S3, run make setup-s3 before make dist: it adds Hadoop's client."
_OTHER_S3 = """\
Spark {spark} has a Hadoop that is too old for a storage.root on S3. In the Spark of every machine, replace
hadoop-client-api and hadoop-client-runtime, and add hadoop-aws with its SDK, as make setup-s3 does here.
"""


def jar_names() -> list[str]:
    """Return the names of the JARs that a cluster with the Spark of this environment needs."""
    delta = installed_release().delta_jars
    return [*(f"{artifact}-{version}.jar" for _, artifact, version in delta), JAR_NAME]


def submit_line(job: str, config: str, *, s3: bool = False) -> str:
    """Return the spark-submit command of a job, to be run in the built folder; with `s3` for a root on S3."""
    jars = ",".join(jar_names())
    if s3:
        jars = f"'{jars},{S3_FOLDER}/*.jar'"  # spark-submit finds the files
    return (
        f"spark-submit --master spark://HOST:7077 --py-files pipeline.zip --jars {jars} "
        f"--driver-java-options -Dlog4j2.configurationFile=log4j2.properties jobs/{job}.py --config {config}"
    )


def build_dist(folder: Path, *, with_packages: bool = True, s3_jars: Path | None = None) -> str:
    """Empty and fill the folder; return the text of its README.

    The client for S3 comes from `s3_jars`, by default from Spark's JARs if it is there. Without
    `with_packages` the wheel is left out too: the driver's environment has it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "jobs").mkdir(parents=True)
    wheel = build_wheel(folder).name if with_packages else "pgdelta-*.whl"
    with zipfile.ZipFile(folder / "pipeline.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGE_FOLDERS:
            for path in sorted((CHECKOUT / package).rglob("*.py")):
                archive.write(path, path.relative_to(CHECKOUT))
    for job in (CHECKOUT / "jobs").glob("*.py"):
        shutil.copy(job, folder / "jobs")
    jars = spark_folder() / "jars"
    for name in jar_names():
        if not (jars / name).exists():
            raise LakeError(f"{name} is not in Spark's JARs. Run make setup.")
        shutil.copy(jars / name, folder)
    client = s3_client(s3_jars or jars)
    for path in client:
        (folder / S3_FOLDER).mkdir(exist_ok=True)
        shutil.copy(path, folder / S3_FOLDER)
    (folder / "log4j2.properties").write_text(LOG4J_PROPERTIES)
    if with_packages:
        pack_packages(folder / PACKAGES)
    spark = distribution("pyspark").version
    lacking = _OTHER_S3.format(spark=spark) if installed_release().replaces_hadoop else _LACKS_S3
    text = README.format(
        spark=spark,
        line=submit_line("ingest", "/etc/pgdelta/pipeline.yaml", s3=bool(client)),
        s3=(_HAS_S3 if client else lacking).rstrip(),
        python=".".join(map(str, sys.version_info[:2])),
        wheel=wheel,
        packages=PACKAGES,
        platform=sys.platform,
    )
    (folder / "README.txt").write_text(text)
    return text


def s3_client(jars: Path) -> list[Path]:
    """Return the JARs of the client for S3 in a folder, none if some are missing.

    Nor are there any for a Spark whose Hadoop has to be replaced, which `--jars` cannot do.
    """
    release = installed_release()
    paths = [jars / f"{artifact}-{version}.jar" for _, artifact, version in release.s3_jars]
    return [] if release.replaces_hadoop or not all(path.exists() for path in paths) else paths


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a clean copy of the sources, without files of earlier builds."""
    with tempfile.TemporaryDirectory() as name:
        for part in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(CHECKOUT / part, name)
        for package in PACKAGE_FOLDERS:
            shutil.copytree(
                CHECKOUT / package, Path(name, package), ignore=shutil.ignore_patterns("__pycache__")
            )
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--wheel-dir", str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("pgdelta-*.whl"), None)
    if done.returncode or wheel is None:
        message = next((line for line in done.stderr.splitlines()[::-1] if "ERROR" in line), "")
        raise LakeError(f"pip could not build the wheel ({message}). Run pip wheel . for the whole output.")
    return wheel


def pack_packages(archive: Path) -> None:
    """Pack the packages that the driver needs besides pyspark, as installed here."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for found in required():
            for file in found.files or ():
                # without commands and bytecode
                if ".." not in file.parts and file.suffix != ".pyc":
                    tar.add(str(found.locate_file(file)), str(file))


def required(name: str = "pgdelta") -> list[Distribution]:
    """Return all distributions that this one requires, without pyspark and py4j."""
    found: dict[str, Distribution] = {}
    names = list(_requirements(distribution(name), ()))
    while names:
        name, extras = names.pop()
        if name in found or name in ("pyspark", "py4j"):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # required on another platform or Python
        names += _requirements(found[name], extras)
    return [found[name] for name in sorted(found)]


def _requirements(of: Distribution, extras: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for requirement in of.requires or ():
        match = re.match(r"([\w.-]+)\s*(?:\[([^]]*)\])?", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
        if match and (extra is None or extra[1] in extras):
            yield match[1].lower().replace("_", "-"), tuple((match[2] or "").replace(" ", "").split(","))


def main(arguments: Sequence[str]) -> int:
    """Build into the named folder and print its README, or the error on stderr."""
    folder = Path(arguments[0] if arguments else "dist")
    try:
        print(build_dist(folder), end="")
    except (LakeError, OSError) as error:
        print(f"pgdelta: {describe_error(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
