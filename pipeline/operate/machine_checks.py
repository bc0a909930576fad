"""Check this machine for `pgdelta check`, and report the results of all checks.

Tests what the jobs need here: Java, and a folder or an object store for the lake that can be written and on
which commits exclude each other. The checks of the source are in `postgres/checks`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pipeline.apply.catalogs import open_catalog
from pipeline.bronze.activity import longest_pause
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config, Storage
from pipeline.delta.catalogs.entry import catalog_error
from pipeline.delta.locks import find_running_apply
from pipeline.delta.spark.jars import check_java
from pipeline.delta.spark.provider import NoSpark
from pipeline.delta.store.open_store import open_store
from pipeline.delta.store.probe import probe
from pipeline.delta.store.store import is_store
from pipeline.delta.table import Lake
from pipeline.errors import LakeError, PgdeltaError
from pipeline.ingest.start_conditions import StartCheck
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.checks.table_checks import Check, refused
from pipeline.postgres.connection import connect, limit_connect_time, read_idle_timeout
from pipeline.terminal import plain, print_pairs, print_paragraph
from pipeline.units import format_count, format_duration, format_size


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The checks of one configuration file, in the order in which a start would meet them."""

    pipeline: str
    path: str
    checks: tuple[Check, ...]

    @property
    def failure_count(self) -> int:
        """How many checks failed."""
        return sum(not check.ok for check in self.checks)

    def exit_code(self, strict: bool) -> int:
        """Return 1 if a check failed."""
        return int(self.failure_count > 0)

    def as_json(self) -> dict[str, Any]:
        rows = [{"name": c.name, "ok": c.ok, "sentence": c.sentence, "fix": c.fix} for c in self.checks]
        return {"ok": not self.failure_count, "checks": rows}

    def print(self, console: Console) -> None:
        """Print each check with its sentence, and below it what to do."""
        print_paragraph(console, f"{self.pipeline}: {self.path}")
        console.print()
        print_pairs(console, self._pairs(console.width))
        console.print()
        count = len(self.checks)
        failed = f"{self.failure_count} of {format_count(count, 'check')} failed"
        verdict = failed if self.failure_count else "ready"
        print_paragraph(console, f"{self.pipeline}: {verdict}")

    def _pairs(self, width: int) -> Iterator[tuple[str | Text, str | Text]]:
        ordered = sorted(self.checks, key=lambda check: (check.ok, not check.fix))
        longest = max((cell_len(check.name) for check in ordered), default=0) + len("✔ ")
        for check in ordered:
            mark = Text("✔", "green") if check.ok else Text("✘", "red")
            label = Text.assemble(mark, " ", plain(check.name))
            if not check.fix:
                yield label, check.sentence
            elif cell_len(f"{check.sentence} → {check.fix}") + longest + 2 <= width:
                yield label, f"{check.sentence} → {check.fix}"
            else:
                yield label, check.sentence
                yield "", f"→ {check.fix}"


_RELATIVE = (
    "storage.root is relative to the working directory. An absolute path means the same lake from any folder."
)

_EXCLUSIVE = "Two writers of one object exclude each other there."
_SHARE_OF_LIMIT = 0.8  # of the server's limit that a pause may last
_PATIENCE = 10.0  # seconds for a request of an object store
_LEAST_FREE = 16 << 20  # bytes, for the files of one small run


def run_all_checks(config: Config) -> tuple[Check, ...]:
    """Return the checks of this machine, of the source, and of the lake with its source."""
    start = StartCheck(config)
    source = run_checks(config, is_first=start.is_first)
    later = (*check_apply(config), *check_pauses(config), *check_catalogs(config))
    return (*check_machine(config), *source, *start.checks(), *later)


def check_machine(config: Config) -> Iterator[Check]:
    """Yield the checks of this machine. They leave nothing behind, and start no JVM but `java -version`."""
    try:
        yield Check("Java", True, f"Spark will run {check_java()}.")
    except LakeError as error:
        yield Check("Java", False, str(error), "Ingest, and tables that need no Spark, run without it.")
    root = config.storage.root
    if is_store(root):
        yield _check_store(config.storage)
        return
    if urlparse(root).scheme not in ("", "file"):
        yield Check("lake", True, f"The lake is at {root}. The jobs verify that it can be written.")
        return
    path = Path(os.path.abspath(root.removeprefix("file://").removeprefix("file:")))
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        if not _has_hard_links(there):
            yield Check(
                "lake",
                False,
                f"The file system of {there} has no hard links, so commits do not exclude each other there.",
                "Set storage.root to a folder of another file system, or to an object store.",
            )
            return
        if (free := shutil.disk_usage(there).free) < _LEAST_FREE:
            sentence = f"The file system of {there} has only {format_size(free)} left."
            yield Check("lake", False, sentence, "Free some space there. Nothing is lost meanwhile.")
            return
        has_bronze = (path / "bronze" / "changes").exists()
        sentence = f"The lake is {path}" if has_bronze else f"A new lake will be created in {path}"
        yield Check("lake", True, f"{sentence}.", "" if has_bronze or os.path.isabs(root) else _RELATIVE)
        return
    why = f"this user cannot write to {there}"
    fix = "Grant this user write access there, or set storage.root to"
    if not there.is_dir():
        why, fix = f"{there} is a file", "Set storage.root to"
    yield Check("lake", False, f"The lake cannot be created in {path}: {why}.", f"{fix} another folder.")


def check_apply(config: Config) -> Iterator[Check]:
    """Yield who writes silver now, which is no fault, or why the lock of apply cannot be used."""
    lake = Lake(config.storage, verifies=False)  # `StartCheck` did
    if lake.working_root is None:
        return
    try:
        holder = find_running_apply(lake)
    except Exception as error:
        yield refused("apply", error)
        return
    if holder is not None:
        sentence = f"An apply is writing the silver tables ({holder})."
        yield Check("apply", True, sentence, "Another apply or run is refused until it has ended.")


def check_pauses(config: Config) -> Iterator[Check]:
    """Yield whether the slot is lost between two runs of ingest, if the server invalidates idle slots."""
    try:
        with connect(limit_connect_time(config.source.conninfo, _PATIENCE)) as connection:
            limit = read_idle_timeout(connection)
        bronze = Bronze(Lake(config.storage, verifies=False), config.pipeline)
        pause = longest_pause(bronze) if limit is not None and bronze.changes.exists() else None
    except PgdeltaError:  # another check has it
        return
    if limit is None:
        return
    setting = f"idle_replication_slot_timeout is {format_duration(limit.total_seconds())}"
    fix = "Run ingest more often than that, or raise the setting."
    if pause is not None and pause > limit * _SHARE_OF_LIMIT:
        longest = format_duration(pause.total_seconds())
        sentence = f"{setting}, and ingest paused for {longest}: a slot that is not read for so long is lost."
        yield Check("idle slot", False, sentence, fix)
        return
    yield Check("idle slot", True, f"{setting}: a slot that no ingest reads for so long is lost.", fix)


def check_catalogs(config: Config) -> Iterator[Check]:
    """Yield whether tables can be registered in each catalog that needs no Spark; nothing is changed."""
    for service in config.catalog.targets if config.catalog.schema is not None else ():
        catalog = open_catalog(service, config.pipeline, NoSpark(""))
        if catalog.needs_spark:
            continue
        try:
            catalog.check()
        except Exception as error:
            yield refused(f"catalog {service.type}", catalog_error(catalog, error))
        else:
            yield Check(f"catalog {service.type}", True, f"Tables will be registered in {catalog.label}.")


def _check_store(storage: Storage) -> Check:
    """Return the check of a lake on an object store, in which an object exists for a moment."""
    try:
        found = probe(open_store(storage.root, storage.options, patience=_PATIENCE))
    except PgdeltaError as error:
        wrong, _, remedy = str(error).rpartition(". ")
        return Check("lake", False, f"{wrong}.", remedy)
    if found is not None:
        return Check("lake", False, *found)
    return Check("lake", True, f"The lake is at {storage.root}. {_EXCLUSIVE}")


def _has_hard_links(folder: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix=".pgdelta-check-", dir=folder) as name:
        handle, path = tempfile.mkstemp(dir=name)
        os.close(handle)
        try:
            os.link(path, Path(name, "link"))
        except OSError:
            return False
    return True
