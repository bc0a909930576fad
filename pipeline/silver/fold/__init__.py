"""Fold: what the changes of a step leave of each row.

- `write_plan`: the steps of an input; `write`: one write
- `fold`, `fold_sql`, `mirror_sql`: one row per key, or multisets of whole rows
- `modes`, `mode_sql`: what else than a mirror a table may be, and the fold of these
- `unchanged_plan`, `unchanged_values`: unchanged TOAST in mode append (`mode_sql` has that of history)
- `later_copies`: copies that correct the rows of such tables
- `key_bounds`: by which files are skipped
- `policies`: guards, and refused values
- `sql_session`: the session that runs a fold, by `duckdb_sql` or `spark_sql`
- `merge`: what folded rows do to silver's in each mode; `row_changes`: the rows that go, change and come
"""
