"""Record the comments on the source's tables and columns when they change."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.bronze.schema import storable
from pipeline.bronze.source_moves import SourceMoves
from pipeline.config.config import Config
from pipeline.delta.table import Lake
from pipeline.metadata.source_comments import CommentTable, SourceComment, comments_after
from pipeline.postgres.catalog_comments import read_comments
from pipeline.postgres.connection import Connection
from pipeline.postgres.publication import Membership
from pipeline.table_name import TableName


class CommentWatch:
    """Compares the comments with those that were recorded last, for one run of ingest."""

    def __init__(self, config: Config, lake: Lake) -> None:
        self._config = config
        self._table = CommentTable(lake)

    def poll(
        self, connection: Connection, published: Mapping[TableName, Membership], moves: SourceMoves
    ) -> None:
        """Record the comments of the published tables whose rule follows them, if they changed.

        Tables and columns have the numbers that the lake has, which `moves` gives.
        """
        names = {now.relation_id: name for name, now in published.items() if self._follows(name)}
        if not names:
            return
        polled = {name: moves.lake_id(oid) for oid, name in names.items()}
        found = [
            SourceComment(
                *names[oid], *moves.lake_number(oid, number), column and storable(column), storable(comment)
            )
            for oid, number, column, comment in read_comments(connection, names)
            if column is None or not self._leaves_out(names[oid], column)
        ]
        before = self._table.read()
        after = comments_after(before, found, polled)
        if {*after} != {each for rows in before.values() for each in rows}:
            self._table.replace(after)

    def _follows(self, name: TableName) -> bool:
        rule = self._config.rule_for(name)
        return rule is not None and rule.source_comments

    def _leaves_out(self, name: TableName, column: str) -> bool:
        """Return whether a column is kept out of the lake."""
        rule = self._config.rule_for(name)
        return rule is not None and rule.columns.excludes(column)
