"""Create a batch's new tables before their rows are written, so that one commit registers all of them.

A run that ends after that finds tables that are registered and have no rows yet, and writes them as if they
had just been created. What cannot be created so is left to the job of its table, which reports why.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pipeline.apply.planner import BatchPlan, TablePlan
from pipeline.metadata.registry import RegisteredTable, TableRegistry
from pipeline.silver.decision import Step


def create_new_tables(
    plan: BatchPlan,
    registry: TableRegistry,
    create: Callable[[TablePlan], RegisteredTable | None],
    threads: int,
) -> None:
    """Create the small tables of a plan that are new, and register them in one commit.

    `create` returns how a table is to be registered, or None if its own job creates it; threads call it.
    """
    new = [
        table
        for name, table in plan.tables.items()
        if table.step in (Step.START_FROM_COPY, Step.APPLY) and name not in plan.registered
    ]
    new = [table for table in new if not table.is_large]
    if len(new) < 2:
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="create") as executor:
        created = [found for found in executor.map(create, new) if found is not None]
    if created:
        registry.register(*created)
