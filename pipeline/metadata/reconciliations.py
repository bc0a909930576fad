"""Results of comparisons with the source: `_pgdelta/reconciliations` by table, `_pgdelta/differences` by row.

Both only grow; a run is found by its `run_id`. No values of rows are recorded but those of keys.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pipeline.delta.log_retention import short_log
from pipeline.delta.retry import retry_conflicts
from pipeline.delta.sql import now
from pipeline.delta.table import Lake
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.table_name import TableName

RECONCILIATIONS = (
    "run_id STRING, schema_name STRING, table_name STRING, verdict STRING, lsn BIGINT, "
    "silver_version BIGINT, applied_lsn BIGINT, pending BIGINT, source_rows BIGINT, silver_rows BIGINT, "
    "missing BIGINT, surplus BIGINT, changed BIGINT, is_whole BOOLEAN, columns ARRAY<STRING>, "
    "left_out ARRAY<STRUCT<column: STRING, reason: STRING>>, "
    "misfits ARRAY<STRUCT<column: STRING, values: BIGINT>>, sentence STRING, seconds DOUBLE, "
    "recorded_at TIMESTAMP"
)
DIFFERENCES = (
    "run_id STRING, schema_name STRING, table_name STRING, lsn BIGINT, kind STRING, key STRING, "
    "columns ARRAY<STRING>, copies BIGINT"
)
EQUAL, DIFFERENT, UNPROVEN = "equal", "different", "unproven"
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
    cannot hold.
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
    rows: tuple[Difference, ...] = field(default=(), repr=False)


class Reconciliations:
    """Reads and writes the results of comparisons."""

    def __init__(self, lake: Lake) -> None:
        self._reconciliations = lake.table("_pgdelta", "reconciliations")
        self._differences = lake.table("_pgdelta", "differences")

    def record(self, run_id: str, verdict: Reconciliation) -> None:
        """Append the result for a table, its differences first."""
        names = {"run_id": run_id, "schema_name": verdict.name[0], "table_name": verdict.name[1]}
        if verdict.rows:
            rows = [names | {"lsn": verdict.lsn} | asdict(row) for row in verdict.rows[:MAX_DIFFERENCES]]
            self._differences.ensure(DIFFERENCES, short_log())
            retry_conflicts(lambda: self._differences.append_rows(rows, DIFFERENCES))
        fields = {f: getattr(verdict, f) for f in Reconciliation.__slots__ if f not in ("name", "rows")}
        fields["left_out"] = [{"column": c, "reason": r} for c, r in verdict.left_out.items()]
        fields["misfits"] = [{"column": c, "values": n} for c, n in verdict.misfits.items()]
        self._reconciliations.ensure(RECONCILIATIONS, short_log())
        row = names | fields | {"recorded_at": now()}
        retry_conflicts(lambda: self._reconciliations.append_rows([row], RECONCILIATIONS))

    def verified(self) -> dict[TableName, LSN]:
        """Return the newest LSN at which each table was equal to its source."""
        if not self._reconciliations.exists():
            return {}
        newest: dict[TableName, LSN] = {}
        for row in self._reconciliations.rows(["schema_name", "table_name", "lsn", "verdict"]).to_pylist():
            if row["verdict"] == EQUAL:
                name = TableName(row["schema_name"], row["table_name"])
                newest[name] = LSN(max(row["lsn"], newest.get(name, INVALID)))
        return newest
