"""Two slots of the same WAL, one in text format and one in binary format."""

from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.bronze.spool import Spool
from pipeline.config.config import Config, Protocol
from pipeline.ingest.decoder import Decoder
from pipeline.postgres.connection import connect
from pipeline.protocol.messages import Binary, Delete, Insert, Update
from tests.support.bronze.events import rows_of
from tests.support.postgres.streams import decode_all, prepare, read_through, start
from tests.support.servers import Database


class Pair:
    """Two slots of one publication of all tables: one in text format, one in binary format."""

    def __init__(self, database: Database, *, route: str = "walsender", **protocol: Any) -> None:
        self.database = database
        self.configs = [
            database.config(
                create_publication="all",
                slot=f"{database.name}_{kind}",
                route=route,
                protocol=Protocol(binary=kind == "binary", written=frozenset({"binary"}), **protocol),
            )
            for kind in ("text", "binary")
        ]
        for config in self.configs:
            prepare(config)

    def read(self, directory: Path) -> list[dict[str, Any]]:
        """Return what the slots landed, which is the same."""
        (text, text_kinds), (binary, binary_kinds) = (self._land(c, directory) for c in self.configs)
        assert Binary not in text_kinds
        assert Binary in binary_kinds
        assert len(text) == len(binary)
        for one, other in zip(text, binary, strict=True):
            assert one == other
        return text

    def _land(self, config: Config, directory: Path) -> tuple[list[dict[str, Any]], set[type]]:
        spool = Spool(directory, reads_types=config.source.protocol.binary)
        conninfo = config.source.conninfo
        with closing(start(config, config.source.route)) as stream, connect(conninfo) as connection:
            messages = read_through(stream, self.database.flush_lsn())
            decoder = Decoder(spool, connection, conninfo)
            decoder.decode(messages, stream.session)
            rows = rows_of(spool.seal())
        kinds = {
            type(cell)
            for message in decode_all(messages)
            if isinstance(message, Insert | Update | Delete)
            for cells in (getattr(message, "old", None), getattr(message, "new", None))
            for cell in cells or ()
        }
        return rows, kinds
