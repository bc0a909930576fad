"""The source: connections, catalog, publication, slot, rows, and the two routes by which changes are read.

The only package that connects to PostgreSQL. It returns raw pgoutput messages and facts from the catalog, and
raises `SourceError`, or `GapError` if WAL is lost, with what to do. `replication` has the slot and the two
routes, `snapshot` reads and hashes rows, `checks` is `pgdelta check`, and `embedded` is a server of our own.
"""
