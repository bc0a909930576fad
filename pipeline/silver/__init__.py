"""Silver: bronze's changes become tables that equal the source's. Planning above, writing below.

- next step: `decision` (the one table of decisions) and `lake_facts` (what the lake records); both are pure
- types: `types` (PostgreSQL type → Delta type), `text_parsers` (its SQL)
- columns: `column_mapping`, `schema_evolution`, `schema_operations`, `protection_changes` (rules for columns
  that change), `rule_names` (silver's names in rules), `table_partitions` and `column_comments` (the
  source's) are pure; `schema_writer` plans with them for one table, and changes it, by Spark or by
  `native_schema`
- rows: `write_plan` (the steps of an input), `fold` and `fold_sql` (one row per key), `write` (the MERGE),
  `key_bounds` (by which it skips files), `file_statistics` and `writer_choice` (Spark or not) are pure; so
  are `modes` (what else than a mirror a table may be), `mode_sql` (their fold), `later_copies` (which
  correct their rows) and `unchanged_plan` (which earlier rows have values that were not sent)
- writing: `step_writer` runs the fold in a `sql_session` and commits to a target: `spark_sql` and
  `spark_target`, or `duckdb_sql` and `native_target`, which resolves what folded rows do to the rows of a
  `table_version` (read by `native_files` as `native_reads` needs them) as `row_changes`; `file_committer`
  writes these. `native_session` reads the input, and `data_layout` chooses the files that are read and their
  size; `unchanged_values` fills values that were not sent; `clustering` chooses files to sort by key
- one table: `batch_writer` plans a range (`range_plan`) and carries it out; `table` applies ranges, starts
  from a copy, rebuilds; `swap` replaces all rows in one commit; `past_copies` (pure) has from where a table
  is built as of an LSN
- many sources in one table: `shared_tables` commits their files to it, with the columns that follow from
  theirs (`shared_schema`, pure)
- bronze: `base_rows` chooses the rows that are left when older changes are compacted, with copies of keys
  (`base_keys`, pure)
- limits: `policies` (guards, refused values) and `foreign_commits`
- comparing with the source: `source_rows` and `row_hashes` (sums of hashes) of `compared_rows`, which DuckDB
  or Spark reads, `comparable_columns` and `differing_rows` (pure), and after a gap of the stream
  `gap_comparison`; `adoption` compares a table of another program, by the texts of `stream_text` (pure)
- reading: `versions`, `as_of` (one LSN), `clone` (a snapshot of the source), `comparable_text`;
  `catalog_names` (pure) has the names in the catalog of Spark
- `missing_tables` explains why silver lacks a table that a person names
- reading live: `live_rows` makes row changes an `overlay` of a version (or by Spark, in a `frame_target`);
  `silver_rows` reads both as Arrow, `overlay_frame` as a frame; `query_session` is DuckDB,
  `query_names` are the tables that SQL names
- proof: `doubts` (pure) are the tables that may differ from the source since an event
"""
