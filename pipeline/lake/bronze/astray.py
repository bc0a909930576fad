"""Changes of a table that came under another name, before others came under its own again."""

from dataclasses import dataclass

from pyspark.sql import functions as F

from pipeline.lake.tables import LakeTable
from pipeline.protocol.lsn import LSN
from pipeline.rules import TableName
from pipeline.silver.fold import literal


@dataclass(frozen=True, slots=True)
class Astray:
    """The last change of a table that came under another name."""

    lsn: LSN
    name: TableName


def last_astray(
    changes: LakeTable, oid: int, name: TableName, after: LSN, upto: LSN, *, has_rows: bool
) -> Astray | None:
    """Return the last change of a table under another name that one under its own follows, between positions.

    With `has_rows` silver has what came before the first position; else what came before the first change
    under the own name is not what it lacks.
    """
    rows = changes.frame().where(
        f"op IN ('I', 'U', 'D', 'T') AND relation_id = {oid} "
        f"AND end_lsn > {int(after)} AND end_lsn <= {int(upto)}"
    )
    is_own = f"(schema_name = {literal(name[0])} AND table_name = {literal(name[1])})"
    place = "struct(commit_lsn, ordinal)"
    first, last = F.expr(f"min({place})").alias("first"), F.expr(f"max({place})").alias("last")
    own = rows.where(is_own).agg(first, last).head()
    if own is None or own["last"] is None:
        return None
    begin = "true" if has_rows else f"{place} > {_place(own['first'])}"
    others = rows.where(f"NOT {is_own} AND {begin} AND {place} < {_place(own['last'])}")
    newest = F.expr("max(struct(commit_lsn, ordinal, schema_name, table_name))").alias("newest")
    for row in others.agg(newest).where("newest IS NOT NULL").collect():
        return Astray(LSN(row.newest.commit_lsn), (row.newest.schema_name, row.newest.table_name))
    return None


def _place(found: tuple[int, int]) -> str:
    return f"struct({found[0]}L AS commit_lsn, {found[1]}L AS ordinal)"
