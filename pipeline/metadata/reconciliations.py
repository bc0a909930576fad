"""Results of comparisons with the source: `_pgdelta/reconciliations` by table, `_pgdelta/differences` by row.

Both only grow; a run is found by its `run_id`. No values of rows are recorded but those of keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.delta.log_retention import short_log
from pipeline.delta.new_rows import add_columns
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import now, utc_text
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

RECONCILIATIONS = (
    "run_id STRING, schema_name STRING, table_name STRING, verdict STRING, lsn BIGINT, "
    "silver_version BIGINT, applied_lsn BIGINT, pending BIGINT, source_rows BIGINT, silver_rows BIGINT, "
    "missing BIGINT, surplus BIGINT, changed BIGINT, is_whole BOOLEAN, columns ARRAY<STRING>, "
    "left_out ARRAY<STRUCT<column: STRING, reason: STRING>>, "
    "misfits ARRAY<STRUCT<column: STRING, values: BIGINT>>, sentence STRING, seconds DOUBLE, "
    "recorded_at TIMESTAMP, method STRING, fingerprint STRING, relation_id BIGINT"
)
DIFFERENCES = (
    "run_id STRING, schema_name STRING, table_name STRING, lsn BIGINT, kind STRING, key STRING, "
    "columns ARRAY<STRING>, copies BIGINT"
)
EQUAL, DIFFERENT, UNPROVEN = "equal", "different", "unproven"
Method = Literal["reconcile", "prove"]
RECONCILE: Method = "reconcile"
PROVE: Method = "prove"
MAX_DIFFERENCES = 10_000  # recorded for a table in a run


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that silver lacks (missing), has in excess (surplus) or has with other values (changed)."""

    kind: str
    key: str | None  # the key's columns as JSON
    columns: tuple[str, ...]
    copies: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The comparison of one table with the source as of `lsn`.

    A table that could not be compared has the verdict UNPROVEN and a `sentence`. `pending` changes were in
    bronze but not in the compared version of silver. Unless `is_whole`, more rows differ than are counted.
    `left_out` maps columns that were not compared to the reason; `misfits` counts values that silver's types
    cannot hold. `fingerprint` is that of both sides, if they are equal. `relation_id` is the oid of the
    source's table, None if it is not known.
    """

    name: TableName
    verdict: str
    lsn: LSN = INVALID
    silver_version: int = -1
    applied_lsn: LSN = INVALID
    pending: int = 0
    source_rows: int = 0
    silver_rows: int = 0
    missing: int = 0
    surplus: int = 0
    changed: int = 0
    is_whole: bool = True
    columns: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    misfits: Mapping[str, int] = field(default_factory=dict)
    sentence: str | None = None
    seconds: float = 0.0
    method: Method = RECONCILE
    fingerprint: str | None = None
    relation_id: int | None = None
    rows: tuple[Difference, ...] = field(default=(), repr=False)


class ComparedAt(NamedTuple):
    """The LSN at which a table was compared with its source, when, and by what."""

    lsn: LSN
    at: datetime
    method: Method


def verified_json(found: ComparedAt | None) -> dict[str, str | None]:
    """Return the newest comparison that found a table equal, if there is one, as data."""
    if found is None:
        return dict.fromkeys(("verified", "verified_at", "verified_by"))
    return {"verified": str(found.lsn), "verified_at": utc_text(found.at), "verified_by": found.method}


class Compared(NamedTuple):
    """The newest comparison of a table, the newest that found it equal, and a later one that did not."""

    last: ComparedAt
    equal: ComparedAt | None = None
    different: ComparedAt | None = None


class Reconciliations:
    """Reads and writes the results of comparisons."""

    def __init__(self, lake: Lake) -> None:
        self._reconciliations = lake.table("_pgdelta", "reconciliations")
        self._differences = lake.table("_pgdelta", "differences")
        self._newest: tuple[tuple[str, int], tuple[_Newest, _Newest, _Newest]] = ("", -1), ({}, {}, {})

    def record(self, run_id: str, verdicts: Sequence[Reconciliation]) -> None:
        """Append the results for tables in one commit, their differences first."""
        if not verdicts:
            return
        differences: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for each in verdicts:
            names = {"run_id": run_id, "schema_name": each.name[0], "table_name": each.name[1]}
            differences += (names | {"lsn": each.lsn} | asdict(row) for row in each.rows[:MAX_DIFFERENCES])
            fields = {f: getattr(each, f) for f in Reconciliation.__slots__ if f not in ("name", "rows")}
            fields["left_out"] = [{"column": c, "reason": r} for c, r in each.left_out.items()]
            fields["misfits"] = [{"column": c, "values": n} for c, n in each.misfits.items()]
            rows.append(names | fields | {"recorded_at": now()})
        if differences:
            self._differences.ensure(DIFFERENCES, short_log())
            retry_conflicts(lambda: self._differences.append_rows(differences, DIFFERENCES))
        self._reconciliations.ensure(RECONCILIATIONS, short_log())
        add_columns(self._reconciliations, RECONCILIATIONS)
        retry_conflicts(lambda: self._reconciliations.append_rows(rows, RECONCILIATIONS))

    def compared(
        self, relations: Mapping[TableName, int] | None = None, *, looks: bool = True
    ) -> dict[TableName, Compared]:
        """Return what was found of each table; it is read only if something was recorded since.

        Without `looks`, it is what was read last. `relations` are the oids of the source's tables by their
        names now: comparisons of an earlier table with the same name are left out.
        """
        if looks:
            snapshot = self._reconciliations.snapshot()
            version = snapshot.table_id, snapshot.version
            if version != self._newest[0]:
                self._newest = version, self._read(snapshot) if snapshot.exists else ({}, {}, {})
        last, equal, different = (_of_relations(found, relations or {}) for found in self._newest[1])
        return {
            name: Compared(found, equal.get(name), _unless_before(different.get(name), equal.get(name)))
            for name, found in last.items()
        }

    def _read(self, snapshot: Snapshot) -> tuple[_Newest, _Newest, _Newest]:
        """Return the newest comparisons: of all, of those that found a table equal, and different."""
        import pyarrow.compute as pc  # takes long

        present = TableSchema.of_json(snapshot.schema_string).names
        rows = self._reconciliations.rows([n for n in _COMPARED if n in present], snapshot=snapshot)
        verdicts = rows.column("verdict")
        equal, different = (rows.filter(pc.equal(verdicts, each)) for each in (EQUAL, DIFFERENT))
        return _newest(rows), _newest(equal), _newest(different)


_Newest = dict[tuple[TableName, int | None], ComparedAt]
"""The newest comparison of each table, by its name and its oid at the source, if that was recorded."""


def _newest(rows: pa.Table) -> _Newest:
    """Return the newest comparisons, of rows of all times."""
    import pyarrow.compute as pc

    # a join or a group_by would import Acero, for which each run would wait
    keys = [rows.column("schema_name"), rows.column("table_name")]
    if "relation_id" in rows.column_names:
        keys.append(pc.fill_null(rows.column("relation_id").cast("string"), ""))
    names = pc.binary_join_element_wise(*keys, "\0").combine_chunks().dictionary_encode()
    order = np.argsort(rows.column("recorded_at").cast("int64").to_numpy(), kind="stable")
    last = np.empty(len(names.dictionary), np.int64)
    last[names.indices.to_numpy()[order]] = order  # of rows of one table, the last one stays
    newest = rows.take(pa.array(last)).to_pylist()
    return {
        (TableName(row["schema_name"], row["table_name"]), row.get("relation_id")): ComparedAt(
            LSN(row["lsn"]), row["recorded_at"], row.get("method") or RECONCILE
        )
        for row in newest
    }


def _of_relations(found: _Newest, relations: Mapping[TableName, int]) -> dict[TableName, ComparedAt]:
    """Return the newest comparison of each name, without those of another table than it has now."""
    newest: dict[TableName, ComparedAt] = {}
    for (name, relation), each in found.items():
        is_other = relation is not None and relations.get(name, relation) != relation
        if not is_other and (name not in newest or newest[name].at < each.at):
            newest[name] = each
    return newest


def _unless_before(found: ComparedAt | None, other: ComparedAt | None) -> ComparedAt | None:
    return None if found is None or (other is not None and found.at < other.at) else found


_COMPARED = ("schema_name", "table_name", "verdict", "lsn", "recorded_at", "method", "relation_id")
