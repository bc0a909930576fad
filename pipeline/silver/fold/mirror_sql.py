"""The fold of mode `mirror`, as SQL that Spark and DuckDB run alike: the last step of each key decides. Pure.

The tuple of the last step is carried along, and the last text of each column that some steps do not send.
DuckDB copies tuples slowly, so of many changes it finds the places of the last steps first, and looks up
these alone: the columns of a wide table are read once for each row that is left, and long texts once.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.silver.fold.fold import column_state, is_sent
from pipeline.silver.fold.fold_sql import FoldSql, group_by, select

_PLACE = (
    "CAST({row}.sequence_key.commit_lsn AS HUGEINT) * 18446744073709551616 "
    "+ {row}.sequence_key.ordinal * 2 + {row}.sequence_key.part"
)
"""DuckDB's SQL for a number in the order of steps: it compares structs slowly."""


def newest_steps(sql: FoldSql, steps: str, *, looks_up: bool) -> str:
    """Return one row per key: `newest`, its last step, and p<i>, the last that sent a partial column.

    If `folded_rows` looks steps up, these are their places.
    """
    fold, engine = sql.fold, sql.engine

    def last(fields: Mapping[str, str]) -> str:
        return f"max({_PLACE.format(row='s')})" if looks_up else engine.latest(fields, "sequence_key")

    names = ("step", "commit_lsn", "commit_time", "relation_version", "new")
    partial = (
        f"{last({'value': column_state(fold, i, engine)})} "
        f"FILTER (WHERE step <> 'U' OR {is_sent(fold, i, engine)}) AS p{i}"
        for i in fold.partial
    )
    newest = f"{last({name: name for name in names})} AS newest"
    return select(*fold.key_names, newest, *partial, source=f"{steps} AS s") + group_by(fold.key_names)


def folded_rows(sql: FoldSql, newest: str, steps: str, *, looks_up: bool) -> str:
    """Return one row per key, with its texts, given `newest_steps`."""
    if looks_up and sql.fold.partial:
        return _looked_up_columns(sql, newest, steps)
    row = "l" if looks_up else "newest"
    source = _looked_up(sql, steps, newest, "newest") if looks_up else f"{newest} AS g"
    return select(
        *(f"g.{key} AS {key}" for key in sql.fold.key_names),
        *(f"{value} AS {name}" for name, value in _values_of_step(sql, row).items()),
        *(f"p{i}.value.state AS s{i}" for i in sql.fold.partial),
        source=source,
    )


def _values_of_step(sql: FoldSql, row: str) -> dict[str, str]:
    """Return SQL for the values that a key has of its last step, by name."""
    texts = {f"x{i}": sql.text(i, f"{row}.", "g.") for i in range(len(sql.fold.columns))}
    return {
        "op": f"CASE WHEN {row}.step = 'D' THEN 'D' ELSE 'U' END",
        "commit_lsn": f"{row}.commit_lsn",
        "commit_time": f"{row}.commit_time",
        **texts,
    }


def _looked_up(sql: FoldSql, steps: str, places: str, place: str) -> str:
    """Return the join of places of steps `g`, which DuckDB keeps in memory, with these steps `l`."""
    on = [f"{_PLACE.format(row='l')} = g.{place}"]
    on += [f"g.{key} IS NOT DISTINCT FROM l.{key}" for key in sql.fold.key_names]
    return f"{steps} AS l JOIN {places} AS g ON {' AND '.join(on)}"


def _looked_up_columns(sql: FoldSql, newest: str, steps: str) -> str:
    """Return the folded rows of keys whose columns were sent last by different steps, one or a few a key."""
    fold, engine = sql.fold, sql.engine
    places = ("newest", *(f"p{i}" for i in fold.partial))
    needed = select("*", f"unnest(list_distinct([{', '.join(places)}])) AS place", source=newest)

    def only(value: str, place: str) -> str:
        return f"max({value}) FILTER (WHERE g.place = g.{place})"

    values = {name: only(value, "newest") for name, value in _values_of_step(sql, "l").items()}
    for i in fold.partial:
        state = column_state(fold, i, engine)
        values |= {f"x{i}": only(f"{state}.text", f"p{i}"), f"s{i}": only(f"{state}.state", f"p{i}")}
    keys = [f"g.{key}" for key in fold.key_names]
    columns = [f"g.{key} AS {key}" for key in fold.key_names]
    columns += [f"{value} AS {name}" for name, value in values.items()]
    return select(*columns, source=_looked_up(sql, steps, f"({needed})", "place")) + group_by(keys)
