"""The demo's shop: its tables, and a load that makes every kind of change that pgdelta follows.

Keys change alone, in swaps and within a composite key. The description of a product is TOASTed, so PostgreSQL
does not send it unless it changes. The audit log has no key and contains equal rows. During the load, one
table is truncated and a column is added to two tables. `Load` runs the statements at a steady rate, counts
the rows of committed transactions and samples the server's WAL.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pipeline.postgres.connection import Connection, read_flush_lsn
from pipeline.protocol.lsn import LSN

SCHEMA_NAME = "shop"
TABLES = ("customers", "products", "orders", "order_items", "carts", "audit_log")
_SCHEMA = (
    "CREATE SCHEMA shop",
    "CREATE TYPE shop.order_state AS ENUM ('new', 'paid', 'shipped', 'returned')",
    """CREATE TABLE shop.customers (id bigint PRIMARY KEY, name text NOT NULL, email text, is_active boolean,
        points int NOT NULL, interests text[], born date, joined_at timestamptz NOT NULL DEFAULT now())""",
    """CREATE TABLE shop.products (id int PRIMARY KEY, name text NOT NULL, price numeric(10,2), stock int,
        weight double precision, properties jsonb, description text NOT NULL)""",
    "ALTER TABLE shop.products ALTER description SET STORAGE EXTERNAL",
    """CREATE TABLE shop.orders (id bigint PRIMARY KEY, customer_id bigint NOT NULL, state shop.order_state,
        total numeric(12,2), placed_at timestamp NOT NULL DEFAULT now())""",
    """CREATE TABLE shop.order_items (order_id bigint, line smallint, product_id int, quantity int,
        price numeric(10,2), PRIMARY KEY (order_id, line))""",
    """CREATE TABLE shop.carts (customer_id bigint, product_id int, quantity int,
        PRIMARY KEY (customer_id, product_id))""",
    "CREATE TABLE shop.audit_log (at timestamptz, actor text, action text, seconds real, note text)",
    "ALTER TABLE shop.audit_log REPLICA IDENTITY FULL",
)


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One statement: the kind that it is counted as, and the table whose rows it changes."""

    kind: str
    table: str
    statement: str


def _chosen(table: str, count: int) -> str:
    """Return SQL for the keys of `count` rows, starting at a random one."""
    return f"(SELECT id FROM shop.{table} WHERE id >= %({table})s ORDER BY id LIMIT {count})"


def _products(first: str, last: str) -> DemoStep:
    return DemoStep(
        "inserts",
        "products",
        f"""INSERT INTO shop.products SELECT g, 'product ' || g, (random() * 200)::numeric(10,2), 100,
        random(), jsonb_build_object('colour', 'no. ' || g %% 7, 'sizes', jsonb_build_array(g, null)),
        repeat(md5(g::text), 100) FROM generate_series({first}::bigint, {last}) AS g""",
    )


def _customers(first: str, last: str) -> DemoStep:
    return DemoStep(
        "inserts",
        "customers",
        f"""INSERT INTO shop.customers (id, name, email, is_active, points, interests, born)
        SELECT g, 'Zoë No. ' || g, CASE WHEN g %% 3 > 0 THEN 'c' || g || '@example.org' END, g %% 5 > 0, 0,
        CASE WHEN g %% 4 > 0 THEN ARRAY['tea, green', 'say "hi"', NULL, ''] END, date '1970-01-01' + g::int
        FROM generate_series({first}::bigint, {last}) AS g""",
    )


def _orders(first: str, last: str) -> DemoStep:
    return DemoStep(
        "inserts",
        "orders",
        f"""INSERT INTO shop.orders (id, customer_id, state, total)
        SELECT g, %(customers)s, 'new', NULL FROM generate_series({first}::bigint, {last}) AS g""",
    )


def _items(first: str, last: str) -> DemoStep:
    return DemoStep(
        "inserts",
        "order_items",
        f"""INSERT INTO shop.order_items SELECT g, line, 1 + (random() * 290)::int, line,
        (random() * 200)::numeric(10,2)
        FROM generate_series({first}::bigint, {last}) AS g, generate_series(1, 2) AS line""",
    )


_CART = DemoStep(
    "inserts", "carts", "INSERT INTO shop.carts SELECT %(round)s, g, 1 FROM generate_series(1, 4) g"
)
OPENING = (_products("1", "300"), _customers("1", "1000"), _orders("1", "1500"), _items("1", "1500"))

# One tuple is one transaction.
ROUND: tuple[tuple[DemoStep, ...], ...] = (
    (_customers("%(new_customer)s", "%(new_customer)s + 2"), _products("%(new_product)s", "%(new_product)s")),
    (
        _orders("%(new_order)s", "%(new_order)s + 5"),
        _items("%(new_order)s", "%(new_order)s + 5"),
        # the description is not sent, so silver keeps the one it has
        DemoStep(
            "toast_updates",
            "products",
            f"UPDATE shop.products SET stock = stock - 1 WHERE id IN {_chosen('products', 6)}",
        ),
        DemoStep(
            "inserts",
            "audit_log",
            """INSERT INTO shop.audit_log SELECT now(), 'till', 'sale', random()::real, NULL
            FROM generate_series(1, 2)""",
        ),
    ),
    (
        DemoStep(
            "updates",
            "orders",
            f"""UPDATE shop.orders SET state = 'paid', total = %(round)s + 0.5
            WHERE id IN {_chosen("orders", 6)}""",
        ),
        DemoStep(
            "updates",
            "customers",
            f"UPDATE shop.customers SET points = points + 10 WHERE id IN {_chosen('customers', 4)}",
        ),
    ),
    (
        DemoStep(
            "key_changes",
            "order_items",
            f"""UPDATE shop.order_items SET order_id = order_id + 1000000
            WHERE order_id IN {_chosen("orders", 2)}""",
        ),
        DemoStep(
            "key_changes",
            "orders",
            f"UPDATE shop.orders SET id = id + 1000000 WHERE id IN {_chosen('orders', 2)}",
        ),
    ),
    # two products swap their keys; their descriptions are not sent
    tuple(
        DemoStep("key_changes", "products", f"UPDATE shop.products SET id = {new} WHERE id = {old}")
        for old, new in (("%(this)s", "-1"), ("%(that)s", "%(this)s"), ("-1", "%(that)s"))
    ),
    (
        DemoStep(
            "toast_updates",
            "products",
            f"""UPDATE shop.products SET description = repeat(md5(id || ':' || %(round)s), 100)
            WHERE id IN {_chosen("products", 2)}""",
        ),
    ),
    (
        DemoStep(
            "deletes",
            "order_items",
            f"DELETE FROM shop.order_items WHERE order_id IN {_chosen('orders', 2)}",
        ),
        DemoStep("deletes", "orders", f"DELETE FROM shop.orders WHERE id IN {_chosen('orders', 2)}"),
        DemoStep("deletes", "customers", f"DELETE FROM shop.customers WHERE id IN {_chosen('customers', 1)}"),
    ),
    (
        _CART,
        DemoStep("updates", "carts", "UPDATE shop.carts SET quantity = 2 WHERE customer_id = %(round)s - 1"),
        DemoStep("deletes", "carts", "DELETE FROM shop.carts WHERE customer_id = %(round)s - 3"),
    ),
    (
        DemoStep(
            "updates",
            "audit_log",
            """UPDATE shop.audit_log SET note = 'seen' WHERE ctid = ANY
            (ARRAY(SELECT ctid FROM shop.audit_log WHERE note IS NULL LIMIT 2))""",
        ),
        DemoStep(
            "deletes",
            "audit_log",
            """DELETE FROM shop.audit_log WHERE ctid = ANY
            (ARRAY(SELECT ctid FROM shop.audit_log WHERE note = 'seen' LIMIT 1))""",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Milestone:
    """Steps that run once, at a fraction of the load's duration, and steps of every round after them."""

    fraction: float
    steps: tuple[DemoStep, ...]
    then: tuple[DemoStep, ...] = ()


MILESTONES = (
    Milestone(
        0.3,
        (DemoStep("ddl", "orders", "ALTER TABLE shop.orders ADD COLUMN coupon text"),),
        (
            DemoStep(
                "updates",
                "orders",
                f"UPDATE shop.orders SET coupon = 'C' || id WHERE id IN {_chosen('orders', 2)}",
            ),
        ),
    ),
    Milestone(0.5, (DemoStep("truncates", "carts", "TRUNCATE shop.carts"), _CART)),
    Milestone(
        0.7,
        (
            DemoStep(
                "ddl",
                "customers",
                "ALTER TABLE shop.customers ADD COLUMN tier text NOT NULL DEFAULT 'standard'",
            ),
        ),
        (
            DemoStep(
                "updates",
                "customers",
                f"UPDATE shop.customers SET tier = 'gold' WHERE id IN {_chosen('customers', 2)}",
            ),
        ),
    ),
)
CANCELLED = (*ROUND[2], *ROUND[6])  # a transaction that is rolled back


def create_shop(connection: Connection) -> None:
    """Create the shop's schema, empty."""
    for statement in _SCHEMA:
        connection.execute(statement.encode())


#: The least that a load does unless it is stopped.
MINIMUM = {
    "inserts": 300,
    "updates": 300,
    "deletes": 300,
    "key_changes": 300,
    "toast_updates": 300,
    "truncates": 1,
    "ddl": 2,
}
_ROUNDS_PER_SECOND = 5
_ROUNDS_PER_CANCELLATION = 5


class Load:
    """Changes the shop over one connection; `log` maps LSNs to the times at which the WAL reached them."""

    def __init__(self, connection: Connection, seed: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()  # by table, as of the last commit
        self.log: list[tuple[LSN, float]] = []  # end of the WAL, and when (monotonic)
        self._connection = connection
        self._random = random.Random(seed)
        self._round = 0

    def open_shop(self) -> LSN:
        """Fill the shop and return an LSN after it."""
        self._commit(OPENING)
        return self._mark()

    def run(self, seconds: float, stop: threading.Event) -> None:
        """Change the shop for some seconds and until the minimum is reached, or until `stop`."""
        started = time.monotonic()
        milestones, routine = list(MILESTONES), list(ROUND)
        while not stop.is_set():
            elapsed = time.monotonic() - started
            if elapsed >= seconds and not milestones and self.has_minimum:
                break
            if milestones and elapsed >= seconds * milestones[0].fraction:
                milestone = milestones.pop(0)
                self._commit(milestone.steps)
                if milestone.then:
                    routine.append(milestone.then)
            self._round += 1
            for steps in routine:
                self._commit(steps)
            if self._round % _ROUNDS_PER_CANCELLATION == 0:
                self._commit(CANCELLED, is_cancelled=True)
            self.log.append((read_flush_lsn(self._connection), time.monotonic()))
            if elapsed < seconds:
                stop.wait(started + self._round / _ROUNDS_PER_SECOND - time.monotonic())

    def close_shop(self) -> LSN:
        """Return an LSN after every change."""
        return self._mark()

    def _mark(self) -> LSN:
        last = read_flush_lsn(self._connection)
        self.log.append((last, time.monotonic()))
        # a commit after the LSN, so that replication goes beyond it although nothing else happens
        self._connection.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'pgdelta', 'mark')")
        return last

    @property
    def has_minimum(self) -> bool:
        """Whether every kind of change reached its minimum."""
        return all(self.counts[kind] >= count for kind, count in MINIMUM.items())

    def lag_of(self, offset: LSN) -> tuple[float, int]:
        """Return the lag of an offset behind the shop, in seconds and bytes of WAL."""
        unseen = bisect_right(self.log, offset, key=lambda entry: entry[0])
        if unseen >= len(self.log):
            return 0.0, 0
        return time.monotonic() - self.log[unseen][1], self.log[-1][0] - offset

    def _commit(self, steps: tuple[DemoStep, ...], *, is_cancelled: bool = False) -> None:
        values = self._values()
        with self._connection.transaction(force_rollback=is_cancelled):
            done = [self._connection.execute(s.statement.encode(), values).rowcount for s in steps]
        if is_cancelled:
            return
        for step, count in zip(steps, done, strict=True):
            self.counts[step.kind] += max(count, 0) if step.kind not in ("truncates", "ddl") else 1
            if step.kind == "truncates":
                self.rows[step.table] = 0
            self.rows[step.table] += {"inserts": count, "deletes": -count}.get(step.kind, 0)

    def _values(self) -> dict[str, Any]:
        number, place = self._round, self._random.random()
        this, that = self._random.sample(range(1, 301), 2)
        return {
            "round": number,
            "new_customer": 1001 + 3 * number,
            "new_product": 301 + number,
            "new_order": 1501 + 6 * number,
            "customers": int(place * (1000 + 3 * number)),
            "products": int(place * 290),
            "orders": int(place * (1490 + 6 * number)),
            "this": this,
            "that": that,
        }
