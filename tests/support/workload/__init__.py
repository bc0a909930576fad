"""Random, seeded DML and DDL against a live PostgreSQL, through a plain psycopg connection.

`tables.create_schema` makes six tables, one for each way PostgreSQL can name a row in the stream;
`transactions.run_workload` then commits transactions of inserts, updates, deletes, truncates, key changes,
savepoints and ADD COLUMN. The same seed on the same server version makes the same statements. Callers print
the seed.
"""
