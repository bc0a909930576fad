"""Relations as a live server describes them."""

from contextlib import closing

from pipeline.postgres.catalog import CatalogColumn, CatalogRelation, read_relation
from pipeline.postgres.connection import connect
from pipeline.protocol.messages import Relation
from tests.support.postgres.streams import decode_all, prepare, read_through, start
from tests.support.servers import Database


def receive_relation(database: Database, insert: str) -> Relation:
    config = database.config(create_publication="all")
    prepare(config)
    database.run(insert)
    with closing(start(config)) as stream:
        messages = decode_all(read_through(stream, database.flush_lsn()))
    return next(message for message in messages if isinstance(message, Relation))


def facts_of(database: Database, relation: Relation) -> CatalogRelation | None:
    with connect(database.conninfo) as connection:
        return read_relation(connection, relation)


def columns_of(database: Database, relation: Relation) -> dict[str, CatalogColumn]:
    facts = facts_of(database, relation)
    assert facts is not None
    names = (column.name for column in relation.columns)
    return dict(zip(names, facts.columns, strict=True))
