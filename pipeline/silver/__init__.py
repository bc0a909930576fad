"""Silver: bronze's changes become tables that equal the source's. Planning above, writing below.

- types: `types` (PostgreSQL type → Delta type), `text_parsers` (its SQL)
- columns: `column_mapping`, `schema_evolution`, `schema_operations` are pure; `schema_writer` plans with them
  for one table, and changes it
- rows: `write_plan` (the steps of an input), `fold` (one row per key) and `write` are pure; `folded_frames`
  (key changes and multisets too) and `step_writer` run them
- one table: `batch_writer` plans a range whole, then carries it out; `table` applies ranges, starts from a
  copy, rebuilds; `swap` replaces all rows by one commit
- limits: `policies` (guards, refused values) and `foreign_commits`
- reading: `versions`, `as_of` (one LSN), `clone` (a snapshot of the source), `comparable_text`, `row_hashes`
"""
