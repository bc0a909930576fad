"""The sdist of a release has the same bytes whoever builds it, and when."""

import io
import re
import tarfile

from tests.support.paths import ROOT
from tools.release import normalized

FILES = {"p/a.py": b"a = 1\n", "p/b/c.py": b"", "p/run": b"#!/bin/sh\n"}


def sdist(time: float, user: int, names: list[str], mode: int) -> bytes:
    """Return an archive as a machine builds it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        folder = tarfile.TarInfo("p")
        folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, mode | 0o111, time
        archive.addfile(folder)
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.uname = len(FILES[name]), time, user, f"u{user}"
            member.mode = mode | 0o111 if name == "p/run" else mode
            archive.addfile(member, io.BytesIO(FILES[name]))
    return target.getvalue()


def test_two_machines_build_the_same_sdist() -> None:
    one = normalized(sdist(1e9 + 0.25, 0, list(FILES), 0o644), 1_700_000_000)
    other = normalized(sdist(1.5e9, 1000, list(FILES)[::-1], 0o660), 1_700_000_000)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        found = {each.name: each for each in archive if each.isfile()}
        assert {name: archive.extractfile(each).read() for name, each in found.items()} == FILES  # type: ignore[union-attr]
    assert {each.mtime for each in found.values()} == {1_700_000_000}
    assert [found[name].mode for name in FILES] == [0o644, 0o644, 0o755]


def test_the_tools_of_a_release_are_pinned() -> None:
    pins = re.search(r"^RELEASE_PINS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pins is not None
    assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", pin) for pin in pins[1].split())
