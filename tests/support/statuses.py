"""The status of a made-up pipeline: 58 tables in every state, some with hostile names."""

from datetime import datetime, timezone

from pipeline.metadata.events import Event
from pipeline.metadata.reconciliations import PROVE, ComparedAt
from pipeline.postgres.replication.slot import Slot
from pipeline.postgres.replication.slot_status import SourceStatus
from pipeline.protocol.lsn import INVALID, LSN
from pipeline.report.status_page import Status, TableStatus
from pipeline.table_name import TableName

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
END = LSN(0x52C000000)
APPLIED = LSN(0x51A2B3C40)
MIB = 1 << 20
COMMON = (
    "alembic_version audit_log carts categories countries coupons currencies customer_addresses customers "
    "delivery_slots devices discounts email_queue employees exchange_rates feature_flags gift_cards images "
    "inventory inventory_movements invoice_lines invoices languages login_attempts notifications "
    "order_items order_status_history payment_methods payments permissions price_history prices products "
    "promotions refunds reviews role_permissions roles sales_channels sessions shipments stock_levels "
    "suppliers tags taxes users vouchers"
)
LONG = "monthly_revenue_by_customer_segment_and_sales_channel_materialized_"[:63]


def shop_source(safe: int | None = 9 * 1024 * MIB + 700 * MIB) -> SourceStatus:
    """Return a source whose slot has a limit of 10 GiB."""
    slot = Slot(
        "shop",
        "pgoutput",
        "shop",
        False,
        LSN(APPLIED + 56),
        APPLIED,
        17,
        wal_status="reserved",
        safe_wal_size=safe,
    )
    return SourceStatus(NOON, END, 10 * 1024 * MIB, slot)


def current_table(name: TableName) -> TableStatus:
    """Return a table that shows all that bronze holds."""
    return TableStatus(
        name,
        "current",
        APPLIED,
        1234,
        {},
        verified=ComparedAt(LSN(APPLIED - 4096), NOON, PROVE),
        commit_time=NOON,
        lag_seconds=1.2,
        lag_bytes=END - APPLIED,
        operations={"I": 1200, "U": 31_000, "D": 17, "T": 0},
    )


def shop_status() -> Status:
    """Return 58 tables: failed, held, refused, behind, copying, detached, current, two that await a copy."""
    orders = TableName("public", "orders")
    held = (
        f"{orders} is held: Column price changed from int4 to text. Set type_changes to rewrite, or run "
        "pgdelta rebuild --table public.orders."
    )
    tables = [current_table(TableName("public", name)) for name in COMMON.split()]
    special = [
        _table("sales", "lines", "failed", "Spark could not write: No space left on device.", lag=3 * MIB),
        _table("public", "orders", "held", held, kind="held", misfits={"price": 12, "note": 3}, lag=4 * MIB),
        _table("public", "days", "refused", _REFUSED, kind="refused", lag=900_000, seconds=86_400 * 3.5),
        _table("public", "small\nlag", "behind", None, lag=1024, seconds=0.4),
        _table("public", LONG, "behind", None, lag=2000 * MIB, seconds=1024.0),
        _table(
            "données_d'été",
            "取引先マスター一覧表",
            "behind",
            "A gap.",
            kind="resync",
            lag=5 * MIB,
            seconds=90,
        ),
        _table("public", "\x1b[2J\x1b]0;title\x07[red]", "copying", "3 of 10 chunks are copied.", share=0.3),
        _table("public", "first", "copying", _COPY, awaits=True),
        _table("old", "detached_1", "detached", _LEFT),
        _table("old", "detached_2", "detached", _LEFT),
        _table("public", "rates", "current", _COPY, lag=END - APPLIED, awaits=True),
    ]
    tables += special
    return Status(
        "shop", LSN(END - 4096), APPLIED, NOON, tuple(tables), "shop", shop_source(), None, 43_000.0
    )


_REFUSED = (
    "public.days is refused: 2 values of column d do not fit DATE. Set misfit for the table, then run "
    "pgdelta apply --table public.days."
)
_COPY = "The next ingest copies the table."
_LEFT = "No rule of the configuration matches it any more."


def _table(
    schema: str,
    name: str,
    state: str,
    sentence: str | None,
    *,
    kind: str | None = None,
    misfits: dict[str, int] | None = None,
    lag: int | None = None,
    seconds: float = 17.0,
    share: float | None = None,
    awaits: bool = False,
) -> TableStatus:
    applied = INVALID if lag is None else LSN(END - lag)
    return TableStatus(
        TableName(schema, name),
        state,
        applied,
        -1 if lag is None else 7,
        misfits or {},
        sentence,
        commit_time=None if lag is None else NOON,
        lag_seconds=None if lag is None else seconds,
        lag_bytes=lag,
        operations={} if lag is None else {"I": 5, "U": 2, "D": 0, "T": 1},
        event=Event(schema, name, applied, kind, sentence or "") if kind else None,
        copy_share=share,
        awaits_copy=awaits,
    )
