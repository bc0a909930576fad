"""Write: one table's steps become commits.

- `table` applies ranges, starts from a copy, rebuilds; `batch_writer` plans a range (`range_plan`) and
  carries it out; `writer_choice` chooses with Spark or without, or in parts (`range_parts`); `registrations`:
  how a table is registered
- `schema_writer` plans columns, and changes them, with Spark or by `native_schema`; `table_rewrite`: with
  the files of the table, for readers without table features
- `step_writer` folds a step and commits it to a target: `spark_target`, or `native_target`, which resolves
  row changes from the rows of a `table_version` with an `overlay`, and has `file_committer` write them
- `native_session`, `native_reads`, `native_files`: what the latter read; `data_layout`: which files, and
  their size; `clustering`: which are sorted by key
- `base_rows`: what is left of bronze's older changes when they are compacted
- `shared_tables`: one Delta table for the tables of many sources
"""
