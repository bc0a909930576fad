"""Compare a silver table with its model: the model's texts become rows of a temporary table at the source.

So both sides are read as in all other tests: the server writes the values of its types as texts, and silver's
are made comparable with them.
"""

from collections import Counter
from functools import lru_cache
from typing import Any

import pyarrow.compute as pc
from psycopg import sql

from pipeline.bronze.log import Bronze
from pipeline.delta.table import Lake, LakeTable
from pipeline.table_name import TableName
from tests.support.comparable.arrow import arrow_rows
from tests.support.comparable.silver import silver_path
from tests.support.comparable.source import Connection, Rows, snapshot, source_columns, source_rows
from tests.support.modes.changes import read_changes
from tests.support.modes.models import MODELS, Model


@lru_cache(maxsize=1)
def bronze_of(root: str, pipeline: str) -> Bronze:
    """Return a bronze log, which keeps the relation versions that it has read."""
    return Bronze(Lake(root), pipeline)


def model_of(root: str, pipeline: str, mode: str, name: TableName, end_lsn: int | None = None) -> Model:
    """Return the model of a table, fed with what bronze has up to an LSN."""
    model = MODELS[mode]()
    model.feed(read_changes(bronze_of(root, pipeline), name, end_lsn))
    return model


def rows_of_model(conn: Connection, name: TableName, model: Model) -> tuple[list[str], Rows]:
    """Return the columns of a model and its rows, as the server writes them."""
    target = sql.Identifier("pg_temp", name.table)
    source = sql.Identifier(*name)
    types = {column: f"{kind}" for column, kind in model.OWN.items()}
    columns = [column.name for column in source_columns(conn, *name)]
    with conn.transaction():
        conn.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} AS SELECT * FROM {} WITH NO DATA").format(
                sql.Identifier(name.table), source
            )
        )
        for column, kind in types.items():
            addition = sql.SQL("ALTER TABLE {} ADD {} {}").format(
                target,
                sql.Identifier(column),
                sql.SQL(kind),
            )
            conn.execute(addition)
        found = conn.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0",
            [target.as_string(conn)],
        ).fetchall()
        values = sql.SQL(", ").join(sql.SQL("%s::" + kind) for _, kind in found)
        rows: list[list[Any]] = [[row.get(column) for column, _ in found] for row in model.rows()]
        with conn.cursor() as cursor:
            cursor.executemany(sql.SQL("INSERT INTO {} VALUES ({})").format(target, values), rows)
    try:
        with snapshot(conn):
            wanted = source_rows(conn, "pg_temp", name.table)
    finally:
        conn.execute(sql.SQL("DROP TABLE {}").format(target))
    return [*columns, *types], wanted


def assert_equals_model(
    conn: Connection,
    root: str,
    pipeline: str,
    mode: str,
    name: TableName,
    end_lsn: int | None = None,
    condition: pc.Expression | None = None,
) -> int:
    """Assert that a silver table has exactly the rows of its model; return their number.

    Only silver's rows that satisfy a condition are compared, and only changes up to an LSN.
    """
    model = model_of(root, pipeline, mode, name, end_lsn)
    columns, wanted = rows_of_model(conn, name, model)
    path = silver_path(root, *name)
    if not LakeTable(path).exists():
        assert not wanted, name
        return 0
    known = {field.name for field in LakeTable(path).schema().fields}
    # a column that no change has announced yet is NULL in every row
    shown = [column for column in columns if column in known]
    places = [columns.index(column) for column in shown]
    assert all(row[i] is None for row in wanted for i, c in enumerate(columns) if c not in known), name
    expected: Rows = Counter()
    for row, count in wanted.items():
        expected[tuple(row[i] for i in places)] += count
    found = arrow_rows(path, shown, condition)
    sides = {"wanted": expected - found, "found": found - expected}
    # a text is shown whole
    assert found == expected, f"{name}\n" + "\n".join(
        f"{side} {count}: {dict(zip(shown, row, strict=True))}"
        for side, rows in sides.items()
        for row, count in [*rows.items()][:3]
    )
    return wanted.total()
