"""Schema: which columns a silver table has, and how they follow the source's.

- `column_mapping`: source column → silver column
- `schema_evolution`, `schema_operations`: a new relation version, as by ALTER TABLE, as ordered operations,
  which the schema writer of the room write carries out; `schema_notes`: what the stream does not carry of it
- `protection_changes`, `rule_names`: rules of columns that change, and rules with silver's names
- `table_partitions`, `column_comments`: the columns of partitions, and comments
- `shared_schema`: the columns of a table that many sources share
- `foreign_commits`: commits to silver tables that pgdelta did not make
- `swap`: replace all rows in one commit
"""
