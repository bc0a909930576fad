"""The fold of modes that keep the rows that are gone, as SQL that Spark and DuckDB run alike. Pure.

A TRUNCATE deletes every row before it: at keys with changes it becomes a step, and all other rows of silver
are marked by the commit. A delete sends no values, so each column keeps the value of the last step that did.

    soft_delete    one row per key. op U has values, and is_deleted shows whether the row is gone; op D has
                   none, because no step of the input sent them, and marks silver's row
    history        per key, a row of op U for each version that a commit left, and one of op D, which ends
                   silver's version. Unchanged TOAST is that of the version before, in silver for the first
                   one (FROM_SILVER); `moved_in` is the key change from which a version inherits
    append         one row per change, op I, in the form of inserted rows
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.bronze.table_input import TruncatedAt
from pipeline.engine import Engine
from pipeline.silver.fold.fold import (
    FROM_SILVER,
    UNKNOWN,
    VALUE,
    Fold,
    column_state,
    is_present,
    is_sent,
    pick,
)
from pipeline.silver.fold.fold_sql import FoldSql, group_by, select
from pipeline.silver.fold.modes import (
    MARKINGS,
    inserted_values,
    metadata_columns,
    own_columns,
    truncate_marks,
)


def with_truncates(sql: FoldSql, steps: str) -> str:
    """Add a step D at each TRUNCATE to the keys that have a row before it."""
    fold, engine = sql.fold, sql.engine
    next_step = f"lead(sequence_key) OVER (PARTITION BY {', '.join(fold.key_names)} ORDER BY sequence_key)"
    found = f"SELECT *, {next_step} AS next_step FROM {steps}"
    numbered = select(
        "*",
        f"{_number(sql, 'sequence_key')} AS number",
        f"{_number(sql, 'next_step')} AS next_number",
        source=f"({found}) AS f",
    )
    truncates = " UNION ALL ".join(
        f"SELECT {number} AS number, {engine.cast(str(each.commit_lsn), 'BIGINT')} AS lsn, "
        f"{engine.cast(str(each.ordinal), 'BIGINT')} AS place, {engine.timestamp(each.micros)} AS time"
        for number, each in enumerate(fold.truncates)
    )
    columns = {name: name for name in fold.key_names} | {
        "sequence_key": engine.struct(
            {"commit_lsn": "t.lsn", "ordinal": "t.place", "part": "CAST(0 AS INT)"}
        ),
        "is_key_change": "false",
        "step": "'D'",
        "commit_lsn": "t.lsn",
        "commit_time": "t.time",
        "relation_version": "relation_version",
        "new": engine.null("ARRAY<STRING>"),
    }
    if fold.partial:
        columns["unsent"] = engine.null("ARRAY<INT>")
    deletes = select(
        *(f"{value} AS {name}" for name, value in columns.items()),
        source=f"({numbered}) AS n JOIN ({truncates}) AS t ON n.number = t.number",
    )
    return (
        f"{select(*columns, source=steps)} UNION ALL {deletes} "
        "WHERE step <> 'D' AND n.number IS DISTINCT FROM n.next_number"
    )


def _number(sql: FoldSql, key: str) -> str:
    """Return SQL for the number of the first TRUNCATE after a sequence key, NULL if there is none."""
    before = " ".join(
        f"WHEN {key}.commit_lsn < {each.commit_lsn} "
        f"OR ({key}.commit_lsn = {each.commit_lsn} AND {key}.ordinal < {each.ordinal}) THEN {number}"
        for number, each in enumerate(sql.fold.truncates)
    )
    return f"CASE WHEN {key} IS NULL THEN NULL {before} END"


def soft_deletes(sql: FoldSql, steps: str) -> str:
    """Return one row per key: its last step decides whether it is gone, the last with values has them."""
    fold, engine = sql.fold, sql.engine
    last = engine.latest({name: name for name in ("step", "commit_lsn", "commit_time")}, "sequence_key")
    newest = engine.latest({name: name for name in ("relation_version", "new")}, "sequence_key")
    partial = (
        f"{engine.latest({'value': column_state(fold, i, engine)}, 'sequence_key')} "
        f"FILTER (WHERE step <> 'D' AND (step <> 'U' OR {is_sent(fold, i, engine)})) AS p{i}"
        for i in fold.partial
    )
    aggregates = (f"{last} AS last_step", f"{newest} FILTER (WHERE step <> 'D') AS newest", *partial)
    grouped = select(*fold.key_names, *aggregates, source=steps) + group_by(fold.key_names)
    return select(
        *fold.key_names,
        "CASE WHEN newest.relation_version IS NULL THEN 'D' ELSE 'U' END AS op",
        "last_step.commit_lsn AS commit_lsn",
        "last_step.commit_time AS commit_time",
        *(f"{sql.text(i)} AS x{i}" for i in range(len(fold.columns))),
        *(f"p{i}.value.state AS s{i}" for i in fold.partial),
        "last_step.step = 'D' AS is_deleted",
        "CASE WHEN last_step.step = 'D' THEN last_step.commit_time END AS deleted_at",
        source=f"({grouped}) AS g",
    )


def versions(sql: FoldSql, steps: str) -> str:
    """Return the versions that commits left at each key, and what ends the version that silver has.

    A version that a commit makes and ends itself is none: the last step of a commit at a key decides. With
    intermediate versions each step does.
    """
    fold = sql.fold
    keys, numbers = ", ".join(fold.key_names), range(len(fold.columns))
    states = (
        f"max(CASE WHEN {sql.determines(i)} THEN {_stated(sql, i)} END) "
        f"OVER (PARTITION BY {keys}, segment ORDER BY sequence_key) AS p{i}"
        for i in fold.partial
    )
    moved = f"CASE WHEN step = 'K' THEN {sql.key_change} END"
    stated = select(
        "*",
        *states,
        f"max({moved}) OVER (PARTITION BY {keys}, segment) AS moved_in",
        f"row_number() OVER (PARTITION BY {keys}, commit_lsn ORDER BY sequence_key DESC) AS from_end",
        source=f"({sql.with_segments(steps)}) AS n",
    )
    in_order = f"OVER (PARTITION BY {keys} ORDER BY sequence_key)"
    last = select(
        "*",
        f"lead(commit_lsn) {in_order} AS next_lsn",
        f"lead(commit_time) {in_order} AS next_time",
        f"row_number() {in_order} AS number",
        source=f"({stated}) AS s" if fold.has_intermediate else f"({stated}) AS s WHERE from_end = 1",
    )
    texts = (f"{sql.text(i, row='')} AS x{i}" for i in numbers)
    own = f"CASE WHEN segment = 0 THEN {FROM_SILVER} ELSE {UNKNOWN} END"
    found = select(
        *fold.key_names,
        "'U' AS op",
        "commit_lsn",
        "commit_time",
        *texts,
        *(f"coalesce(p{i}.value.state, {own}) AS s{i}" for i in fold.partial),
        "commit_lsn AS valid_from_lsn",
        "commit_time AS valid_from_time",
        "next_lsn AS valid_to_lsn",
        "next_time AS valid_to_time",
        "next_lsn IS NULL AS is_current",
        *(["sequence_key.ordinal AS valid_from_ordinal"] if fold.has_intermediate else []),
        "moved_in",
        source="l",
    )
    ends = _ends_of_versions(sql)
    return f"WITH l AS ({last}) {found} WHERE step <> 'D' UNION ALL {ends} WHERE number = 1"


def _ends_of_versions(sql: FoldSql) -> str:
    """Return the rows that end the version which silver has of each key: at its first step, or a TRUNCATE."""
    fold, engine = sql.fold, sql.engine
    end_lsn, end_time = "commit_lsn", "commit_time"
    if fold.truncates:
        first = fold.truncates[0]
        end_time = (
            f"CASE WHEN commit_lsn > {first.commit_lsn} THEN {engine.timestamp(first.micros)} "
            f"ELSE {end_time} END"
        )
        end_lsn = f"least(commit_lsn, {engine.cast(str(first.commit_lsn), 'BIGINT')})"
    return select(
        *fold.key_names,
        "'D' AS op",
        "commit_lsn",
        "commit_time",
        *(f"{engine.null('STRING')} AS x{i}" for i in range(len(fold.columns))),
        *(f"{engine.cast('NULL', 'INT')} AS s{i}" for i in fold.partial),
        f"{engine.null('BIGINT')} AS valid_from_lsn",
        f"{engine.null('TIMESTAMP')} AS valid_from_time",
        f"{end_lsn} AS valid_to_lsn",
        f"{end_time} AS valid_to_time",
        "false AS is_current",
        *([f"{engine.null('BIGINT')} AS valid_from_ordinal"] if fold.has_intermediate else []),
        "CASE WHEN false THEN moved_in END AS moved_in",
        source="l",
    )


def _stated(sql: FoldSql, i: int) -> str:
    value = column_state(sql.fold, i, sql.engine)
    return sql.engine.struct({"sequence_key": "sequence_key", "value": value})


def with_moves(sql: FoldSql, found: str, segments: str) -> str:
    """Replace what versions inherit by the values of the segment that moved, and add their base keys."""
    pairs = list(zip(sql.fold.key_names, sql.base_keys, strict=True))
    return select(
        *sql.inheriting_columns(),
        *(f"CASE WHEN f.moved_in IS NULL THEN f.{key} ELSE l.{base} END AS {base}" for key, base in pairs),
        source=f"{found} AS f LEFT JOIN {segments} AS l ON f.moved_in = l.moved_out",
    )


def appended(sql: FoldSql, changes: str) -> str:
    """Return one row per change: its new values, of a delete the old ones that were sent.

    A value that was not sent is the old row's if that was sent; else its column is in `unchanged`.
    """
    fold, engine = sql.fold, sql.engine
    texts = []
    for i in range(len(fold.columns)):
        new, old = pick(fold, i, "new", engine=engine), pick(fold, i, "old", engine=engine)
        is_old = "op = 'D'"
        if i in fold.partial:
            is_old = f"op = 'D' OR (op IN ('I', 'U') AND {_is_unsent(fold, i, engine)})"
        texts.append(f"CASE WHEN {is_old} THEN {old} ELSE {new} END AS x{i}")
    listed = {i: f"op IN ('I', 'U') AND {is_unchanged(sql, i)}" for i in fold.partial}
    return select(
        "'I' AS op",
        "commit_lsn",
        "commit_time",
        *texts,
        *(f"{VALUE} AS s{i}" for i in fold.partial),
        "op AS change_op",
        "ordinal",
        f"CASE WHEN old IS NOT NULL THEN {_old_values(sql)} END AS old_values",
        f"{unchanged_names(fold, engine, listed)} AS unchanged",
        source=changes,
    )


def is_unchanged(sql: FoldSql, i: int) -> str:
    """Return SQL that is true if a change sent no value of column i, neither before it nor after it."""
    return f"{_is_unsent(sql.fold, i, sql.engine)} AND {pick(sql.fold, i, 'old', engine=sql.engine)} IS NULL"


def _is_unsent(fold: Fold, i: int, engine: Engine) -> str:
    return f"{is_present(fold, i)} AND NOT {is_sent(fold, i, engine)}"


def unchanged_names(fold: Fold, engine: Engine, listed: Mapping[int, str]) -> str:
    """Return SQL for the names of the source's columns whose condition is true, NULL if none is."""
    names = [
        f"CASE WHEN {condition} THEN {engine.literal(fold.columns[i].name)} END"
        for i, condition in listed.items()
        if not fold.columns[i].is_sidecar
    ]
    if not names:
        return engine.null("ARRAY<STRING>")
    found = engine.filter(engine.array(*names), "e IS NOT NULL")
    return f"nullif({found}, {engine.cast(engine.array(), 'ARRAY<STRING>')})"


def compared(sql: FoldSql, copied: str, mark: TruncatedAt) -> str:
    """Return the folded rows by which `silver` gets the rows of a copy, given these by key and typed.

    Rows that are equal stay as they are. `mark` has the LSN and time of the copy. A column that the source
    does not have any more keeps its value.
    """
    fold, engine = sql.fold, sql.engine
    numbers, keys = range(len(fold.columns)), [*zip(fold.key_names, fold.key, strict=True)]
    assert fold.current_column is not None
    is_current = MARKINGS[fold.mode].is_current(f"t.{engine.quoted(fold.current_column)}")
    rows = select(
        *(f"t.{engine.quoted(column.name)} AS v{i}" for i, column in enumerate(fold.columns)),
        f"{is_current} AS is_shown",
        "true AS is_found",
        source="silver AS t",
    )
    if fold.mode == "history":
        rows += f" WHERE {is_current}"
    copied = f"(SELECT *, true AS is_copied FROM {copied} WHERE op <> 'D') AS n"
    same, differs = [], []
    for name, i in keys:
        kind = fold.columns[i].type
        same.append(" = ".join(kind.comparable(value, engine) for value in (f"n.{name}", f"t.v{i}")))
    for i, column in enumerate(fold.columns):
        if column.indexes:
            both = (column.type.canonical_value(value, engine) for value in (f"n.c{i}", f"t.v{i}"))
            differs.append(" IS DISTINCT FROM ".join(both))
    on, is_other = " AND ".join(same), f"({' OR '.join(differs)})"
    texts = [f"n.x{i} AS x{i}" for i in numbers if not fold.columns[i].type.is_total]
    commit = (
        f"{engine.cast(str(mark.commit_lsn), 'BIGINT')} AS commit_lsn",
        f"{engine.timestamp(mark.micros)} AS commit_time",
    )
    written = select(
        "'U' AS op",
        *commit,
        *(f"n.{name} AS {name}" for name, _ in keys),
        *(
            f"n.c{i} AS c{i}"
            if fold.columns[i].indexes
            else f"CASE WHEN t.is_found THEN t.v{i} ELSE n.c{i} END AS c{i}"
            for i in numbers
        ),
        *texts,
        source=f"{copied} LEFT JOIN ({rows}) AS t ON {on} "
        f"WHERE t.is_found IS NULL OR NOT t.is_shown OR {is_other}",
    )
    own = own_columns(fold.mode, has_intermediate=fold.has_intermediate)
    values = inserted_values(
        fold.mode, engine, has_intermediate=fold.has_intermediate, ordinal=engine.null("BIGINT")
    )
    written = select("*", *(f"{values[name]} AS {name}" for name in own), source=f"({written}) AS w")
    # a version that is over ends, and the row of a deleted key keeps its values
    is_gone = f"n.is_copied IS NULL OR {is_other}" if fold.mode == "history" else "n.is_copied IS NULL"
    marks = truncate_marks(fold.mode, mark, engine)
    columns = metadata_columns(fold.mode, has_commit=False, has_intermediate=fold.has_intermediate)
    nulls = {column.source: engine.null(column.ddl) for column in columns}
    gone = select(
        "'D' AS op",
        *commit,
        *(f"t.v{i} AS {name}" for name, i in keys),
        *(f"n.c{i} AS c{i}" for i in numbers),
        *texts,
        *(f"{marks.get(name, nulls[name])} AS {name}" for name in own),
        source=f"({rows}) AS t LEFT JOIN {copied} ON {on} WHERE t.is_shown AND ({is_gone})",
    )
    return f"{written} UNION ALL {gone}"


def _old_values(sql: FoldSql) -> str:
    """Return SQL for the JSON object of the values in the old tuple of a change, without those NULL."""
    fold, engine = sql.fold, sql.engine
    columns = [(i, column) for i, column in enumerate(fold.columns) if not column.is_sidecar]
    return engine.json_object(
        [(column.name, pick(fold, i, "old", engine=engine)) for i, column in columns if column.indexes]
    )
