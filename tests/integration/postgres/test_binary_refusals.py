"""What binary format cannot be read in is refused by name: at the check, at the start, at its first value."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.config.config import Config, Protocol
from pipeline.errors import ProtocolError, SourceError
from pipeline.ingest import job
from pipeline.postgres.binary_format import refuse_unreadable
from pipeline.postgres.checks.source_checks import Check, run_checks
from pipeline.postgres.connection import connect
from pipeline.postgres.publication import ensure_publication
from tests.support.postgres.pairs import Pair
from tests.support.servers import Database

BINARY = Protocol(binary=True, written=frozenset({"binary"}))
REFUSED = {
    "regclass": "regclass",
    "regtype[]": "regtype in regtype[]",
    "aclitem[]": "aclitem in aclitem[]",
    "refs": "regrole in public.refs",
    "ref": "regproc in public.ref",
    "ref_range": "regconfig in public.ref_range",
}


def find_check(config: Config) -> Check:
    checks = run_checks(config)
    return next((check for check in checks if check.name == "binary values"), checks[-1])


def make_refused(database: Database) -> None:
    """Create a table of types that cannot be read, and of an aclitem, which the server sends as text."""
    database.run(
        "CREATE TYPE refs AS (id int, r regrole)",
        "CREATE DOMAIN ref AS regproc",
        "CREATE TYPE ref_range AS RANGE (subtype = regconfig, subtype_opclass = oid_ops)",
        "CREATE TABLE fine (id int PRIMARY KEY, a aclitem, c pg_lsn[])",
        "CREATE TABLE item (id int PRIMARY KEY, "
        + ", ".join(f"c{i} {name}" for i, name in enumerate(REFUSED))
        + ")",
    )


def test_types_that_cannot_be_read_are_refused_by_name_before_the_start(any_database: Database) -> None:
    database = any_database
    make_refused(database)
    config = database.config(protocol=BINARY, create_publication="all")
    named = [f"public.item.c{i} ({shown})" for i, shown in enumerate(REFUSED.values())]
    sentence = (
        "The binary values of 6 published columns cannot be converted to text: "
        + ", ".join(named[:5])
        + " and 1 more."
    )
    for _ in ("planned", "created"):
        found = find_check(config)
        assert (found.ok, found.sentence) == (False, sentence)
        with connect(database.conninfo) as connection:
            publication, _is_new = ensure_publication(connection, config)
    with connect(database.conninfo) as connection, pytest.raises(SourceError) as caught:
        refuse_unreadable(connection, publication)
    assert str(caught.value) == (
        f"{sentence} Set source.protocol.binary to false, so that the server sends text."
    )
    database.run("DROP TABLE item")
    assert find_check(config).ok
    without = database.config(create_publication="all")
    assert "binary values" not in {check.name for check in run_checks(without)}


def test_columns_that_are_not_published_are_not_refused(any_database: Database) -> None:
    database = any_database
    if database.run("SELECT current_setting('server_version_num')::int")[0][0] < 150000:
        pytest.skip("no column lists")
    make_refused(database)
    database.run(f"CREATE PUBLICATION {database.name} FOR TABLE fine, item (id)")
    config = database.config(protocol=BINARY)
    assert find_check(config).ok


def test_a_type_that_appears_later_is_refused_when_its_first_value_arrives(
    any_database: Database, tmp_path: Path
) -> None:
    database = any_database
    make_refused(database)
    pair = Pair(database)
    database.run("INSERT INTO fine VALUES (1, 'postgres=r/postgres', '{1/A}')")
    assert [row["new"] for row in pair.read(tmp_path)] == [["1", "postgres=r/postgres", "{1/A}"]]
    database.run("INSERT INTO item (id) VALUES (1)", "INSERT INTO item (id, c0) VALUES (2, 'fine')")
    with pytest.raises(ProtocolError) as caught:
        pair.read(tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith("Insert for public.item in the transaction committed at ")
    assert sentence.endswith(
        "column 2 of the new tuple (c0) is in binary format, and the binary format of the type regclass"
        " is not supported. Set source.protocol.binary to false."
    )


def test_a_run_does_not_start_where_a_type_cannot_be_read(
    any_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Lake", "Bronze"):
        monkeypatch.setattr(job, name, Mock())
    make_refused(any_database)
    config = any_database.config(protocol=BINARY, create_publication="all")
    with pytest.raises(SourceError, match="6 published columns cannot be converted to text"):
        job.run_ingest(config, spark=Mock())
    assert any_database.run("SELECT 1 FROM pg_replication_slots WHERE database = current_database()") == []
