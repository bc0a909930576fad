"""The fold of mode `mirror`, as SQL that Spark and DuckDB run alike: the last step of each key decides. Pure.

The tuple of the last step is carried along. DuckDB copies tuples slowly, so of many changes it finds the
places of the last steps first, and looks up these alone: the columns of a wide table are read once for each
row that is left.
"""

from __future__ import annotations

from pipeline.silver.fold.fold import column_state, is_sent
from pipeline.silver.fold.fold_sql import FoldSql, group_by, select

_PLACE = (
    "CAST({row}.sequence_key.commit_lsn AS HUGEINT) * 18446744073709551616 "
    "+ {row}.sequence_key.ordinal * 2 + {row}.sequence_key.part"
)
"""DuckDB's SQL for a number in the order of steps: it compares structs slowly."""


def newest_steps(sql: FoldSql, steps: str, *, looks_up: bool) -> str:
    """Return one row per key: `newest`, its last step, and p<i>, the last that sent a partial column.

    If `folded_rows` looks steps up, `newest` is the place of the step.
    """
    fold, engine = sql.fold, sql.engine
    if looks_up:
        last = f"max({_PLACE.format(row='s')}) AS newest"
    else:
        names = ("step", "commit_lsn", "commit_time", "relation_version", "new")
        last = f"{engine.latest({name: name for name in names}, 'sequence_key')} AS newest"
    partial = (
        f"{engine.latest({'value': column_state(fold, i, engine)}, 'sequence_key')} "
        f"FILTER (WHERE step <> 'U' OR {is_sent(fold, i, engine)}) AS p{i}"
        for i in fold.partial
    )
    return select(*fold.key_names, last, *partial, source=f"{steps} AS s") + group_by(fold.key_names)


def folded_rows(sql: FoldSql, newest: str, steps: str, *, looks_up: bool) -> str:
    """Return one row per key, with its texts, given `newest_steps`."""
    fold, source, row = sql.fold, f"{newest} AS g", "newest"
    if looks_up:  # DuckDB keeps the right side of a join in memory
        on = [f"{_PLACE.format(row='l')} = g.newest"]
        on += [f"g.{key} IS NOT DISTINCT FROM l.{key}" for key in fold.key_names]
        source, row = f"{steps} AS l JOIN {source} ON {' AND '.join(on)}", "l"
    return select(
        *(f"g.{key} AS {key}" for key in fold.key_names),
        f"CASE WHEN {row}.step = 'D' THEN 'D' ELSE 'U' END AS op",
        f"{row}.commit_lsn AS commit_lsn",
        f"{row}.commit_time AS commit_time",
        *(f"{sql.text(i, f'{row}.', 'g.')} AS x{i}" for i in range(len(fold.columns))),
        *(f"p{i}.value.state AS s{i}" for i in fold.partial),
        source=source,
    )
