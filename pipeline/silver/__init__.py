"""Silver: bronze's changes become tables that equal the source's. Planning above, writing below.

- types: `types` (PostgreSQL type → Delta type), `text_parsers` (its SQL), `sidecars`, `metadata_columns`
- columns: `column_mapping`, `schema_evolution`, `schema_operations`, `schema_notes` are pure; `schema_writer`
  plans with them for one table, and changes it
- rows: `write_plan` (the steps of an input), `fold` and `key_changes` (one row per key), `multiset` (whole
  rows), `key_ranges`, `merge` and `write` are pure SQL; `folded_frames` and `step_writer` run it
- one table: `batch_writer` plans a range whole, then carries it out; `table` applies ranges, starts from a
  copy, rebuilds; `swap` replaces all rows by one commit
- limits: `policies` (guards, refused values) and `foreign_commits`
- reading: `versions`, `as_of` (one LSN), `clone` (a snapshot of the source), `comparable_text`, `row_hashes`
"""
