"""Schema: which columns a silver table has, and how they follow the source's.

- `column_mapping`: source column → silver column
- `schema_evolution`, `schema_operations`: what a new relation version changes, as ordered operations
- `protection_changes`: rules for protected columns that change
- `rule_names`, `table_partitions`, `column_comments`: silver's names in rules, partitions, comments
- `shared_schema`: the columns of a table that many sources share
- `foreign_commits`: commits to silver tables that pgdelta did not make
- `swap`: replace all rows in one commit
"""
