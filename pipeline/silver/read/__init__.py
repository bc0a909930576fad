"""Read: what analysts and commands read of silver.

- `versions`, `as_of`: the versions that show one LSN; `past_copies`: from which copy an earlier LSN is built
- `live_rows`: silver with the changes that bronze has beyond it, as an overlay, or by Spark as a
  `frame_target`; `silver_rows` reads both as Arrow, `overlay_frame` as a frame
- `query_session`: DuckDB over silver; `query_names`: the tables that its SQL names
- `catalog_names`: names in catalogs
- `missing_tables`: why silver lacks a table that a person names
"""
