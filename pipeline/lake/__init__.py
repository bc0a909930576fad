"""Spark and Delta: tables with positions, the log of who wrote what, and the pipeline's own records.

The only room with sessions and Delta tables. Its parts, of which each imports those before it: `spark`
(settings, JARs, sessions), what stands here (Delta tables and the records of `_pgdelta`), `bronze`, `silver`.
"""
