"""Results as commands print them, with names that are long, hostile, or both; and how they are rendered."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from rich.console import Console

from pipeline.config.tables import Guards
from pipeline.delta.table import Lake
from pipeline.maintenance.maintainer import MaintainedTable
from pipeline.metadata.manifests import Manifest, ManifestEntry
from pipeline.metadata.reconciliations import DIFFERENT, EQUAL, UNPROVEN, Difference, Reconciliation
from pipeline.operate.machine_checks import CheckReport
from pipeline.operate.maintain import MaintenanceSummary
from pipeline.operate.optimize import OptimizedTable, OptimizeSummary
from pipeline.operate.plan_report import Plan, PlannedTable, PlanStep
from pipeline.operate.resync import ResyncSummary
from pipeline.postgres.checks.table_checks import Check
from pipeline.protocol.lsn import LSN
from pipeline.reading.as_of import SilverVersions
from pipeline.silver.fold.policies import find_excess
from pipeline.silver.read.as_of import AsOf, TableAsOf
from pipeline.table_name import TableName
from pipeline.terminal import print_lines
from pipeline.verify.audit import Audit
from pipeline.verify.commit_chain import ChainOrigin, ChainSegment, CommitChain, read_chain
from pipeline.verify.reconcile_report import Reconciled
from tests.support.commit_chains import APP, CREATED, WHOLE, chain, link

ORDERS = TableName("public", "orders")
ITEMS = TableName("public", "order_items")
LONG = TableName("warehouse_management", "historical_inventory_movements_by_distribution_centre_2026_01")
HOSTILE = TableName("public", "a\nDROP TABLE b; \x1b[2J[red]")
WIDE_LETTERS = TableName("販売", "注文明細_歴史的な在庫の動き_配送センター別_二〇二六年一月")

NOTHING = "no data is written"
GUARDED = find_excess(ORDERS, {"D": 12_000}, Guards(deletes=1000)) or ""
STEPS = (
    PlanStep(LSN(0x16B3900), "Column w was renamed to x.", f"{NOTHING}; readers need column mapping"),
    PlanStep(
        LSN(0x16B3A00),
        "Column note was dropped.",
        f"{NOTHING}; readers need column mapping",
        "the column's values",
    ),
)
WRITE = PlanStep(
    LSN(0x16B3B00),
    "merge by key",
    "one write",
    sql=("MERGE INTO delta.`file:/lake/silver/public/order_items` AS t USING folded AS s ON t.id = s.id",),
    is_write=True,
)
TABLES = (
    PlannedTable(ITEMS, LSN(0x16B3748), {"I": 1_204_332, "U": 30, "D": 4, "T": 0}, (WRITE,)),
    PlannedTable(LONG, LSN(0x16B3748), {"I": 0, "U": 1, "D": 0, "T": 0}, STEPS),
    PlannedTable(HOSTILE, LSN(0x16B3748), {"I": 1}, failure="Spark failed: [x] No space left on\ndevice"),
    PlannedTable(
        ORDERS,
        LSN(0x16B3748),
        {"D": 12_000},
        (PlanStep(LSN(0x16B3748), GUARDED, "nothing is applied until then", holds=True),),
    ),
    PlannedTable(WIDE_LETTERS, LSN(0x16B3748), {"R": 17}, STEPS[:1]),
)
PLAN = Plan("shop", LSN(0x1A2B3C4), TABLES)

CHECKS = CheckReport(
    "shop",
    "/srv/replication/conf/pipeline.yaml",
    (
        Check("Java", True, "Spark will run /usr/lib/jvm/java-17-openjdk-amd64/bin/java."),
        Check(
            "lake",
            True,
            "A new lake will be created in /srv/replication/lake.",
            "storage.root is relative to the working directory. An absolute path means the same lake from "
            "any folder.",
        ),
        Check("connection", True, "Connected to the database shop as replicator."),
        Check("wal_level", False, "wal_level is replica.", "Set wal_level = logical and restart the server."),
        Check(
            "identities of partitions",
            False,
            f"These partitions have another REPLICA IDENTITY than their tables: {LONG}, {HOSTILE}.",
            "Run ALTER TABLE … REPLICA IDENTITY FULL for each of them; that of the partitioned table does "
            "not reach its partitions.",
        ),
        Check("published tables", True, "The publication shop publishes 58 tables, all that match."),
    ),
)

RECONCILED = Reconciled(
    "shop",
    "0123456789abcdef0123456789abcdef",
    (
        Reconciliation(ITEMS, EQUAL, lsn=LSN(0x1A2B3C4), source_rows=1_204_332, silver_rows=1_204_332),
        Reconciliation(
            LONG,
            DIFFERENT,
            lsn=LSN(0x1A2B3C4),
            source_rows=17_000_000,
            silver_rows=16_999_988,
            missing=12,
            changed=3,
            columns=("quantity", "distribution_centre"),
            rows=(Difference("missing", '{"id": 1}', (), 1),),
        ),
        Reconciliation(
            HOSTILE,
            EQUAL,
            lsn=LSN(0x1A2B3C4),
            source_rows=1,
            silver_rows=1,
            left_out={"p\x1b[2J": "its type json has no order that both sides share"},
        ),
        Reconciliation(
            ORDERS, UNPROVEN, sentence="the table waits for its copy, so no version shows a known LSN"
        ),
        Reconciliation(WIDE_LETTERS, EQUAL, lsn=LSN(0x1A2B3C4), source_rows=5, silver_rows=5),
    ),
    {LONG: "the rows of 15 keys are to be copied again"},
)

AUDIT = Audit("shop", read_chain(WHOLE, APP, LSN(190)), counted=90, prepared_rows=3, copies=1)
BROKEN = Audit("shop", read_chain([CREATED, *chain(100, 100, 130), link(3, 150, 160)], APP))
CROSSED = Audit("shop", read_chain([*WHOLE, link(5, 190, 900, gap="[the] slot was\nlost")], APP), counted=90)

_ORIGIN = ChainOrigin("shop_slot", "7612345678901234567", 3, "shop")
LARGE = Audit(
    "shop",
    CommitChain(
        segments=(
            ChainSegment(
                _ORIGIN,
                LSN(0x1A_16B37480),
                LSN(0x1A_FFFFFFFF),
                1201,
                1_204_332,
                1_203_131,
                98_765_432,
                1_234_567_890,
            ),
            ChainSegment(
                replace(_ORIGIN, timeline=4),
                LSN(0x1A_FFFFFFFF),
                LSN(0x1B_00000000),
                1_204_333,
                1_204_333,
                1,
                1,
                1,
            ),
        ),
        oldest=1201,
        newest=1_204_333,
    ),
    counted=1_234_567_891,
    copies=58,
)

OPTIMIZED = OptimizeSummary(
    "shop",
    (
        OptimizedTable("bronze/changes", added=3, removed=1_204),
        OptimizedTable("bronze/relations"),
        OptimizedTable("_pgdelta/events", added=1, removed=58, vacuumed=112),
        OptimizedTable(str(HOSTILE), failure="Spark failed: it has no folder; run again with --debug for it"),
        OptimizedTable(str(LONG), added=1, removed=2),
    ),
)
MAINTAINED = MaintenanceSummary(
    "shop",
    (
        MaintainedTable("bronze/changes", 1_204, 3, removed_files=12_310, removed_log_files=28_800),
        MaintainedTable("bronze/relations"),
        MaintainedTable(str(HOSTILE), failure="The file part-1 is missing. Restore the file."),
        MaintainedTable(str(WIDE_LETTERS), needs_spark="deletion vectors"),
        MaintainedTable(str(LONG), merged=20, merged_into=1, sorted=1_112),
    ),
    dry_run=True,
)
RESYNC = ResyncSummary("shop", (ORDERS, ITEMS, LONG, HOSTILE, WIDE_LETTERS))

APPLIED = (
    "apply shop: 1,204 changes to 3 tables; silver shows 0/1A2B3C4",
    f"failed: {HOSTILE}: it has\nno folder",
    f"held: {GUARDED}",
)


def _entry(name: TableName, *, is_behind: bool = False) -> ManifestEntry:
    return ManifestEntry(*name, f"file:/lake/silver/public/{name.table[:6]}", 7, LSN(50), is_behind)


def as_of_page() -> SilverVersions:
    """Return silver as of a commit, one of its tables behind."""
    entries = (_entry(ORDERS), _entry(LONG), _entry(HOSTILE, is_behind=True))
    manifest = Manifest(LSN(0x1A2B3C4), datetime(2026, 1, 31, 12, tzinfo=timezone.utc), entries)
    silver = AsOf(cast(Lake, SimpleNamespace(root="file:/lake")), manifest)
    root = "file:/srv/replication/lake/silver"
    return SilverVersions(
        silver,
        (
            ("current", TableAsOf(ORDERS, f"{root}/public/orders", 7)),
            ("behind", silver.table(*HOSTILE)),
            ("current", TableAsOf(LONG, f"{root}/{LONG.schema}/{LONG.table}", 12)),
        ),
    )


def _lines(*lines: str) -> Callable[[Console], None]:
    return lambda console: print_lines(console, lines)


PAGES: dict[str, Callable[[Console], None]] = {
    "plan": PLAN.print,
    "plan-tables": Plan("shop", PLAN.captured_offset, TABLES, has_details=True).print,
    "plan-sql": Plan("shop", PLAN.captured_offset, TABLES[:2], has_details=True, has_sql=True).print,
    "plan-one": Plan("shop", PLAN.captured_offset, TABLES[:1]).print,
    "plan-nothing": Plan("shop", PLAN.captured_offset, ()).print,
    "check": CHECKS.print,
    "reconcile": RECONCILED.print,
    "audit": AUDIT.print,
    "audit-large": LARGE.print,
    "audit-broken": BROKEN.print,
    "audit-crossed": CROSSED.print,
    "as-of": as_of_page().print,
    "optimize": OPTIMIZED.print,
    "maintain": MAINTAINED.print,
    "resync": _lines(*RESYNC.lines()),
    "apply": _lines(*APPLIED),
}


def render(page: Callable[[Console], None], width: int) -> str:
    """Return what a terminal of a width shows, without colours."""
    text = StringIO()
    page(Console(file=text, width=width))
    return text.getvalue()


STORED = Path(__file__).parent / "stored_pages"
WIDTHS = (80, 160)


def store() -> None:
    """Write the pages of all widths."""
    STORED.mkdir(exist_ok=True)
    for file in STORED.iterdir():
        file.unlink()
    for name, page in PAGES.items():
        for width in WIDTHS:
            (STORED / f"{name}-{width}.txt").write_text(render(page, width), encoding="utf-8")


if __name__ == "__main__":
    store()
