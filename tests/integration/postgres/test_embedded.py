"""The embedded server starts anywhere, stops and starts again, and keeps its data through a crash."""

from pathlib import Path

import psycopg
import pytest

from pipeline.errors import SourceError
from pipeline.postgres.embedded import start_server
from tests.support.servers import MakeServer, restart

pytestmark = pytest.mark.postgres


def test_a_server_keeps_its_data_through_restarts_and_a_crash(make_server: MakeServer) -> None:
    server = make_server({"work_mem": "8MB"})
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int)")
    restart(server, {"work_mem": "9MB"})
    server.stop(mode="immediate")
    server.start()
    server.stop()
    server.stop()
    server.start()
    by_socket = f"host={server.socket_folder} port={server.port} dbname=postgres user=postgres"
    with psycopg.connect(by_socket) as connection:
        assert connection.execute("SELECT count(*) FROM item").fetchone() == (0,)
        assert connection.execute("SHOW work_mem").fetchone() == ("9MB",)


def test_a_server_that_cannot_start_raises_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="The embedded server failed"):
        start_server(tmp_path / "server", settings={"shared_buffers": "nonsense"})
