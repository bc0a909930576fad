"""The Delta tables under `_pgdelta`: what pgdelta records of its silver tables, for itself and for analysts.

- `registry`: `tables`, the path and columns of each silver table; `Records`, the facade of this table and the
  next two
- `events`: what silver could not follow exactly, and schema changes
- `misfits`: values that a silver type cannot hold
- `manifests`: which table versions show one LSN
- `status`: the state of each table after the last batch
- `reconciliations`: results of comparisons with the source
"""
