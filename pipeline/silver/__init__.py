"""Bronze changes to silver rows: types, shapes, folding and merging, planned as data and SQL."""
