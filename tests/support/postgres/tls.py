"""A server that speaks TLS and asks for passwords, with a CA of its own."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.postgres.embedded import EmbeddedServer
from tests.support.postgres.binaries import binaries_of
from tests.support.postgres.certificates import Certificate, issue, make_authority
from tests.support.postgres.templates import start_server
from tests.support.servers import Database, restart

PASSWORD = "pl@nted:/?#s3cr3t"
ROLE = "keeper"
_HBA = """\
hostssl all         postgres all trust
hostssl all         all      all scram-sha-256
hostssl replication all      all scram-sha-256
"""


@dataclass(frozen=True)
class GuardedServer:
    """A server that takes TLS alone; its certificate is for localhost, and `ROLE` has the password."""

    server: EmbeddedServer
    authority: Path  # the CA's certificate
    stranger: Path  # that of another CA
    namesake: Path  # that of another CA with the same name

    def conninfo(self, mode: str, *, host: str = "localhost", user: str = "postgres", more: str = "") -> str:
        return f"host={host} port={self.server.port} dbname=postgres user={user} sslmode={mode} {more}"

    def trusting(self, authority: Path, mode: str, **options: str) -> str:
        return f"{self.conninfo(mode, **options)} sslrootcert={authority}"


def serve_guarded(directory: Path, major: int) -> Iterator[GuardedServer]:
    """Start the server, and stop it in the end; the binaries of the wheel know no TLS, those by major do."""
    server = start_server(directory / "server", binaries=binaries_of(major))
    try:
        authority = make_authority("pgdelta test CA")
        others = make_authority("another CA"), make_authority(authority.name)
        _install(server, issue(authority, "localhost"))
        Database.of(server).run(
            "ALTER SYSTEM SET password_encryption = 'scram-sha-256'",
            "SELECT pg_reload_conf()",
            f"SET password_encryption = 'scram-sha-256'; CREATE ROLE {ROLE} LOGIN REPLICATION"
            f" PASSWORD '{PASSWORD}'",
            "CREATE TABLE item (id int PRIMARY KEY)",
            "CREATE PUBLICATION shop FOR TABLE item",
            "SELECT pg_create_logical_replication_slot('shop', 'pgoutput')",
            "INSERT INTO item VALUES (1)",
        )
        (server.data / "pg_hba.conf").write_text(_HBA)
        restart(server, {"ssl": "on"})
        files = [directory / f"{name}.pem" for name in ("authority", "stranger", "namesake")]
        for file, certificate in zip(files, (authority, *others), strict=True):
            file.write_text(certificate.pem)
        yield GuardedServer(server, *files)
    finally:
        server.stop()


def _install(server: EmbeddedServer, certificate: Certificate) -> None:
    owner = server.data.stat()
    for name, text in (("server.crt", certificate.pem), ("server.key", certificate.key_pem)):
        file = server.data / name
        file.write_text(text)
        file.chmod(0o600)
        os.chown(file, owner.st_uid, owner.st_gid)
