"""TLS and passwords, by either route: what is right works, what is wrong is one sentence with what to do."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.errors import SourceError
from pipeline.postgres.checks.source_checks import run_checks
from pipeline.postgres.connection import connect, connect_replication
from pipeline.protocol.lsn import LSN
from tests.support.postgres.streams import kinds, read_through, start
from tests.support.postgres.tls import PASSWORD, ROLE, GuardedServer, serve_guarded
from tests.support.servers import Database

pytestmark = pytest.mark.postgres

MAJORS = (10, 18)
OPEN = (connect, connect_replication)


@pytest.fixture(scope="module", params=MAJORS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedServer]:
    """Give a server of each major that takes TLS alone."""
    yield from serve_guarded(tmp_path_factory.mktemp(f"tls-{request.param}"), request.param)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away what libpq would find by itself."""
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def refusal(conninfo: str) -> str:
    """Return the one sentence that both kinds of session get."""
    sentences = set()
    for opened in OPEN:
        with pytest.raises(SourceError) as caught:
            opened(conninfo)
        sentences.add(str(caught.value))
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
    assert all(sentence.startswith("Cannot connect to the source: ") for sentence in sentences)
    sentence = min(sentences)
    assert "\n" not in sentence
    for secret in (PASSWORD, quote(PASSWORD, safe=""), "s3cr3t"):
        assert all(secret not in sentence for sentence in sentences)
    return sentence


@pytest.mark.promise("TLS")
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_the_right_authority_and_name_work(guarded: GuardedServer, mode: str) -> None:
    for opened in OPEN:
        with opened(guarded.trusting(guarded.authority, mode)) as connection:
            assert connection.pgconn.ssl_in_use


@pytest.mark.promise("TLS")
@pytest.mark.parametrize("route", ["walsender", "sql"])
def test_changes_come_by_tls_and_a_password_from_the_environment(
    guarded: GuardedServer, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGSSLROOTCERT", str(guarded.authority))
    conninfo = guarded.conninfo("verify-full", user=ROLE)
    database = Database(guarded.server, "shop", guarded.trusting(guarded.authority, "verify-full"))
    config = database.config(conninfo=conninfo, route=route)
    assert [check for check in run_checks(config) if not check.ok] == []
    with closing(start(config, route)) as stream:
        assert kinds(read_through(stream, LSN(database.flush_lsn()))).endswith("IC")


@pytest.mark.promise("TLS")
@pytest.mark.parametrize(
    ("other", "said"), [("stranger", "certificate verify failed"), ("namesake", "signature failure")]
)
def test_another_authority_is_refused(guarded: GuardedServer, other: str, said: str) -> None:
    for mode in ("require", "verify-ca", "verify-full"):
        sentence = refusal(guarded.trusting(getattr(guarded, other), mode))
        assert said in sentence
        assert "to the CA that signed the server's certificate" in sentence


@pytest.mark.promise("TLS")
def test_another_name_is_refused_where_names_count(guarded: GuardedServer) -> None:
    sentence = refusal(guarded.trusting(guarded.authority, "verify-full", host="127.0.0.1"))
    assert 'does not match host name "127.0.0.1"' in sentence
    assert "Set host in source.conninfo to a name in the server's certificate" in sentence
    connect(guarded.trusting(guarded.authority, "verify-ca", host="127.0.0.1")).close()
    # the name is proven, the address is said
    where = f"{guarded.trusting(guarded.authority, 'verify-full')} hostaddr=127.0.0.1"
    connect(where).close()


def test_a_missing_file_of_the_authority_is_named(guarded: GuardedServer, tmp_path: Path) -> None:
    sentence = refusal(guarded.trusting(tmp_path / "nowhere.pem", "verify-full"))
    assert "nowhere.pem" in sentence
    assert "Set sslrootcert in source.conninfo, or PGSSLROOTCERT, to the file" in sentence
    assert "Set sslrootcert" in refusal(guarded.conninfo("verify-full"))


def test_a_session_in_the_clear_is_refused_by_the_server(guarded: GuardedServer) -> None:
    sentence = refusal(guarded.conninfo("disable"))
    assert "no pg_hba.conf entry" in sentence
    assert "set sslmode=verify-full" in sentence


@pytest.mark.promise("TLS")
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_server_without_tls_is_refused(database: Database, mode: str, tmp_path: Path) -> None:
    (tmp_path / "any.pem").write_text("")
    sentence = refusal(f"{database.conninfo} sslmode={mode} sslrootcert={tmp_path / 'any.pem'}")
    assert "does not support SSL" in sentence
    assert "Set ssl = on at the server" in sentence
    for opened in OPEN:
        opened(f"{database.conninfo} sslmode=disable").close()


@pytest.mark.promise("SCRAM")
@pytest.mark.parametrize("by", ["conninfo", "uri", "PGPASSWORD", "PGPASSFILE", "passfile"])
def test_a_password_is_taken_or_refused_unnamed(
    guarded: GuardedServer, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def conninfo_with(password: str) -> str:
        more = f"sslrootcert={guarded.authority} "
        if by == "conninfo":
            more += f"password='{password}'"
        if by == "PGPASSWORD":
            monkeypatch.setenv("PGPASSWORD", password)
        if by == "uri":
            place = f"{ROLE}:{quote(password, safe='')}@localhost:{guarded.server.port}/postgres"
            return f"postgresql://{place}?sslmode=verify-full&sslrootcert={guarded.authority}"
        if by in ("PGPASSFILE", "passfile"):
            file = tmp_path / "pgpass"
            escaped = password.replace(":", r"\:")
            file.write_text(f"localhost:{guarded.server.port}:*:{ROLE}:{escaped}\n")
            file.chmod(0o600)
            if by == "PGPASSFILE":
                monkeypatch.setenv("PGPASSFILE", str(file))
            else:
                more += f" passfile={file}"
        return guarded.conninfo("verify-full", user=ROLE, more=more)

    for opened in OPEN:
        with opened(conninfo_with(PASSWORD)) as connection:
            assert connection.pgconn.used_password
    wrong = conninfo_with(f"{PASSWORD} not")
    sentence = refusal(wrong)
    assert f'password authentication failed for user "{ROLE}"' in sentence
    assert "Correct the password in PGPASSWORD, PGPASSFILE or the variable in source.conninfo" in sentence


def test_a_missing_password_is_reported_with_where_to_set_it(guarded: GuardedServer) -> None:
    sentence = refusal(guarded.trusting(guarded.authority, "verify-full", user=ROLE))
    assert "no password supplied" in sentence
    assert "Set PGPASSWORD, PGPASSFILE" in sentence


@pytest.mark.promise("SCRAM")
def test_scram_is_what_was_spoken(guarded: GuardedServer) -> None:
    """A password that the server keeps for SCRAM cannot be proven in any other way."""
    server = Database(guarded.server, "shop", guarded.trusting(guarded.authority, "verify-full"))
    [(kept,)] = server.run(f"SELECT left(rolpassword, 13) FROM pg_authid WHERE rolname = '{ROLE}'")
    assert kept == "SCRAM-SHA-256"
