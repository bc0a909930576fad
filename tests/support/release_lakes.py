"""Stored lakes of releases, each with the configuration and the source that continues it.

An archive `tests/lakes/<release>.tar.xz` has the lake, its configuration, and `source.json`: the statements
that made the source, and what the release recorded of it. The source is made again by running the statements
on a new server with the same system identifier, which gives all relations the same oids. Its slot then begins
after the last commit that bronze has, and is advanced to the LSN up to which bronze is complete. So the next
ingest continues from it as from the server of that time.
`tools/release_lake.py` makes an archive.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.postgres import embedded
from pipeline.protocol.lsn import LSN
from tests.support.moves import advance_wal, database_of
from tests.support.paths import ROOT
from tests.support.postgres.binaries import binaries_of
from tests.support.postgres.templates import copy_template
from tests.support.servers import Database

ARCHIVES = sorted((ROOT / "tests" / "lakes").glob("*.tar.xz"))
NAME = "shop"
"""The name of the database, the publication, the slot and the pipeline."""

OIDS = (
    "SELECT relname::text, oid::bigint FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    " AND relkind IN ('r', 'p') UNION ALL SELECT pubname::text, oid::bigint FROM pg_publication ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class ReleaseLake:
    """An unpacked lake: its release, its folder, and what is stored of its source."""

    release: str
    folder: Path
    facts: dict[str, Any]

    @classmethod
    def unpack(cls, archive: Path, folder: Path) -> ReleaseLake:
        """Unpack an archive into a folder."""
        folder.mkdir()
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        facts = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        return cls(archive.name.removesuffix(".tar.xz"), folder, facts)

    def checkout(self, folder: Path) -> Path:
        """Return a folder with the code of the release, from git's history; skip the test if it has none."""
        commit = self.facts["commit"]
        packed = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, "pipeline"], capture_output=True, check=False
        )
        if packed.returncode:
            pytest.skip(f"the history of this checkout does not have {commit}, of {self.release}")
        folder.mkdir()
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
        return folder

    def config(self, database: Database) -> Config:
        """Return its configuration, with a database as its source."""
        return config_of(self.folder, database)

    def start_server(self, folder: Path) -> embedded.EmbeddedServer:
        """Start a new server with the system identifier of the source."""
        binaries = embedded.find_binaries()
        version = subprocess.run(
            [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
        )
        if f") {self.facts['major']}." not in version.stdout:
            binaries = binaries_of(self.facts["major"])
        make_data = partial(copy_template, identifier=int(self.facts["system_identifier"]))
        return embedded.start_server(folder, binaries=binaries, make_data=make_data)

    def make_source(self, server: embedded.EmbeddedServer) -> Database:
        """Make the source as bronze has it, and a slot from which the stream continues."""
        database = database_of(server, NAME)
        database.run(*self.facts["statements"])
        assert dict(database.run(OIDS)) == self.facts["oids"]
        advance_wal(database, LSN.parse(self.facts["last_commit"]))
        database.run(f"SELECT pg_create_logical_replication_slot('{NAME}', 'pgoutput')")
        offset = LSN.parse(self.facts["offset"])
        assert database.flush_lsn() < offset
        advance_wal(database, offset)
        database.run(f"SELECT pg_replication_slot_advance('{NAME}', '{offset}')")
        return database


def config_of(folder: Path, database: Database) -> Config:
    """Return the configuration in a folder, whose lake is there, with a database as its source."""
    environ = {"PGDELTA_CONNINFO": database.conninfo, "PGDELTA_LAKE": str(folder / "lake")}
    return load_config(folder / "pipeline.yaml", environ)
