"""Delta Lake: tables, logs, commits and the Spark session. Independent of bronze and silver.

- `table`: a Delta table by path, and `Lake`, the storage root
- `txn`: transaction ids, on which exactly-once rests, and what a commit records
- `log`: Delta's objects for a table's log, and what its commits record about themselves
- `commit_files`: commit data files that exist already, fenced and read back
- `partitions`: values of partition columns; `retry`: repeat a write that a foreign commit conflicts with
- `locks`: one apply at a time, on a file system of this machine
- `filesystem`, `sql`: folders; quoting, and times as microseconds
- `lake_format`: the format version of the lake, which `Lake` verifies
- `record_table`: small tables whose rows are instances of a dataclass
- `catalogs/`: AWS Glue, a Hive metastore and Unity Catalog
- `spark/`: the session, its settings and JARs, the log store, `make dist`
"""
