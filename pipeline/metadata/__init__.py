"""The tables under `_pgdelta`: what the pipeline records of its tables."""
