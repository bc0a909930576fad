"""Choose the rows of bronze that make the base of a table: at most one for each row that the table has.

The changes of a table up to an LSN are folded by their texts, by the SQL that folds them for silver too.
What is left is, for each row that exists there, the change or copied row that wrote it last. An update is
then an insert, and its unchanged TOAST gets the values of earlier changes. Each keeps its relation version
and its place in the order of changes, so that readers of bronze need not know of bases. Rows are in a
database of DuckDB in a folder, not in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bronze.copy_states import CompleteCopy
from pipeline.bronze.source_relations import PostgresType, Relations, SourceRelation
from pipeline.config.tables import TableRule
from pipeline.engine import DUCKDB
from pipeline.protocol.lsn import LSN
from pipeline.silver.fold.duckdb_sql import SETTINGS, DuckSql
from pipeline.silver.fold.fold import VALUE, Fold, FoldColumn
from pipeline.silver.fold.fold_sql import FoldSql
from pipeline.silver.fold.sql_session import fold_by_key, follow_key_changes
from pipeline.silver.fold.write import KeyRangesUnusable, bounds_are_values, key_range_condition
from pipeline.silver.fold.write_plan import Identity, identity_of, missing_value
from pipeline.silver.schema.column_mapping import align_versions
from pipeline.silver.types.text_parsers import STRING
from pipeline.silver.types.types import column_type
from pipeline.table_name import TableName

LOADED_COLUMNS = (
    "commit_lsn",
    "end_lsn",
    "ordinal",
    "commit_time",
    "op",
    "relation_version",
    "old_kind",
    "old",
    "new",
    "unsent",
    "copy_id",
)
_LOADED = (
    "commit_lsn BIGINT, end_lsn BIGINT, ordinal BIGINT, commit_time TIMESTAMPTZ, op VARCHAR, "
    "relation_version BIGINT, old_kind VARCHAR, old VARCHAR[], new VARCHAR[], unsent INTEGER[], "
    "copy_id BIGINT, table_number INTEGER, file INTEGER, place BIGINT, is_raw BOOLEAN"
)
_PLACE = "file INTEGER, place BIGINT"


class NotCompacted(Exception):
    """A table keeps all its changes; the text is the reason, a part of a sentence."""


@dataclass(frozen=True, slots=True)
class BaseInput:
    """The input of one table's base: its changes up to an LSN, from a copy on if there is one.

    Each of the partial copies replaces the rows of its keys, as apply does; whoever builds the table from the
    base does so once more, with the same result. A table that `is_gone` needs none of its rows. The last
    change of one that `has_other_names` stays: it shows that there were changes under this name. `number` is
    its number among the tables of a run.
    """

    number: int
    name: TableName
    end_lsn: LSN
    copy: CompleteCopy | None = None
    is_gone: bool = False
    has_other_names: bool = False
    partial_copies: tuple[CompleteCopy, ...] = ()  # in order

    @property
    def condition(self) -> str:
        """SQL that is true for the loaded rows that belong to the input."""
        found = f"op <> 'R' AND end_lsn <= {int(self.end_lsn)}"
        if self.copy is not None:
            found = f"(op = 'R' OR end_lsn <= {int(self.end_lsn)}) AND {self.copy.condition()}"
        return " OR ".join(f"({each})" for each in (found, *(p.condition() for p in self.partial_copies)))

    @property
    def commit_lsn(self) -> str:
        """SQL for the commit LSN by which the input is in order."""
        found = self.copy.commit_lsn() if self.copy else "commit_lsn"
        for each in self.partial_copies:
            found = f"CASE WHEN op = 'R' AND copy_id = {each.id} THEN {int(each.lsn)} ELSE {found} END"
        return found

    @property
    def removable(self) -> str:
        """SQL that is true for the loaded rows that go unless the base has them."""
        if self.is_gone:
            return f"op = 'R' OR end_lsn <= {int(self.end_lsn)}"
        last = max((each.id for each in (*self.partial_copies, self.copy) if each), default=-1)
        copied = f"copy_id <= {last}"
        return f"CASE WHEN op = 'R' THEN {copied} ELSE end_lsn <= {int(self.end_lsn)} END"


@dataclass(frozen=True, slots=True)
class BaseCounts:
    """What becomes of a table's rows: how many are removed, and how many copied rows of each copy stay."""

    removed: int
    copied: Mapping[int, int]


class BaseRows:
    """The rows of all tables of one run, and which of them stay."""

    def __init__(self, folder: Path, relations: Relations) -> None:
        import duckdb

        settings = {**SETTINGS, "temp_directory": str(folder)}
        self._connection = duckdb.connect(str(folder / "rows.duckdb"), config=settings)
        self._connection.execute("SET TimeZone = 'UTC'")
        self._session = DuckSql(self._connection)
        self._relations = relations
        for table in (
            f"loaded ({_LOADED})",
            f"kept ({_PLACE})",
            f"removed ({_PLACE})",
            f"replaced ({_PLACE}, op VARCHAR, new VARCHAR[], unsent INTEGER[])",
        ):
            self._connection.execute(f"CREATE TABLE {table}")

    def close(self) -> None:
        """Close the database."""
        self._session.close()

    def load(self, rows: pa.Table) -> None:
        """Add rows of `changes`: `LOADED_COLUMNS`, then table_number, file, place, is_raw."""
        self._session.add("arrived", rows)
        self._connection.execute("INSERT INTO loaded BY NAME SELECT * FROM arrived")

    def compact(self, table: BaseInput) -> BaseCounts:
        """Choose the rows of a table that stay; raise NotCompacted, and remove none, if all have to."""
        run = self._connection.execute
        run("BEGIN")
        try:
            if not table.is_gone:
                self._choose(table)
            counts = self._remove(table)
            run("COMMIT" if counts.removed else "ROLLBACK")
        except BaseException:
            run("ROLLBACK")
            raise
        finally:
            self._session.clear()
        return counts

    def removed_places(self, file: int) -> np.ndarray[Any, Any]:
        """Return the places of a file's rows that go."""
        query = f"SELECT place FROM removed WHERE file = {file} ORDER BY place"
        places: np.ndarray[Any, Any] = self._session.table(query).column("place").to_numpy()
        return places

    def replaced_rows(self, file: int) -> pa.Table:
        """Return the rows of a file that are written with other values: place, op, new, unsent."""
        query = f"SELECT place, op, new, unsent FROM replaced WHERE file = {file} ORDER BY place"
        return self._session.table(query)

    def changed_files(self) -> list[int]:
        """Return the numbers of the files with rows that go or change."""
        query = "SELECT file FROM removed UNION SELECT file FROM replaced ORDER BY file"
        return [row[0] for row in self._connection.execute(query).fetchall()]

    def _remove(self, table: BaseInput) -> BaseCounts:
        run = self._connection.execute
        mine = f"SELECT * FROM loaded WHERE table_number = {table.number} AND ({table.removable})"
        before = self._count("removed")
        run(
            f"INSERT INTO removed SELECT file, place FROM ({mine}) AS m "
            "WHERE NOT EXISTS (SELECT 1 FROM kept AS k WHERE k.file = m.file AND k.place = m.place)"
        )
        copied = run(
            f"SELECT copy_id, count(k.place) FROM ({mine}) AS m LEFT JOIN kept AS k USING (file, place) "
            "WHERE op = 'R' GROUP BY copy_id"
        ).fetchall()
        return BaseCounts(self._count("removed") - before, dict(copied))

    def _count(self, table: str) -> int:
        return int(self._session.row(f"SELECT count(*) AS rows FROM {table}").rows)

    def _choose(self, table: BaseInput) -> None:
        """Add to `kept` and `replaced` the rows of a table that stay."""
        lsn = table.commit_lsn
        # a copy of keys comes before the changes at its LSN; otherwise the ordinal decides
        rank = f"CASE WHEN op = 'R' THEN copy_id ELSE {2**62} END" if table.partial_copies else "0"
        self._session.compute(
            "input",
            f"SELECT * REPLACE ({lsn} AS commit_lsn), "
            f"2 * row_number() OVER (ORDER BY {lsn}, {rank}, ordinal) AS number "
            f"FROM loaded WHERE table_number = {table.number} AND ({table.condition})",
        )
        ended = f"SELECT coalesce(max(number), 0) FROM input WHERE op = 'T' OR {self._is_of_other_table()}"
        self._session.compute("changed", f"SELECT * FROM input WHERE op <> 'T' AND number > ({ended})")
        relations = self._versions()
        if table.partial_copies and relations:
            self._delete_copied_keys(table.partial_copies, relations, ended)
        self._session.compute("survivors", self._survivors(relations) if relations else _ALL)
        self._keep_newest_version(table, relations)
        self._connection.execute(
            "INSERT INTO kept SELECT file, place FROM input JOIN survivors USING (number)"
        )
        if relations:
            self._replace_updates(relations)

    def _is_of_other_table(self) -> str:
        """Return SQL that is true for changes of tables that had the name before the newest one."""
        rows = self._connection.execute(
            "SELECT relation_version FROM input GROUP BY 1 ORDER BY max(number)"
        ).fetchall()
        versions = [row[0] for row in rows]
        others = [v for v in versions if self._relations[v].oid != self._relations[versions[-1]].oid]
        return f"relation_version IN ({', '.join(map(str, others))})" if others else "false"

    def _versions(self) -> list[SourceRelation]:
        """Return the relation versions of the changes, in order, under the names of the newest.

        Raises NotCompacted unless all find their rows in the same way.
        """
        if not self._session.is_empty("SELECT 1 FROM changed WHERE is_raw"):
            raise NotCompacted("it has values that are not UTF-8")
        rows = self._connection.execute(
            "SELECT relation_version FROM changed GROUP BY 1 ORDER BY min(number)"
        ).fetchall()
        newest = self._connection.execute(
            "SELECT relation_version FROM changed ORDER BY number DESC LIMIT 1"
        ).fetchall()
        versions = [row[0] for row in rows if row not in newest] + [row[0] for row in newest]
        if not versions:
            return []
        aligned = list(align_versions(None, [self._relations[version] for version in versions]).relations)
        if len({(identity_of(each), each.key, _key_texts(each)) for each in aligned}) > 1:
            raise NotCompacted("its replica identity or the columns of its key have changed")
        return aligned

    def _survivors(self, relations: Sequence[SourceRelation]) -> str:
        """Return the query for the numbers of the changes that wrote the rows which exist."""
        match identity_of(relations[0]):
            case Identity.NONE:
                return _ALL
            case Identity.WHOLE_ROW:
                return self._by_row(relations)
        self._define_changes()
        sql = FoldSql(self._fold(relations, relations[-1]), DUCKDB)
        self._session.define("steps", sql.steps("changes"))
        keys = ", ".join(sql.fold.key_names)
        self._session.compute(
            "last_steps",
            f"SELECT {keys}, arg_max(step, sequence_key) AS step, max(sequence_key).ordinal AS number "
            f"FROM steps GROUP BY {keys}",
        )
        missing = " OR ".join(f"{name} IS NULL" for name in sql.fold.key_names)
        if not self._session.is_empty(f"SELECT 1 FROM last_steps WHERE {missing}"):
            raise NotCompacted("it has changes without a key")
        return "SELECT number FROM last_steps WHERE step <> 'D'"

    def _delete_copied_keys(
        self, copies: Sequence[CompleteCopy], relations: Sequence[SourceRelation], ended: str
    ) -> None:
        """Add deletes of all keys in the ranges of each copy of keys, before the rows of the copy.

        Copies before the number that the query `ended` gives do not count.
        """
        newest = relations[-1]
        if any(identity_of(each) is not Identity.KEY for each in relations):
            raise NotCompacted("some of its keys were copied again, and its replica identity is no key")
        self._define_changes()
        fold = FoldSql(self._fold(relations, newest), DUCKDB)
        names = fold.fold.key_names
        self._session.define("key_steps", fold.steps("changes"))
        self._session.compute(
            "known_keys",
            f"SELECT {', '.join(names)}, min(sequence_key).ordinal AS number FROM key_steps "
            f"GROUP BY {', '.join(names)}",
        )
        versions = {each.version: each for each in relations}
        for copy in copies:
            try:
                sql = KeyRangeSql(copy, versions.get(copy.version, newest))
            except KeyRangesUnusable:
                raise NotCompacted("silver cannot find the keys of it that were copied again") from None
            mine = f"op = 'R' AND copy_id = {copy.id}"
            is_usable = self._session.row(f"SELECT {sql.bounds_are_values()} AS are_values").are_values
            if not is_usable or not self._session.is_empty(
                sql.rows_outside(f"SELECT * FROM input WHERE {mine}")
            ):
                raise NotCompacted("silver cannot find the keys of it that were copied again")
            following = f"commit_lsn > {int(copy.lsn)} OR (commit_lsn = {int(copy.lsn)} AND "
            following += f"(op <> 'R' OR copy_id >= {copy.id}))"
            number = self._session.row(
                f"SELECT coalesce(min(CASE WHEN {following} THEN number END), max(number) + 2) - 1 AS number "
                "FROM input"
            ).number
            deleted = sql.keys_inside(f"SELECT * FROM known_keys WHERE number < {number}", names)
            version = versions.get(copy.version, newest).version
            self._connection.execute(
                "INSERT INTO changed BY NAME "
                f"SELECT {int(copy.lsn)} AS commit_lsn, 'D' AS op, {version} AS relation_version, "
                f"'K' AS old_kind, deleted_key AS old, {number} AS number FROM ({deleted}) AS d "
                f"WHERE {number} > ({ended})"
            )

    def _by_row(self, relations: Sequence[SourceRelation]) -> str:
        """Return the query for tables whose rows are found by all their values."""
        self._define_changes()
        sql = FoldSql(self._fold(relations, relations[-1]), DUCKDB)
        parts = (
            sql.signed_rows(f"(SELECT * FROM changes WHERE relation_version = {each.version})", each.version)
            for each in relations
        )
        self._session.compute("signed", " UNION ALL ".join(parts))
        self._session.compute("net", sql.net_counts("signed"))
        if not self._session.is_empty("SELECT 1 FROM net WHERE lowest < 0"):
            raise NotCompacted("bronze lacks rows that its updates or deletes refer to")
        rank = "row_number() OVER (PARTITION BY image ORDER BY sequence_key DESC) AS rank"
        added = f"SELECT image, sequence_key.ordinal AS number, {rank} FROM signed WHERE sign = 1"
        return f"SELECT number FROM ({added}) AS a JOIN net USING (image) WHERE rank <= net"

    def _define_changes(self) -> None:
        self._session.define(
            "changes",
            "SELECT commit_lsn, number AS ordinal, commit_time, CASE op WHEN 'R' THEN 'I' ELSE op END AS op, "
            "relation_version, old_kind, old, new, unsent FROM changed",
        )

    def _fold(self, relations: Sequence[SourceRelation], target: SourceRelation) -> Fold:
        """Return the fold of the changes onto the columns of one of their relation versions."""
        unsent = self._connection.execute(
            "SELECT DISTINCT relation_version, unnest(unsent) FROM changed WHERE unsent IS NOT NULL"
        ).fetchall()
        has_key_changes = not self._session.is_empty(
            "SELECT 1 FROM changed WHERE op = 'U' AND old_kind IS NOT NULL"
        )
        columns = tuple(_fold_column(each.name, relations, set(unsent)) for each in target.columns)
        names = [column.name for column in columns]
        key = tuple(names.index(name) for name in target.key)
        return Fold(columns, key, tuple(each.version for each in relations), has_key_changes)

    def _keep_newest_version(self, table: BaseInput, relations: Sequence[SourceRelation]) -> None:
        """Let the last change stay if readers need it: its columns if no other row has them, or its name."""
        last = self._connection.execute(
            "SELECT number, op, relation_version FROM input ORDER BY number DESC LIMIT 1"
        ).fetchall()
        if not last:
            return
        number, op, version = last[0]
        stays = f"SELECT 1 FROM input JOIN survivors USING (number) WHERE relation_version = {version}"
        if table.has_other_names:
            stays = f"SELECT 1 FROM survivors WHERE number = {number}"
        elif table.copy and table.copy.version == version:
            return
        if not self._session.is_empty(stays):
            return
        if relations and identity_of(relations[-1]) is not Identity.KEY and op != "T":
            raise NotCompacted("its last change is a delete by all values of a row, which is needed")
        self._connection.execute(f"INSERT INTO survivors VALUES ({number})")

    def _replace_updates(self, relations: Sequence[SourceRelation]) -> None:
        """Add to `replaced` the updates that stay, as inserts of complete rows."""
        updates = "SELECT * FROM changed JOIN survivors USING (number) WHERE op = 'U'"
        self._session.compute("updates", updates)
        whole_row = identity_of(relations[0]) is Identity.WHOLE_ROW
        positions = "list_transform(generate_series(1, len(new)), lambda i: {})"
        filled = positions.format("CASE WHEN list_contains(unsent, i - 1) THEN old[i] ELSE new[i] END")
        new = f"CASE WHEN unsent IS NULL THEN new ELSE {filled} END" if whole_row else "new"
        condition = "true" if whole_row else "coalesce(len(unsent), 0) = 0"
        self._connection.execute(
            f"INSERT INTO replaced SELECT file, place, 'I', {new}, NULL FROM updates WHERE {condition}"
        )
        if whole_row:
            return
        rows = self._connection.execute(
            "SELECT DISTINCT relation_version FROM updates WHERE len(unsent) > 0"
        ).fetchall()
        for target in relations:
            if (target.version,) in rows:
                self._fill(relations, target)

    def _fill(self, relations: Sequence[SourceRelation], target: SourceRelation) -> None:
        """Add updates of one relation version whose unchanged TOAST earlier changes have."""
        fold = self._fold(relations, target)
        sql = FoldSql(fold, DUCKDB)
        fold_by_key(self._session, sql)
        folded = "by_key"
        if fold.has_key_changes and fold.partial:
            follow_key_changes(self._session, sql)
            folded = "inherited"
        texts = ", ".join(f"f.x{i}" for i in range(len(fold.columns)))
        # no change has these values, as silver finds too
        unknown = ", ".join(f"CASE WHEN f.s{i} IS DISTINCT FROM {VALUE} THEN {i} END" for i in fold.partial)
        unsent = f"list_filter([{unknown}]::INTEGER[], lambda i: i IS NOT NULL)"
        keys = " AND ".join(f"f.{name} = l.{name}" for name in fold.key_names)
        self._connection.execute(
            "INSERT INTO replaced "
            + self._session.with_defined(
                "SELECT file, place, CASE WHEN len(unsent) > 0 THEN 'U' ELSE 'I' END, new, "
                "CASE WHEN len(unsent) > 0 THEN unsent END "
                f"FROM (SELECT u.file, u.place, [{texts}] AS new, {unsent} AS unsent "
                f"FROM {folded} AS f JOIN last_steps AS l ON {keys} JOIN updates AS u ON u.number = l.number "
                f"WHERE l.step <> 'D' AND u.relation_version = {target.version} AND len(u.unsent) > 0) AS r"
            )
        )


_ALL = "SELECT number FROM changed"
_NUMERIC = 1700


def _key_texts(relation: SourceRelation) -> tuple[PostgresType, ...]:
    """Return the types that decide by which text a key is found: of another scale, 1.0 becomes 1.00."""
    types = (column.type for column in relation.columns if column.name in relation.key)
    return tuple((oid, modifier if oid == _NUMERIC else -1) for oid, modifier in types)


def _fold_column(
    name: str, relations: Sequence[SourceRelation], unsent: Iterable[tuple[int, int]]
) -> FoldColumn:
    indexes = {each.version: index for each in relations if (index := each.index_of(name)) is not None}
    is_partial = len(indexes) < len(relations) or any(item in unsent for item in indexes.items())
    return FoldColumn(name, STRING, indexes, is_partial, missing_value(name, relations))


_RULE = TableRule("*")


class KeyRangeSql:
    """SQL about the key ranges of one copy, on the key's texts; `relation` has the key's columns and types.

    Raises KeyRangesUnusable if silver sorts a type of the key differently.
    """

    def __init__(self, copy: CompleteCopy, relation: SourceRelation) -> None:
        self._copy = copy
        self._relation = relation
        self._positions = [i for i, column in enumerate(relation.columns) if column.name in relation.key]
        columns = [relation.columns[i] for i in self._positions]
        folded = tuple(FoldColumn(column.name, column_type(column, _RULE), {}) for column in columns)
        self._fold = Fold(folded, tuple(range(len(folded))), ())
        self._condition = key_range_condition(self._fold, relation.key_types, copy.key_ranges, DUCKDB)

    def bounds_are_values(self) -> str:
        """Return SQL that is true if silver can hold all bounds."""
        return bounds_are_values(self._fold, self._copy.key_ranges, DUCKDB)

    def rows_outside(self, rows: str) -> str:
        """Return the query for rows of the relation version whose key is outside of the ranges."""
        typed = self._typed(rows, [f"new[{i + 1}]" for i in self._positions])
        return f"SELECT 1 FROM ({typed}) AS r WHERE NOT coalesce({self._condition}, false)"

    def keys_inside(self, keys: str, names: Sequence[str]) -> str:
        """Return the query for the keys in the ranges, as the old tuples of deletes.

        `names` are the columns of `keys` that have the texts of the key.
        """
        texts = dict(zip(self._positions, names, strict=True))
        old = ", ".join(texts.get(i, "NULL") for i in range(len(self._relation.columns)))
        typed = self._typed(keys, names, f"[{old}]::VARCHAR[] AS deleted_key, ")
        return f"SELECT deleted_key FROM ({typed}) AS r WHERE coalesce({self._condition}, false)"

    def _typed(self, source: str, texts: Sequence[str], others: str = "") -> str:
        values = (
            f"{column.type.value(text, DUCKDB)} AS {DUCKDB.quoted(column.name)}"
            for column, text in zip(self._fold.columns, texts, strict=True)
        )
        return f"SELECT {others}{', '.join(values)} FROM ({source}) AS s"
