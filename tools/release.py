"""Build a release from the newest commit, and try it: `make release` runs this module.

A folder gets the wheel and the sdist, their SBOM (CycloneDX) and the list of licences of all that the wheel
needs, and `SHA256SUMS`. Both archives are built twice, in other folders, and have to be the same bytes;
`twine check` reads them, an empty environment installs the wheel and runs it, and every dependency has to
have a wheel for both platforms. The tools are those of the environment that runs this module.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.paths import ROOT

MACHINES = ("x86_64", "aarch64")
# of the oldest Linux that all dependencies have wheels for; pip does not infer the older ones
_PLATFORMS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 29)))


def run(*command: str | Path, folder: Path = ROOT, **environ: str) -> str:
    """Run a command in a folder and return its output; exit with its error if it fails."""
    words = list(map(str, command))
    variables = {**os.environ, **environ}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def git(*arguments: str) -> str:
    """Return what git says of the checkout, whoever owns it."""
    return run("git", "-c", "safe.directory=*", "-c", "tar.umask=0022", *arguments)


def pip(*arguments: str | Path) -> None:
    """Run the pip of this environment."""
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def build(folder: Path, epoch: int) -> Iterator[Path]:
    """Build the sdist of the newest commit and the wheel of the sdist into a folder; yield both files."""
    with tempfile.TemporaryDirectory() as source:
        git("archive", "-o", f"{source}.tar", "HEAD")
        with tarfile.open(f"{source}.tar") as packed:
            packed.extractall(source, filter="tar")
        os.remove(f"{source}.tar")
        command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source)
        run(*command, SOURCE_DATE_EPOCH=str(epoch))
    [sdist] = folder.glob("*.tar.gz")
    sdist.write_bytes(normalized(sdist.read_bytes(), epoch))
    yield sdist
    yield from folder.glob("*.whl")


def normalized(sdist: bytes, epoch: int) -> bytes:
    """Return an sdist with its files in order, of no user and of one time: setuptools writes its own."""
    target = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as packed,
        gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted(packed.getmembers(), key=lambda each: each.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = epoch, {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, packed.extractfile(member) if member.isfile() else None)
    return target.getvalue()


def digests(files: Iterator[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by their names."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def install(wheel: Path, environment: Path) -> str:
    """Install a wheel into an empty environment, run its command, and return the version that it prints."""
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    pip("--python", python, "install", wheel)
    pip("--python", python, "check")

    def answer(*command: str | Path) -> str:
        return run(*command, folder=environment, PYTHONPATH="")  # where no file of the checkout is found

    version = answer(environment / "bin" / "pgdelta", "--version")
    assert "Replicate PostgreSQL into Delta Lake" in answer(environment / "bin" / "pgdelta", "--help")
    found = answer(python, "-c", "import pgdelta as p; print('pgdelta', p.__version__, p.__file__)")
    assert found.startswith(f"{version} {environment}"), found
    return version


def resolve(wheel: Path, machine: str, sdists: Path) -> Mapping[str, str]:
    """Return the wheel of each dependency that pip chooses on a machine, by name; `sdists` has built ones."""
    with tempfile.TemporaryDirectory() as target:
        report = Path(target, "report.json")
        platforms = [f"--platform={name}_{machine}" for name in _PLATFORMS]
        choice = ["--dry-run", "--ignore-installed", "--only-binary=:all:", f"--find-links={sdists}"]
        pip("install", *platforms, *choice, "--target", target, "--report", report, wheel)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        each["metadata"]["name"]: each["download_info"]["url"].rpartition("/")[2].partition("#")[0]
        for each in found
    }


def build_pyspark(environment: Path, folder: Path) -> None:
    """Build the wheel of Spark, which is published as an sdist of Python and JARs only."""
    code = "from importlib.metadata import version; print(version('pyspark'))"
    version = run(environment / "bin" / "python", "-c", code)
    pip("wheel", "--no-deps", "--wheel-dir", folder, f"pyspark=={version}")
    [built] = folder.glob("pyspark-*.whl")
    assert built.name.endswith("-none-any.whl"), built.name


def describe(environment: Path, folder: Path, version: str, epoch: int) -> None:
    """Write the SBOM and the list of licences of an environment into a folder."""
    tools = Path(sys.executable).parent
    python = environment / "bin" / "python"
    name = f"pgdelta-{version}"
    project = (
        environment / "pyproject.toml"
    )  # whose version is in the code, which the SBOM's tool does not read
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project.write_text(text.replace('dynamic = ["version"]', f'version = "{version}"'), encoding="utf-8")
    run(
        *(tools / "cyclonedx-py", "environment", python, "--pyproject", project),
        *("--output-reproducible", "--of", "JSON", "--output-file", folder / f"{name}.cdx.json"),
        SOURCE_DATE_EPOCH=str(epoch),
    )
    licences = ("--python", python, "--from=mixed", "--with-urls", "--format=markdown", "--order=name")
    file = folder / f"{name}-licences.md"
    run(tools / "pip-licenses", *licences, "--output-file", file)
    rows = [[cell.strip() for cell in line.split("|")] for line in file.read_text().splitlines()[2:]]
    unnamed = [f"{row[1]} {row[2]}" for row in rows if row[3] == "UNKNOWN"]
    print(f"licences of {len(rows)} packages; without one in their metadata: {', '.join(unnamed) or 'none'}")


def main(arguments: Sequence[str]) -> int:
    """Make the release in a folder that has to be empty or missing; return 0, or exit with what failed."""
    os.umask(0o022)  # of the files in both archives
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True)
    epoch = int(git("log", "-1", "--format=%ct"))
    changed = git("status", "--porcelain", "--untracked-files=no")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        built, again = digests(build(folder, epoch)), digests(build(scratch, epoch))
        if built != again:
            sys.exit(f"Two builds differ: {built} and {again}.")
        [wheel] = folder.glob("*.whl")
        print(f"built twice, the same bytes: {', '.join(built)}")
        print(run(sys.executable, "-m", "twine", "check", "--strict", *map(folder.joinpath, built)))
        version = install(wheel, scratch / "environment").removeprefix("pgdelta ")
        print(f"installed in an empty environment: pgdelta {version}")
        describe(scratch / "environment", folder, version, epoch)
        build_pyspark(scratch / "environment", scratch / "sdists")
        for machine in MACHINES:
            found = resolve(wheel, machine, scratch / "sdists")
            special = sum(not file.endswith("-none-any.whl") for file in found.values())
            print(f"{machine}: {len(found)} wheels, {special} of them for this machine")
    sums = digests(each for each in sorted(folder.iterdir()))
    (folder / "SHA256SUMS").write_text("".join(f"{sums[each]}  {each}\n" for each in sums))
    print((folder / "SHA256SUMS").read_text(), end="")
    if changed:
        print(f"To do: commit what is not in this release yet:\n{changed}")
    if not (ROOT / "tests" / "lakes" / f"{version}.tar.xz").exists():
        print(f"To do: tag the commit, and store the lake of {version} by python -m tools.release_lake.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
