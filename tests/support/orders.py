"""Three tables that many tests replicate, and statements that fill and change them.

A row of `orders` is known by its key, with a column in TOAST; one of `lines` by all its values, and some are
equal; `log` is only inserted into.
"""

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, item text, note text, price numeric(8,2))",
    "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
)
LINES = "CREATE TABLE lines (order_id int, item text, count int)", "ALTER TABLE lines REPLICA IDENTITY FULL"
LOG = ("CREATE TABLE log (line text)", "ALTER TABLE log REPLICA IDENTITY FULL")
FILL = (
    "INSERT INTO orders SELECT g, 'item ' || g, repeat('n', 2500), g / 8.0 FROM generate_series(1, 20) g",
    "INSERT INTO lines SELECT g % 4, NULLIF('item ' || g % 2, 'item 1'), NULL FROM generate_series(1, 20) g",
    "INSERT INTO log SELECT 'line ' || g % 3 FROM generate_series(1, 6) g",
)
CHANGE = (
    "UPDATE orders SET id = id + 100, price = NULL WHERE id < 4",
    "DELETE FROM orders WHERE id BETWEEN 10 AND 12",
    "DELETE FROM lines WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 1 LIMIT 2)",
    "UPDATE lines SET count = 7 WHERE ctid IN (SELECT ctid FROM lines WHERE order_id = 2 LIMIT 2)",
    "INSERT INTO log VALUES ('line 1'), (NULL)",
)
TABLES = ("orders", "lines", "log")
