"""The fold as SQL that Spark and DuckDB run alike: steps, one row per key, key changes, multisets. Pure.

Each method returns a query over named relations; `step_writer` says which ones, and in what order. Their
columns are numbered (k0…, x0…, c0…, s0…), so that no name of a source table can collide with them:

    changes    one table's changes as in bronze, without truncations; copied rows are inserts
    steps      one row per step: key texts k0…, sequence key (commit_lsn, ordinal, part) and tuple
    folded     one row per key: k0…, op (D or U), commit_lsn, commit_time, texts x0…, states s<i>
    followed   one row for each row that exists at a new key: k0…, base key b0…, s<i>, x<i>
    source     values c0… and key values k0… in their silver types, s<i>, and the texts x<i> that may misfit
    silver     the rows of the silver table, under its own names

Changes without a key are folded as a multiset: each adds or removes rows equal to an image, and an update
does both, with unchanged TOAST copied from the old image. Images are compared as canonical text, in which
NULL equals NULL and -0 differs from 0.

An upsert after a key change inherits unchanged TOAST from the row at its old key. Chains of key changes are
resolved by pointer doubling, in 17 joins for 100,000 of them: `segments`, then `inherit` until none inherits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.engine import Engine
from pipeline.silver.fold.fold import (
    FROM_SILVER,
    INHERITED,
    UNKNOWN,
    Fold,
    FoldColumn,
    column_state,
    is_sent,
    key_text,
    pick,
    pick_or_missing,
)
from pipeline.silver.fold.modes import MetadataNames, inserted_values, own_columns
from pipeline.silver.fold.write import image_of_row, image_of_texts

ABSENT = "greatest(0, -(silver_count + lowest))"
"""SQL for the number of removed rows that silver does not have."""


@dataclass(frozen=True, slots=True)
class FoldSql:
    """The queries of one fold for one engine."""

    fold: Fold
    engine: Engine

    @property
    def base_keys(self) -> list[str]:
        """The names of the key texts of the silver row from which a moved row inherits: b0, b1, …"""
        return [f"b{i}" for i in range(len(self.fold.key))]

    @property
    def _texts(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.fold.columns))]

    @property
    def _own(self) -> tuple[str, ...]:
        """The columns of pgdelta that only the fold's mode has."""
        return own_columns(self.fold.mode, has_intermediate=self.fold.has_intermediate)

    def steps(self, changes: str) -> str:
        """Return one row per step; `is_key_change` is true for both steps of a key change."""
        fold, engine = self.fold, self.engine
        if fold.ignores_deletes:
            changes = f"(SELECT * FROM {changes} WHERE op <> 'D') AS d"
        rows = f"SELECT *, false AS is_key_change, op AS step FROM {changes}"
        if fold.has_key_changes:
            both, one = engine.array("'D'", "'K'"), engine.array("op")
            step = engine.explode(f"CASE WHEN is_key_change THEN {both} ELSE {one} END")
            rows = f"SELECT *, {self._is_key_change()} AS is_key_change FROM {changes}"
            rows = f"SELECT *, {step} AS step FROM ({rows}) AS r"
        keys = (
            f"CASE WHEN step = 'D' THEN {key_text(fold, i, 'old', engine)} "
            f"ELSE {key_text(fold, i, 'new', engine)} END AS {name}"
            for name, i in zip(fold.key_names, fold.key, strict=True)
        )
        part = {"commit_lsn": "commit_lsn", "ordinal": "ordinal", "part": "CAST(step = 'K' AS INT)"}
        return select(
            *keys,
            f"{engine.struct(part)} AS sequence_key",
            "is_key_change",
            "step",
            "commit_lsn",
            "commit_time",
            "relation_version",
            "new",
            *(["unsent"] if fold.partial else []),
            *(["old"] if fold.mode == "append" else []),
            source=f"({rows}) AS r",
        )

    def _is_key_change(self) -> str:
        fold, engine = self.fold, self.engine
        same = " AND ".join(
            f"({key_text(fold, i, 'old', engine)} IS NOT DISTINCT FROM {key_text(fold, i, 'new', engine)})"
            for i in fold.key
        )
        return f"(op = 'U' AND old_kind IS NOT NULL AND NOT ({same or 'true'}))"

    def text(self, i: int, row: str = "newest.", keys: str = "") -> str:
        """Return SQL for the text of column i, given p0… of a key's steps and its newest row, or any row.

        `row` and `keys` are what is written before the columns of the row, and before the keys.
        """
        fold = self.fold
        if i in fold.partial:
            return f"p{i}.value.text"
        if fold.columns[i].is_partial:
            return f"{keys}k{fold.key.index(i)}"
        return pick(fold, i, f"{row}new", f"{row}relation_version", self.engine)

    def inserted(self, changes: str) -> str:
        """Return the folded rows of changes that are inserts of distinct rows."""
        fold = self.fold
        picked = [*zip(fold.key_names, fold.key, strict=True), *((f"x{i}", i) for i in self._numbers)]
        texts = (f"{pick_or_missing(fold, i, 'new', self.engine)} AS {name}" for name, i in picked)
        values = inserted_values(fold.mode, self.engine, has_intermediate=fold.has_intermediate)
        own = (f"{sql} AS {name}" for name, sql in values.items())
        columns = ("'I' AS op", "commit_lsn", "commit_time", *texts, *own)
        return f"{select(*columns, source=changes)} WHERE op = 'I'"

    @property
    def _numbers(self) -> range:
        return range(len(self.fold.columns))

    def typed(self, folded: str, *, has_base_keys: bool = False) -> str:
        """Return the values and key values of folded rows in their silver types.

        The texts of values that may not fit are kept, and so are the base keys of `with_key_changes`.
        """
        fold, engine = self.fold, self.engine
        others = [
            *("op", "commit_lsn", "commit_time"),
            *(f"s{i}" for i in fold.partial),
            *self._own,
            *(self.base_keys if has_base_keys else []),
        ]
        typed = select(
            *others,
            *(
                f"{fold.columns[i].type.value(f'f.{name}', engine)} AS {name}"
                for name, i in zip(fold.key_names, fold.key, strict=True)
            ),
            *(f"{c.type.value(f'f.x{i}', engine)} AS c{i}" for i, c in enumerate(fold.columns)),
            *(f"f.x{i} AS x{i}" for i in self._kept_texts),
            source=f"{folded} AS f",
        )
        if not self._kept_texts:
            return typed
        return select(
            *others,
            *fold.key_names,
            *(f"c{i}" for i in self._numbers),
            *(f"{fold.columns[i].type.kept_text(f'x{i}', f'c{i}')} AS x{i}" for i in self._kept_texts),
            source=f"({typed}) AS v",
        )

    @property
    def _kept_texts(self) -> list[int]:
        return [i for i, column in enumerate(self.fold.columns) if not column.type.is_total]

    def with_key_changes(self, folded: str, followed: str) -> str:
        """Replace inherited columns of folded rows by those of `followed`, and add their base keys."""
        on = " AND ".join(f"f.{k} IS NOT DISTINCT FROM l.{k}" for k in self.fold.key_names)
        return select(
            *self.inheriting_columns(),
            *(f"l.{b} AS {b}" for b in self.base_keys),
            source=f"{folded} AS f LEFT JOIN {followed} AS l ON {on}",
        )

    def inheriting_columns(self) -> list[str]:
        """Return the columns of folded rows `f`, with what they inherit replaced by that of `l`."""
        fold = self.fold
        return [
            *(f"f.{key} AS {key}" for key in fold.key_names),
            "f.op AS op",
            "f.commit_lsn AS commit_lsn",
            "f.commit_time AS commit_time",
            *(
                f"CASE WHEN f.s{i} = {INHERITED} THEN l.x{i} ELSE f.x{i} END AS x{i}"
                if i in fold.partial
                else f"f.x{i} AS x{i}"
                for i in self._numbers
            ),
            *(
                f"CASE WHEN f.s{i} = {INHERITED} THEN coalesce(l.s{i}, {UNKNOWN}) ELSE f.s{i} END AS s{i}"
                for i in fold.partial
            ),
            *(f"f.{name} AS {name}" for name in self._own),
        ]

    def from_silver(self, source: str, silver: str) -> str:
        """Fill the columns in state FROM_SILVER from the silver row with the base key."""
        fold, engine = self.fold, self.engine
        keys = [fold.columns[i] for i in fold.key]
        rows = select(
            *(f"{engine.quoted(column.name)} AS t{i}" for i, column in enumerate(keys)),
            *(f"{engine.quoted(fold.columns[i].name)} AS v{i}" for i in fold.partial),
            "true AS found",
            source=silver,
        )
        on = " AND ".join(
            f"{self._comparable(column, f's.b{i}')} IS NOT DISTINCT FROM "
            f"{column.type.comparable(f'r.t{i}', engine)} AND s.b{i} IS NOT NULL"
            for i, column in enumerate(keys)
        )
        return select(
            "s.op AS op",
            "s.commit_lsn AS commit_lsn",
            "s.commit_time AS commit_time",
            *(f"s.{k} AS {k}" for k in fold.key_names),
            *(
                f"CASE WHEN s.s{i} = {FROM_SILVER} THEN r.v{i} ELSE s.c{i} END AS c{i}"
                if i in fold.partial
                else f"s.c{i} AS c{i}"
                for i in self._numbers
            ),
            *(
                f"CASE WHEN s.s{i} = {FROM_SILVER} AND r.found IS NULL THEN {UNKNOWN} ELSE s.s{i} END AS s{i}"
                for i in fold.partial
            ),
            *(f"s.x{i} AS x{i}" for i in self._kept_texts),
            *(f"s.{name} AS {name}" for name in self._own),
            source=f"{source} AS s LEFT JOIN ({rows}) AS r ON {on}",
        )

    def _comparable(self, column: FoldColumn, text: str) -> str:
        return column.type.comparable(f"({column.type.value(text, self.engine)})", self.engine)

    def final_rows(
        self, source: str, metadata: MetadataNames, others: Mapping[str, str] | None = None
    ) -> str:
        """Return the rows that exist, under silver's column names, for an append or an overwrite.

        `others` are more columns by name, as SQL.
        """
        columns = [f"c{i} AS {self.engine.quoted(column.name)}" for i, column in enumerate(self.fold.columns)]
        columns += [f"{source_name} AS {self.engine.quoted(name)}" for name, source_name in metadata.pairs()]
        columns += [f"{sql} AS {self.engine.quoted(name)}" for name, sql in (others or {}).items()]
        return f"{select(*columns, source=source)} WHERE op <> 'D'"

    def with_unknown(self, rows: str) -> str:
        """Return rows of `source` in which the values that silver would keep are not known."""
        fold = self.fold
        return select(
            "op",
            "commit_lsn",
            "commit_time",
            *fold.key_names,
            *(f"c{i}" for i in self._numbers),
            *(f"coalesce(s{i}, {UNKNOWN}) AS s{i}" for i in fold.partial),
            *(f"x{i}" for i in self._kept_texts),
            source=rows,
        )

    # Key changes

    def segments(self, steps: str) -> str:
        """Return the segments of rows that begin or end with a key change: `moved_in` and `moved_out`."""
        fold, engine = self.fold, self.engine
        keys = ", ".join(fold.key_names)
        numbered = self.with_segments(steps)
        bounded = f"SELECT *, max(segment) OVER (PARTITION BY {keys}) AS last_segment FROM ({numbered}) AS n"
        change = self.key_change
        grouped = select(
            *fold.key_names,
            "segment",
            f"max(CASE WHEN step = 'K' THEN {change} END) AS moved_in",
            f"max(CASE WHEN step = 'D' AND is_key_change THEN {change} END) AS moved_out",
            # A row may end without a delete: an insert or upsert at its key replaces it.
            "bool_or(step = 'D' OR segment < last_segment) AS ended",
            "bool_or(segment = last_segment) AS is_last",
            *(
                f"max_by({column_state(fold, i, engine)}, sequence_key) "
                f"FILTER (WHERE {self.determines(i)}) AS p{i}"
                for i in fold.partial
            ),
            source=f"({bounded}) AS w",
        ) + group_by([*fold.key_names, "segment"])
        # Only the first segment at a key can be silver's row.
        from_silver = "segment = 0"
        default_state = f"CASE WHEN {from_silver} THEN {FROM_SILVER} ELSE {UNKNOWN} END"
        segments = select(
            *fold.key_names,
            "moved_in",
            "moved_out",
            "is_last",
            *(
                f"CASE WHEN {from_silver} THEN {k} END AS {b}"
                for k, b in zip(fold.key_names, self.base_keys, strict=True)
            ),
            *(f"coalesce(p{i}.state, {default_state}) AS s{i}" for i in fold.partial),
            *(f"p{i}.text AS x{i}" for i in fold.partial),
            source=f"({grouped}) AS g",
        )
        is_shown = {"soft_delete": "is_last", "history": "false"}.get(fold.mode, "NOT ended")
        return f"{segments} WHERE moved_out IS NOT NULL OR (moved_in IS NOT NULL AND {is_shown})"

    @property
    def key_change(self) -> str:
        """SQL for the struct that is the same for both steps of a key change."""
        return self.engine.struct({"lsn": "sequence_key.commit_lsn", "ordinal": "sequence_key.ordinal"})

    def with_segments(self, steps: str) -> str:
        """Number the segments of each key's steps; a segment has the steps of one row at the key.

        Segment 0 continues silver's row.
        """
        in_order = f"OVER (PARTITION BY {', '.join(self.fold.key_names)} ORDER BY sequence_key)"
        after_delete = f"coalesce(lag(step) {in_order} = 'D', false)"
        if self.fold.mode != "mirror":  # the row that is gone is also that of another delete
            after_delete = f"({after_delete} AND step <> 'D')"
        begun = f"SELECT *, (step IN ('I', 'K') OR {after_delete}) AS begins FROM {steps}"
        return f"SELECT *, sum(CAST(begins AS INT)) {in_order} AS segment FROM ({begun}) AS b"

    def determines(self, i: int) -> str:
        """Return SQL that is true for the steps that determine column i of a segment."""
        return f"step = 'K' OR step = 'I' OR ({is_sent(self.fold, i, self.engine)} AND step <> 'D')"

    def inheriting(self, segments: str) -> str:
        """Return the segments that still inherit a column."""
        inherits = " OR ".join(f"s{i} = {INHERITED}" for i in self.fold.partial)
        return f"SELECT 1 AS one FROM {segments} WHERE ({inherits}) AND moved_in IS NOT NULL"

    def inherit(self, segments: str) -> str:
        """Replace inherited columns by the predecessor's, and point to the predecessor's own predecessor."""
        fold = self.fold
        predecessors = select(
            "moved_out AS change",
            "moved_in AS earlier",
            *(f"{b} AS o{b}" for b in self.base_keys),
            *(f"s{i} AS os{i}" for i in fold.partial),
            *(f"x{i} AS ox{i}" for i in fold.partial),
            source=segments,
        )
        inherited = []
        for i in fold.partial:
            inherits = f"s{i} = {INHERITED} AND moved_in IS NOT NULL"
            # Without its predecessor in the input a value is unknown, never NULL by accident.
            inherited += [
                f"CASE WHEN {inherits} THEN coalesce(os{i}, {UNKNOWN}) ELSE s{i} END AS s{i}",
                f"CASE WHEN {inherits} THEN ox{i} ELSE x{i} END AS x{i}",
            ]
        return select(
            *fold.key_names,
            "p.earlier AS moved_in",
            "moved_out",
            "is_last",
            *(f"coalesce({b}, o{b}) AS {b}" for b in self.base_keys),
            *inherited,
            source=f"{segments} AS s LEFT JOIN ({predecessors} WHERE moved_out IS NOT NULL) AS p "
            "ON s.moved_in = p.change",
        )

    def followed(self, segments: str) -> str:
        """Return the rows that silver shows at a new key, given segments without inherited columns."""
        columns = (c for i in self.fold.partial for c in (f"s{i}", f"x{i}"))
        rows = select(*self.fold.key_names, *self.base_keys, *columns, source=segments)
        return f"{rows} WHERE {'is_last' if self.fold.mode == 'soft_delete' else 'moved_out IS NULL'}"

    # Multisets

    def signed_rows(self, changes: str, version: int) -> str:
        """Return one row per removed (sign -1) or added (+1) row: sequence_key, sign, commit, x0…, image."""
        engine = self.engine
        if self.fold.ignores_deletes:
            changes = f"(SELECT * FROM {changes} WHERE op <> 'D') AS d"
        old, new = self._signed_texts("old", version), self._signed_texts("new", version)
        both = (
            f"CASE op WHEN 'I' THEN {engine.array(new)} WHEN 'D' THEN {engine.array(old)} "
            f"ELSE {engine.array(old, new)} END"
        )
        exploded = f"SELECT *, {engine.explode(both)} AS signed FROM {changes}"
        key = {"commit_lsn": "commit_lsn", "ordinal": "ordinal", "sign": "signed.sign"}
        rows = select(
            f"{engine.struct(key)} AS sequence_key",
            "signed.sign AS sign",
            "commit_lsn",
            "commit_time",
            *(f"signed.{x} AS {x}" for x in self._texts),
            source=f"({exploded}) AS e",
        )
        return f"SELECT *, {image_of_texts(self.fold.columns, engine)} AS image FROM ({rows}) AS r"

    def _signed_texts(self, side: str, version: int) -> str:
        """Return SQL for the struct of sign and texts of one tuple of a change."""
        engine = self.engine
        fields = {"sign": "1" if side == "new" else "-1"}
        for i, column in enumerate(self.fold.columns):
            index = column.indexes.get(version)
            text = column.missing_text(engine) if index is None else engine.get(side, index)
            if side == "new" and index is not None:
                is_unsent = engine.contains("unsent", str(index))
                text = f"CASE WHEN {is_unsent} THEN {engine.get('old', index)} ELSE {text} END"
            text = column.text(version, text, engine) if index is not None else text
            fields[f"x{i}"] = text
        return engine.struct(fields)

    def net_counts(self, rows: str) -> str:
        """Return one row per image: net, lowest, and the texts and commit of its last added row."""
        names = ("commit_lsn", "commit_time", *self._texts)
        last = self.engine.struct({name: name for name in names})
        running = "sum(sign) OVER (PARTITION BY image ORDER BY sequence_key)"
        grouped = (
            "SELECT image, CAST(sum(sign) AS BIGINT) AS net, CAST(min(running) AS BIGINT) AS lowest, "
            f"max_by({last}, sequence_key) AS newest "
            f"FROM (SELECT *, {running} AS running FROM {rows}) AS r GROUP BY image"
        )
        columns = (f"newest.{name} AS {name}" for name in names)
        return select("image", "net", "lowest", *columns, source=f"({grouped}) AS g")

    def surviving_rows(self, rows: str) -> str:
        """Return the added rows (op, x0…, commit) that were not removed, compared as texts."""
        texts = self._texts
        last = self.engine.struct({"commit_lsn": "commit_lsn", "commit_time": "commit_time"})
        columns = ("CAST(sum(sign) AS BIGINT) AS net", f"max_by({last}, sequence_key) AS newest")
        net = select(*texts, *columns, source=rows) + group_by(texts)
        number = self.engine.explode(self.engine.numbers("net"))
        numbered = f"SELECT *, {number} AS number FROM ({net}) AS n WHERE net > 0"
        return select(
            "'I' AS op",
            "newest.commit_lsn AS commit_lsn",
            "newest.commit_time AS commit_time",
            *texts,
            source=f"({numbered}) AS m",
        )

    def with_silver_counts(self, net: str, silver: str | None) -> str:
        """Add `silver_count`, the number of equal rows in silver, and `new_count`, the number afterwards."""
        if silver is None:
            counted = f"SELECT *, CAST(0 AS BIGINT) AS silver_count FROM {net}"
        else:
            # Silver is read only for images whose rows are removed; the others grow by `net`.
            image = image_of_row(self.fold.columns, "t", self.engine)
            images = f"SELECT {image} AS image FROM {silver} AS t"
            reduced = f"SELECT image FROM ({reduced_images(net)}) AS r"
            counts = (
                f"SELECT i.image AS image, count(*) AS silver_count FROM ({images}) AS i "
                f"JOIN ({reduced}) AS d ON i.image = d.image GROUP BY i.image"
            )
            counted = (
                "SELECT n.*, coalesce(c.silver_count, 0) AS silver_count "
                f"FROM {net} AS n LEFT JOIN ({counts}) AS c ON n.image = c.image"
            )
        return f"SELECT *, silver_count + net + {ABSENT} AS new_count FROM ({counted}) AS c"

    def added_rows(self, counted: str) -> str:
        """Return one row (op, commit, texts x0…) for each row to add."""
        number = self.engine.explode(self.engine.numbers("new_count - silver_count"))
        numbered = f"SELECT *, {number} AS number FROM {counted} WHERE new_count > silver_count"
        columns = ("'I' AS op", "image", "commit_lsn", "commit_time", *self._texts)
        return select(*columns, source=f"({numbered}) AS n")

    def ranked_rows(self, counted: str, silver: str, metadata: MetadataNames, columns: Iterable[str]) -> str:
        """Return silver's rows of reduced images: image, new_count, `rank` from the newest, and `columns`.

        Those with a rank up to `new_count` stay.
        """
        newest = "t.commit_lsn DESC" if metadata.commit_lsn else "t.image"
        image = image_of_row(self.fold.columns, "t", self.engine)
        named = [*columns, *(f"t.{self.engine.quoted(n)} AS {source}" for n, source in metadata.pairs())]
        rows = select(f"{image} AS image", *named, source=f"{silver} AS t")
        reduced = f"SELECT image, new_count FROM {counted} WHERE new_count < silver_count"
        return (
            "SELECT t.*, d.new_count AS new_count, "
            f"row_number() OVER (PARTITION BY t.image ORDER BY {newest}) AS rank "
            f"FROM ({rows}) AS t JOIN ({reduced}) AS d ON t.image = d.image"
        )

    def silver_values(self) -> list[str]:
        """Return the source's columns of silver's rows `t` as c0…"""
        return [f"t.{self.engine.quoted(c.name)} AS c{i}" for i, c in enumerate(self.fold.columns)]


def reduced_images(net: str) -> str:
    """Return the images whose rows in silver may be removed, with their texts x0…"""
    return f"SELECT * FROM {net} WHERE lowest < 0"


def select(*columns: str, source: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {source}"


def group_by(names: Iterable[str]) -> str:
    joined = ", ".join(names)
    return f" GROUP BY {joined}" if joined else ""
