"""Record the columns of tables with column rules before their first change.

A rule follows its column through renames by the column's attribute number, which bronze has once a relation
version is recorded. The first change may come after a rename, when the name does not show the rule any more.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.bronze.protection import ColumnProtection
from pipeline.bronze.relations import RelationVersion, relation_version
from pipeline.bronze.writer import BronzeWriter
from pipeline.errors import SourceError
from pipeline.postgres.attributes import read_horizon
from pipeline.postgres.catalog import read_relation
from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.postgres.publication import Membership, describe_published
from pipeline.protocol.lsn import LSN
from pipeline.table_name import TableName


def record_protected(
    connection: Connection,
    publication: str,
    writer: BronzeWriter,
    protection: ColumnProtection,
    published: Mapping[TableName, Membership],
) -> None:
    """Record a version of each published table with column rules that no change or copy has described yet.

    Adds the horizon of the catalog, which tells later what has not changed.
    A table that cannot be described now, because another session has it locked or has dropped it, is
    described by a later call.
    """
    if not protection.is_configured:
        return
    protection.horizons.add(read_horizon(connection))
    unknown = [
        name
        for name, now in published.items()
        if protection.rules_of(name) is not None and not protection.is_known(now.relation_id, name)
    ]
    if not unknown:
        return
    lsn = read_flush_lsn(connection)
    versions = [describe_version(connection, publication, protection, name, lsn) for name in sorted(unknown)]
    if found := [v for v in versions if v is not None and v.protection is not None]:
        writer.record_relations(found)


def describe_version(
    connection: Connection, publication: str, protection: ColumnProtection, name: TableName, lsn: LSN
) -> RelationVersion | None:
    """Return the version of a table that the catalog has, None if it cannot be described now."""
    try:
        relation = describe_published(connection, publication, name).relation
        catalog = read_relation(connection, relation)
        if catalog is None:
            return None
        found = protection.protect(relation, catalog)
    except SourceError:
        if connection.closed:
            raise
        return None
    return relation_version(relation, catalog, lsn, protection=found)
