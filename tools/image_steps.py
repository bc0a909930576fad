"""Run the steps of `deploy/Dockerfile` without Docker: `python -m tools.image_steps ROOT`, as root.

ROOT is the minimal Debian that the Dockerfile begins with; debootstrap makes it if it does not exist. Each
COPY copies, each RUN runs by `/bin/sh` in that root. At the end the entrypoint runs as the image's user, with
other arguments if there are any. It needs debootstrap and unshare. The root has this machine's name servers,
and the certificates that were added to this machine's own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
_BASE = re.compile(r"debian:(\w+)-slim")


@dataclass(slots=True)
class Image:
    """A root folder, and what the steps so far have set."""

    root: Path
    environ: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    folder: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> int:
        """Run a command in the root, as the image's user; return its exit code."""
        user, _, group = self.user.partition(":")
        inside = ["chroot", f"--userspec={user}:{group or user}", str(self.root)]
        inside += ["/usr/bin/env", "-i", "-C", self.folder]
        inside += [f"{key}={value}" for key, value in self.environ.items()]
        mount = f"mount -t proc proc {shlex.quote(str(self.root / 'proc'))} && exec "
        line = mount + shlex.join([*inside, *command])
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", line], check=False
        ).returncode


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each instruction of a Dockerfile with its arguments, lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word, rest.strip()


def step(image: Image, word: str, rest: str) -> int:
    """Carry out one instruction; return the exit code of what it ran."""
    if word == "FROM":
        release = _BASE.fullmatch(rest)
        assert release is not None, rest
        if not image.root.exists():
            subprocess.run(["debootstrap", "--variant=minbase", release[1], str(image.root)], check=True)
        shutil.copy("/etc/resolv.conf", image.root / "etc")
        shutil.copytree(CERTIFICATES, image.root / CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
    elif word == "RUN":
        # pip brings certificates of its own otherwise
        certificates = "PIP_CERT=/etc/ssl/certs/ca-certificates.crt"
        return image.run(["/usr/bin/env", certificates, "/bin/sh", "-ec", rest])
    elif word == "COPY":
        *sources, target = shlex.split(rest)
        for source in sources:
            copy(ROOT / source, image.root / target.lstrip("/"), is_folder=target.endswith("/"))
    elif word == "ENV":
        image.environ |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    elif word == "WORKDIR":
        image.folder = rest
        (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
    elif word == "USER":
        image.user = rest
    elif word == "ENTRYPOINT":
        image.entrypoint = json.loads(rest)
    elif word == "CMD":
        image.command = json.loads(rest)
    else:
        raise ValueError(f"{word} is not an instruction that this tool knows.")
    return 0


def copy(source: Path, target: Path, *, is_folder: bool) -> None:
    """Copy a file or the content of a folder, as COPY does."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target = target / source.name if is_folder else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def main(arguments: Sequence[str]) -> int:
    """Build the root, then run the entrypoint; return the first exit code that is not 0."""
    if not arguments or os.geteuid() != 0:
        print("Run it as root: python -m tools.image_steps ROOT [ARGUMENT...]", file=sys.stderr)
        return 2
    image = Image(Path(arguments[0]).resolve())
    for word, rest in instructions(DOCKERFILE.read_text(encoding="utf-8")):
        print(f"{word} {rest}", flush=True)
        code = step(image, word, rest)
        if code:
            return code
    return image.run([*image.entrypoint, *(arguments[1:] or image.command)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
