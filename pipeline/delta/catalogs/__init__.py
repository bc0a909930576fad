"""Catalogs outside Spark that hold the names, columns and comments of Delta tables.

- `entry`: what a catalog is to the pipeline, and what an entry holds
- `glue`: AWS Glue, by its API
- `unity`: Unity Catalog, by its REST API
- `hive`: a Hive metastore; `thrift`: the calls of a Thrift server
"""
