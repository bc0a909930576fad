"""pgdelta: PostgreSQL logical replication into Delta Lake.

Changes flow one way, room by room: `protocol` (bytes to whole transactions) → `postgres` (the server) →
`bronze` (an append-only log of every change) → `silver` (plans that turn the log into tables) → `lake` (Spark
and Delta) → `operate` (what an operator runs) → `cli`. A room imports only rooms to its left; `errors` and
`config` are left of them all.
"""

__version__ = "0.1.0"
