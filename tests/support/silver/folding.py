"""Histories of many small tables, folded side by side by the pipeline's own planning and SQL.

Every history gets a column `seed` of its own that is part of the key, so that one query folds all of
them as rows of one table. What a MERGE would do with the folded rows is done here in plain Python.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from pipeline.bronze.source_relations import SourceColumn, SourceRelation
from pipeline.bronze.table_input import Survey
from pipeline.config.tables import TableRule
from pipeline.delta.schema import TableSchema
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.duckdb_sql import DuckSql
from pipeline.silver.fold.fold import INHERITED, Fold
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.modes import MetadataNames
from pipeline.silver.fold.spark_sql import SparkSql
from pipeline.silver.fold.sql_session import (
    SqlSession,
    count_images,
    fold_by_key,
    follow_key_changes,
    net_images,
)
from pipeline.silver.fold.write import image_of_row
from pipeline.silver.fold.write_plan import (
    Identity,
    TableInput,
    WriteStep,
    fold_signature,
    identity_of,
    plan_fold,
)
from pipeline.silver.types.types import stored
from tests.support.histories import History
from tests.support.model import ModelChange, Shape, Text

Values: TypeAlias = tuple[Any, ...]

CHANGES = (
    "commit_lsn BIGINT, ordinal BIGINT, commit_time TIMESTAMP, op STRING, relation_version BIGINT, "
    "old_kind STRING, old ARRAY<STRING>, new ARRAY<STRING>, unsent ARRAY<INT>"
)
NO_METADATA = MetadataNames(None, None)
SOME_TIME = datetime(2024, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Column:
    """How a column of the model is typed: the text for each of the model's texts, and the value of a text."""

    type_oid: int
    ddl: str
    text: Callable[[str], str] = str
    value: Callable[[str], Any] = str
    modifier: int = -1


_DOUBLES = {"x": "-0", "y": "1.5", "": "NaN"}
_DATES = {"x": "2024-01-01", "y": "infinity", "": "0001-01-01"}  # a misfit is NULL in silver
INTEGER = Column(1700, "DECIMAL(38,0)", value=Decimal, modifier=(38 << 16) + 4)
PLAIN = Column(25, "STRING")
COLUMNS = {
    "k": INTEGER,
    "k1": INTEGER,
    "k2": PLAIN,
    "seed": Column(23, "INT", value=int),
    "a": Column(701, "DOUBLE", lambda t: _DOUBLES.get(t, t), float),
    "b": Column(
        1082, "DATE", lambda t: _DATES[t], lambda t: None if t == "infinity" else date.fromisoformat(t)
    ),
    "big": Column(1009, "ARRAY<STRING>", lambda t: f'{{"{t}",NULL}}', lambda t: [t[2:-7], None]),
}


def column_of(name: str) -> Column:
    return COLUMNS.get(name, PLAIN)


def value_of(name: str, text: Text) -> Any:
    """Return what silver holds for a text of the model."""
    column = column_of(name)
    return None if text is None else column.value(column.text(text))


@dataclass
class Lineage:
    """One history and how far it is folded: rounds of changes that have one identity each, and the rows."""

    seed: int
    history: History
    rounds: list[tuple[bool, list[tuple[ModelChange, int, int]]]]
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Folding:
    """Folds lineages round by round."""

    session: SqlSession
    lineages: list[Lineage]
    versions: dict[Shape, int] = field(default_factory=dict)
    relations: dict[int, SourceRelation] = field(default_factory=dict)
    linked: int = 0

    def run(self) -> None:
        """Fold everything, all lineages' rounds of one kind and number in one go."""
        for number in range(max(len(lineage.rounds) for lineage in self.lineages)):
            groups: dict[tuple[object, ...], list[Lineage]] = {}
            for lineage in self.lineages:
                if number < len(lineage.rounds):
                    truncates, changes = lineage.rounds[number]
                    if truncates:
                        lineage.rows.clear()
                    if changes:
                        relation = self.relations[self.version(changes[0][0].shape)]
                        groups.setdefault(fold_signature(relation), []).append(lineage)
            for group in groups.values():
                self.fold(group, [(x.seed, x.rounds[number][1]) for x in group])

    def version(self, shape: Shape) -> int:
        """Return the relation version of a shape; the same shape of another history is the same one."""
        shape = replace(shape, toast=frozenset())
        if shape not in self.versions:
            version = self.versions[shape] = 100 + len(self.versions)
            names = (*shape.columns, "seed")
            columns = tuple(
                SourceColumn(
                    name=name,
                    type_oid=column_of(name).type_oid,
                    type_modifier=column_of(name).modifier,
                    is_key=name == "seed" or shape.identity == "f" or place in shape.flagged,
                    attribute_number=1,
                    base_oid=column_of(name).type_oid,
                    base_modifier=column_of(name).modifier,
                )
                for place, name in enumerate(names)
            )
            self.relations[version] = SourceRelation(version, 1, "public", "t", shape.identity, columns)
        return self.versions[shape]

    def fold(
        self, group: list[Lineage], rounds: list[tuple[int, list[tuple[ModelChange, int, int]]]]
    ) -> None:
        rows = [self.bronze_row(seed, *placed) for seed, changes in rounds for placed in changes]
        surveys = self.surveys(rows)
        versions = tuple(s.version for s in surveys)
        identity = identity_of(self.relations[versions[0]])
        table = TableInput(surveys, self.relations, LSN(1))
        cut = WriteStep(identity, versions, (0, 0), (1, 0), replaces=False, end_lsn=LSN(1))
        names = {name: None for x in group for row in x.rows for name in row}
        names |= {c.name: None for v in versions for c in self.relations[v].columns}
        fold = plan_fold(table, cut, {name: stored(column_of(name).ddl) for name in names}, TableRule("*.*"))
        self.session.clear()
        add_rows(self.session, "changes", rows, CHANGES)
        ddl = ", ".join(f"`{name}` {column_of(name).ddl}" for name in names)
        before = [row for x in group for row in x.rows]
        values = [tuple(row.get(n) for n in names) for row in before]
        add_rows(self.session, "silver", values, ddl)
        after = self.keyed(fold, before) if identity is Identity.KEY else self.bag(fold)
        for lineage in group:
            lineage.rows = []
        by_seed = {x.seed: x for x in group}
        for row in after:
            by_seed[row["seed"]].rows.append(row)

    def bronze_row(self, seed: int, change: ModelChange, lsn: int, ordinal: int) -> Values:
        names = change.shape.columns

        def texts(cells: Sequence[Text] | None) -> list[Text] | None:
            if cells is None:
                return None
            shown = zip(names, cells, strict=True)
            return [None if text is None else column_of(name).text(text) for name, text in shown] + [
                str(seed)
            ]

        unsent = sorted(change.unsent) or None
        version = self.version(change.shape)
        old, new = texts(change.old), texts(change.new)
        return (lsn, ordinal, SOME_TIME, change.op, version, change.old_kind, old, new, unsent)

    def surveys(self, rows: Iterable[Values]) -> tuple[Survey, ...]:
        """Survey the changes as `Bronze.survey` does."""
        found: dict[int, Survey] = {}
        for lsn, ordinal, _, op, version, old_kind, _, _, unsent in rows:
            place = lsn, ordinal
            survey = found.setdefault(version, Survey(version, place, place))
            found[version] = replace(
                survey,
                first=min(survey.first, place),
                last=max(survey.last, place),
                updates=survey.updates + (op == "U"),
                key_tuples=survey.key_tuples + (op == "U" and old_kind is not None),
                unchanged_toast=survey.unchanged_toast | frozenset(unsent or ()),
            )
        return tuple(found.values())

    def keyed(self, fold: Fold, before: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Fold by key as `StepWriter` does, and merge."""
        session, sql = self.session, FoldSql(fold, self.session.engine)
        fold_by_key(session, sql)
        source = sql.typed("by_key")
        if fold.has_key_changes and fold.partial:
            self.linked += 1
            follow_key_changes(session, sql)
            source = sql.from_silver("moved", "silver")
        names = [column.name for column in fold.columns]
        key = [names[i] for i in fold.key]
        rows = {tuple(row[name] for name in key): row for row in before}
        for found in rows_of(session, source):
            place = tuple(found[k] for k in fold.key_names)
            kept = rows.pop(place, {})
            if found["op"] != "D":
                states = {names[i]: found[f"s{i}"] for i in fold.partial}
                assert INHERITED not in states.values()
                sent = {name: found[f"c{i}"] for i, name in enumerate(names)}
                rows[place] = {
                    name: kept.get(name) if name in states and states[name] is None else sent[name]
                    for name in names
                }
        return iter(rows.values())

    def bag(self, fold: Fold) -> Iterator[dict[str, Any]]:
        """Move copies as `StepWriter` does."""
        session, sql, columns = self.session, FoldSql(fold, self.session.engine), fold.columns
        net_images(session, sql)
        count_images(session, sql, "silver")
        plain = Fold(tuple(replace(c, is_partial=False) for c in columns), (), fold.versions)
        session.define("added", sql.added_rows("counted"))
        values = ", ".join(f"c{i}" for i in range(len(columns)))
        ranked = sql.ranked_rows("counted", "silver", NO_METADATA, sql.silver_values())
        image = image_of_row(columns, "t", session.engine)
        named = ", ".join(sql.silver_values())
        untouched = (
            f"SELECT {named} FROM silver AS t WHERE NOT EXISTS (SELECT 1 FROM counted AS c "
            f"WHERE c.new_count < c.silver_count AND c.image = {image})"
        )
        everything = (
            f"SELECT {values} FROM ({FoldSql(plain, session.engine).typed('added')}) AS a UNION ALL "
            f"SELECT {values} FROM ({ranked}) AS r WHERE rank <= new_count UNION ALL {untouched}"
        )
        for row in rows_of(session, everything):
            yield {column.name: row[f"c{i}"] for i, column in enumerate(columns)}


def rows_of(session: SqlSession, query: str) -> list[dict[str, Any]]:
    """Return the rows of a query, by either engine."""
    found = session.table(query)
    return found.to_pylist() if isinstance(found, pa.Table) else [row.asDict() for row in found.collect()]


def add_rows(session: SqlSession, name: str, rows: Sequence[Values], ddl: str) -> None:
    """Add a relation of a few rows."""
    if isinstance(session, DuckSql):
        schema = TableSchema.of_ddl(ddl).arrow
        arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        session.add(name, pa.Table.from_arrays(arrays, schema=schema))
    else:
        assert isinstance(session, SparkSql)
        session.add(name, session.spark.createDataFrame(rows, ddl))


def lineage(seed: int, history: History, rng: Random, *, cuts: int) -> Lineage:
    """Cut a history into rounds: where the identity changes, behind a truncate, and anywhere."""
    names: dict[str, str] = {}

    def renamed(shape: Shape) -> Shape:
        # A column that joins is `c<serial>`: as the first, second … of its history it is that of others too.
        columns = tuple(
            names.setdefault(name, f"e{len(names)}") if name[0] == "c" else name for name in shape.columns
        )
        return replace(shape, columns=columns)

    changes = [replace(change, shape=renamed(change.shape)) for change in history.changes]
    whole = history._replace(
        shape=renamed(history.shape),
        changes=changes,
        final=[{names.get(n, n): v for n, v in row.items()} for row in history.final],
    )
    rows = [{n: value_of(n, v) for n, v in row.items()} | {"seed": seed} for row in history.initial]
    result = Lineage(seed, whole, [], rows)
    at = {0, *rng.sample(range(len(changes)), cuts)}
    known: tuple[object, ...] | None = None
    # A place in the WAL is one change's only, of whatever table.
    lsn, ordinal = 1_000_000 * (seed + 1), 0
    for place, change in enumerate(changes):
        kind = (change.shape.identity, change.shape.flagged if change.shape.identity != "f" else change.shape)
        if (change.op != "T" and known != kind) or place in at:
            result.rounds.append((False, []))
            known = kind
        if change.op == "T":
            # As in `plan_cuts`, what is before it in its round is irrelevant.
            result.rounds[-1:] = [(True, [])]
            continue
        if rng.random() < 0.4:
            lsn, ordinal = lsn + 10, 0
        result.rounds[-1][1].append((change, lsn, ordinal))
        ordinal += 1
    return result


def counted(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Counter[str]:
    """Return rows as a multiset in which NaN equals NaN and -0 differs from 0."""
    return Counter(repr([row.get(name) for name in names]) for row in rows)


def expected(history: History) -> list[dict[str, Any]]:
    """Return the source's rows at the end, as silver holds them."""
    return [{name: value_of(name, text) for name, text in row.items()} for row in history.final]
