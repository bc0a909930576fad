"""The source: connections, catalog, publication, slot, rows, and the two routes by which changes come.

The only room that talks to PostgreSQL. It hands on raw pgoutput messages and facts about the catalog, and
raises `SourceError` (or `GapError`, where WAL is lost) with one sentence that says what to do. Its parts, of
which each imports those before it: `embedded` (a server of our own), what stands here (connections and
catalog), `rows` (copies and sums), `stream` (slot and routes), `checks`.
"""
