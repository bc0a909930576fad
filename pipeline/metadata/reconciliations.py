"""Results of comparisons with the source: `_pgdelta/reconciliations` by table, `_pgdelta/differences` by row.

Both only grow; a run is found by its `run_id`. No values of rows are recorded but those of keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pipeline.delta.log_retention import short_log
from pipeline.delta.new_rows import add_columns
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.schema import TableSchema
from pipeline.delta.sql import now, utc_text
from pipeline.delta.table import Lake
from pipeline.delta.table_log import Snapshot
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

if TYPE_CHECKING:
    import pyarrow as pa

RECONCILIATIONS = (
    "run_id STRING, schema_name STRING, table_name STRING, verdict STRING, lsn BIGINT, "
    "silver_version BIGINT, applied_lsn BIGINT, pending BIGINT, source_rows BIGINT, silver_rows BIGINT, "
    "missing BIGINT, surplus BIGINT, changed BIGINT, is_whole BOOLEAN, columns ARRAY<STRING>, "
    "left_out ARRAY<STRUCT<column: STRING, reason: STRING>>, "
    "misfits ARRAY<STRUCT<column: STRING, values: BIGINT>>, sentence STRING, seconds DOUBLE, "
    "recorded_at TIMESTAMP, method STRING, fingerprint STRING"
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
    cannot hold. `fingerprint` is that of both sides, if they are equal.
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
        self._newest: tuple[tuple[str, int], Mapping[TableName, Compared]] = ("", -1), {}

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

    def compared(self) -> Mapping[TableName, Compared]:
        """Return what was found of each table; it is read only if something was recorded since."""
        snapshot = self._reconciliations.snapshot()
        version = snapshot.table_id, snapshot.version
        if version != self._newest[0]:
            self._newest = version, self._compared(snapshot) if snapshot.exists else {}
        return self._newest[1]

    def equal(self) -> dict[TableName, ComparedAt]:
        """Return the newest comparison of each table that found it equal to its source."""
        return {name: each.equal for name, each in self.compared().items() if each.equal is not None}

    def _compared(self, snapshot: Snapshot) -> dict[TableName, Compared]:
        import pyarrow.compute as pc  # takes long

        present = TableSchema.of_json(snapshot.schema_string).names
        rows = self._reconciliations.rows([n for n in _COMPARED if n in present], snapshot=snapshot)
        verdicts = rows.column("verdict")
        last = _newest(rows)
        equal = _newest(rows.filter(pc.equal(verdicts, EQUAL)))
        different = _newest(rows.filter(pc.equal(verdicts, DIFFERENT)))
        return {
            name: Compared(found, equal.get(name), _unless_before(different.get(name), equal.get(name)))
            for name, found in last.items()
        }


def _newest(rows: pa.Table) -> dict[TableName, ComparedAt]:
    """Return the newest comparison of each table, of rows of all times."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    # a join or a group_by would import Acero, for which each run would wait
    joined = pc.binary_join_element_wise(rows.column("schema_name"), rows.column("table_name"), "\0")
    names = joined.combine_chunks().dictionary_encode()
    order = np.argsort(rows.column("recorded_at").cast("int64").to_numpy(), kind="stable")
    last = np.empty(len(names.dictionary), np.int64)
    last[names.indices.to_numpy()[order]] = order  # of rows of one table, the last one stays
    newest = rows.take(pa.array(last)).to_pylist()
    return {
        TableName(row["schema_name"], row["table_name"]): ComparedAt(
            LSN(row["lsn"]), row["recorded_at"], row.get("method") or RECONCILE
        )
        for row in newest
    }


def _unless_before(found: ComparedAt | None, other: ComparedAt | None) -> ComparedAt | None:
    return None if found is None or (other is not None and found.at < other.at) else found


def verified_through(lake: Lake) -> dict[TableName, LSN]:
    """Return the newest LSN at which each table was found equal to its source."""
    return {name: each.lsn for name, each in Reconciliations(lake).equal().items()}


_COMPARED = ("schema_name", "table_name", "verdict", "lsn", "recorded_at", "method")
