"""Show a silver table with the changes that bronze has beyond it: the fold of apply, onto an overlay.

The plan is that of `batch_writer`, and the steps are those that apply would write; nothing is written. A
plan that changes columns is refused, because only apply records which column of silver is which.
"""

from __future__ import annotations

from pipeline.bronze.change_rows import ChangeRows
from pipeline.delta.rows import read_rows
from pipeline.delta.table import LakeTable
from pipeline.errors import LakeError
from pipeline.metadata.registry import Records
from pipeline.protocol.lsn import INVALID
from pipeline.silver.fold.write import Write
from pipeline.silver.schema.schema_operations import SetProperties
from pipeline.silver.write.native_session import session_of_rows, why_left_to_spark
from pipeline.silver.write.native_target import NativeTarget
from pipeline.silver.write.overlay import Overlay, OverlayCommitter
from pipeline.silver.write.range_plan import RangePlan
from pipeline.silver.write.step_writer import StepWriter
from pipeline.silver.write.table_version import TableVersion
from pipeline.silver.write.writer_choice import MAX_COMPARED_BYTES, other_types, unsupported_feature
from pipeline.table_name import TableName


def refuse_plan(name: TableName, plan: RangePlan) -> None:
    """Raise LakeError if a range cannot be shown, because apply holds the table or changes its columns."""
    if plan.stop is not None:
        raise LakeError(plan.stop.sentence)
    if plan.evolution is None:
        return
    for planned in plan.evolution.operations:
        if not isinstance(planned.operation, SetProperties):
            raise LakeError(
                f"Table {name} cannot be read at {plan.end_lsn}: its columns change at {planned.lsn}, and "
                "silver has not followed yet. Run pgdelta apply, then read again."
            )
    if plan.evolution.recreated_at is not None:
        raise LakeError(
            f"Table {name} cannot be read at {plan.end_lsn}: it was created again at "
            f"{plan.evolution.recreated_at}, and silver has not followed yet. Run pgdelta apply, then read "
            "again."
        )


def pending_writes(table: LakeTable, plan: RangePlan) -> list[Write]:
    """Return the writes of a plan that the table does not record yet."""
    return [w for w in plan.writes if (table.offset(w.commit.txn) or INVALID) < w.commit.lsn]


def fold_onto(
    table: LakeTable,
    plan: RangePlan,
    rows: ChangeRows,
    records: Records,
    name: TableName,
    *,
    may_load: bool = True,
) -> Overlay | None:
    """Return the table with the changes of a plan, None if only Spark can fold them.

    `records` must record nothing that lasts. With `may_load` a small table with a feature that only Spark
    writes is read into memory.
    """
    snapshot = table.snapshot()
    assert table.local_path is not None
    writes = pending_writes(table, plan)
    if any(other_types(write.fold, with_keys=False) for write in writes):
        return None
    overlay = Overlay.of(snapshot)
    if writes and unsupported_feature(snapshot) is not None:
        # such files have other names or places than their rows have
        size = sum(int(add["size"]) for add in overlay.files.values())
        if not may_load or size > MAX_COMPARED_BYTES:
            return None
        found = read_rows(table.local_path, snapshot).cast(overlay.rows.schema)
        overlay = Overlay({}, found, is_replaced=True)
    for write in writes:
        start, end, step = plan.start, plan.end_lsn, write.step
        is_log = write.fold.mode == "append"
        try:
            with session_of_rows(rows, name, start, end, step.start, step.end, is_log=is_log) as session:
                version = TableVersion(table, snapshot, overlay)
                target = NativeTarget(session, version, OverlayCommitter(version, overlay))
                StepWriter(target, records, name).write(write)
        except Exception as error:
            if why_left_to_spark(error) is None:
                raise
            return None
    return overlay
