"""The source: connections, publication, slot, catalog, and the two routes by which changes come.

The only room that talks to PostgreSQL. It hands on raw pgoutput messages and facts about the catalog, and
raises `SourceError` (or `GapError`, where WAL is lost) with one sentence that says what to do.
"""
