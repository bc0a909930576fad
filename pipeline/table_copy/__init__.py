"""Copies of tables: the rows that are there already, read under a snapshot, and resyncs."""
